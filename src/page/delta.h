/*
 * delta.h: rows that are in the index but not yet in its graph.
 *
 * kDeltaChains chains of pages; a writer appends to the chain of its process number. A chain is read from its head to its
 * tail; (block, sequence) names a page, and a sequence is never used twice, so a reader notices a page that
 * was flushed and recycled under it. Rows are removed only by a publish (publish.h), which moves the heads.
 */
#pragma once

#include "page/page.h"

namespace vecgpu {

inline RowId RowIdOf(const ItemPointerData &tid)
{
    return {tid.ip_blkid.bi_hi, tid.ip_blkid.bi_lo, tid.ip_posid};
}

inline ItemPointerData TidOf(const RowId &row)
{
    ItemPointerData tid;
    tid.ip_blkid.bi_hi = row.block_high;
    tid.ip_blkid.bi_lo = row.block_low;
    tid.ip_posid = row.offset;
    return tid;
}

/* Where this backend appended last; a hint, checked at every use. */
struct DeltaCursor {
    uint32_t block;
    uint32_t sequence;
};

/*
 * Appends a row. `row` has row_bytes(storage, dimensions) bytes. One WAL record for most rows. Returns the number of pages of
 * all chains when a page was added, else 0.
 */
uint32_t VgDeltaAppend(Relation index, const RowId &id, const uint8_t *row, uint32_t row_size, DeltaCursor *cursor);

/* One row as a visitor sees it; `vector` is valid during the call only. */
struct DeltaVisit {
    RowId id;
    uint16_t meta;
    const uint8_t *vector;
    uint32_t block; /* of the delta page */
};

/* False stops the scan before this row. */
typedef bool (*DeltaVisitor)(void *context, const DeltaVisit &visit);

/* How far a scan of the delta came, by chain: what a flush may remove, and the pages that become free. */
struct DeltaEnd {
    uint32_t block;
    uint32_t sequence;
    uint32_t rows;
    uint32_t passed; /* pages before it */
};

/*
 * Visits the rows of one chain that `meta` still holds, oldest first. False if a page was recycled meanwhile: the caller
 * starts again with a fresh metapage. `end` may be null. A page is locked only while its rows are visited.
 */
bool VgDeltaScan(Relation index, const Meta &meta, uint32_t chain, bool with_vectors, DeltaVisitor visitor,
                 void *context, DeltaEnd *end);

/* Marks rows dead for which the callback says so. Returns rows kept; *removed counts the others. Structure lock held. */
uint64_t VgDeltaVacuum(Relation index, IndexBulkDeleteCallback callback, void *state, uint64_t *removed);

/*
 * Frees what a publish has cut off: the pages from the head `from` up to the page `to`, and the overflow pages of the rows before
 * `to`. A reader that still wants one of them sees that its sequence is another. True if anything was freed.
 */
bool VgDeltaFree(Relation index, const DeltaChain &from, const DeltaEnd &to, uint32_t row_size);

/* Rows that wait (dead ones included), by reading the page headers. */
uint64_t VgDeltaRows(Relation index, const Meta &meta);

} // namespace vecgpu
