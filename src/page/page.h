/*
 * page.h: single pages and the metapage.
 *
 * Lock order of the whole extension (src/README.md proves why it is free of deadlocks):
 *   structure lock (heavyweight) > metapage > delta tail page > new page.
 * Region pages are locked one at a time, or in ascending block order when one WAL record covers several.
 */
#pragma once

#include "page/layout.h"
#include "pg/pg.h"

namespace vecgpu {

static_assert(kPageBytes == BLCKSZ, "vecgpu is built for 8 kB pages");
static_assert(kPageHeaderBytes == SizeOfPageHeaderData);

inline PageTrailer *Trailer(Page page)
{
    return reinterpret_cast<PageTrailer *>(page + kPageBytes - sizeof(PageTrailer));
}

inline uint8_t *Payload(Page page)
{
    return reinterpret_cast<uint8_t *>(page) + kPageHeaderBytes;
}

/* Marks `bytes` of the payload as used; what lies beyond is not logged and reads as zero. */
inline void SetPayloadUsed(Page page, uint32_t bytes)
{
    reinterpret_cast<PageHeader>(page)->pd_lower = static_cast<LocationIndex>(kPageHeaderBytes + bytes);
}

void VgInitPage(Page page, PageKind kind, uint16_t region, uint32_t sequence, uint64_t epoch);

/* ERRCODE_INDEX_CORRUPTED with the place and the reason. */
[[noreturn]] void VgCorrupt(Relation index, BlockNumber block, const char *reason);

/* A page that was recycled under a reader of a standby: a recovery conflict there, corruption elsewhere. */
[[noreturn]] void VgRecycled(Relation index, BlockNumber block, const char *reason);

/* True if the page is initialised and of this kind (and, for regions, this region). */
bool VgPageIs(Page page, PageKind kind, uint16_t region = 0);

/*
 * The same for a region page of one generation, for hot paths: the trailer alone tells, one cache line, and a page that is
 * not initialised has zeroes there.
 */
inline bool IsRegionPage(Page page, Region region, uint32_t generation)
{
    const PageTrailer *trailer = Trailer(page);
    return trailer->kind == PageKind::Region && trailer->region == static_cast<uint16_t>(region) &&
           trailer->sequence == generation;
}

/* Reads and locks a page of the main fork. mode: BUFFER_LOCK_SHARE or BUFFER_LOCK_EXCLUSIVE. */
Buffer VgReadPage(Relation index, BlockNumber block, int mode);

/* ---- metapage ---- */

inline Meta *MetaOf(Page page)
{
    return reinterpret_cast<Meta *>(Payload(page));
}

void VgInitMetaPage(Page page, const Meta &meta);

/* Copies the metapage; checks magic, version and the ranges that later arithmetic relies on. */
void VgReadMeta(Relation index, Meta *meta);

/* As VgReadMeta, for a page whose buffer the caller holds locked. */
const Meta *VgCheckMeta(Relation index, Page page);

/* Reason why a metapage cannot be right, or null. */
const char *VgMetaFault(const Meta &meta, BlockNumber blocks);

/* Fills a new index's metapage: no rows, random incarnation. */
void VgNewMeta(Meta *meta, IndexKind kind, Metric metric, Storage storage, uint32_t dimensions, uint16_t m,
               uint16_t ef_construction);

/*
 * Structure lock: whoever changes regions (flush, vacuum, rebuild) holds it. Scans and inserts never take it. A heavyweight
 * page lock, so that it can be held across I/O and shows up in pg_locks; block 0 is only its name.
 */
void VgLockStructure(Relation index);
bool VgTryLockStructure(Relation index);
void VgUnlockStructure(Relation index);

} // namespace vecgpu
