/*
 * page.cpp: page initialisation and checks, metapage access, structure lock.
 */
#include "page/page.h"

namespace vecgpu {

void VgInitPage(Page page, PageKind kind, uint16_t region, uint32_t sequence, uint64_t epoch)
{
    PageInit(page, kPageBytes, sizeof(PageTrailer));
    PageTrailer *trailer = Trailer(page);
    trailer->kind = kind;
    trailer->region = region;
    trailer->sequence = sequence;
    trailer->epoch = epoch;
}

void VgCorrupt(Relation index, BlockNumber block, const char *reason)
{
    ereport(ERROR, (errcode(ERRCODE_INDEX_CORRUPTED),
                    errmsg("index \"%s\" is damaged at block %u: %s", RelationGetRelationName(index), block, reason),
                    errhint("Please REINDEX it.")));
    pg_unreachable();
}

void VgRecycled(Relation index, BlockNumber block, const char *reason)
{
    /*
     * On the primary the snapshot of a scan keeps its pages from being recycled. A standby that gives no feedback
     * cannot do so, and answers as PostgreSQL does when replay removes rows under a query.
     */
    if (RecoveryInProgress())
        ereport(ERROR, (errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
                        errmsg("canceling statement due to conflict with recovery"),
                        errdetail("Replay has recycled block %u of index \"%s\" under this scan.", block,
                                  RelationGetRelationName(index))));
    VgCorrupt(index, block, reason);
}

bool VgPageIs(Page page, PageKind kind, uint16_t region)
{
    if (PageIsNew(page) || PageGetSpecialSize(page) != sizeof(PageTrailer))
        return false;
    const PageTrailer *trailer = Trailer(page);
    return trailer->kind == kind && (kind != PageKind::Region || trailer->region == region);
}

Buffer VgReadPage(Relation index, BlockNumber block, int mode)
{
    /* Numbers of blocks come from pages, and a damaged one is not to be mistaken for a missing file. */
    if (block != 0 && block >= RelationGetNumberOfBlocks(index))
        VgCorrupt(index, block, "the block lies beyond the end of the file");
    Buffer buffer = ReadBuffer(index, block);
    LockBuffer(buffer, mode);
    return buffer;
}

void VgInitMetaPage(Page page, const Meta &meta)
{
    VgInitPage(page, PageKind::Meta, 0, 0, meta.epoch);
    memcpy(MetaOf(page), &meta, sizeof(Meta));
    SetPayloadUsed(page, sizeof(Meta));
}

const char *VgMetaFault(const Meta &meta, BlockNumber blocks)
{
    if (const char *fault = meta_fault(meta))
        return fault;
    for (int r = 0; r < kRegions; r++) {
        const RegionDirectory &directory = meta.regions[r];
        uint64_t pages = 0;
        if (directory.extents > kMaxExtents)
            return "too many extents";
        for (uint32_t i = 0; i < directory.extents; i++) {
            const Extent &extent = directory.extent[i];
            if (extent.first_block == 0 || static_cast<uint64_t>(extent.first_block) + extent.pages > blocks)
                return "extent beyond the end of the file";
            pages += extent.pages;
        }
        if (pages != directory.pages)
            return "extents do not add up";
        if (meta.dimensions == 0)
            continue;
        Region region = static_cast<Region>(r);
        if (meta.kind == IndexKind::Flat && (region == Region::Links || region == Region::Upper))
            continue;
        uint64_t records = region == Region::Twins ? meta.twins : region == Region::Upper ? meta.upper : meta.nodes;
        if (region_pages(region_shape(meta, region), records) > pages)
            return "region is shorter than its records";
    }
    return nullptr;
}

const Meta *VgCheckMeta(Relation index, Page page)
{
    if (!VgPageIs(page, PageKind::Meta))
        VgCorrupt(index, 0, "not a vecgpu metapage");
    const Meta *meta = MetaOf(page);
    const char *fault = VgMetaFault(*meta, MaxBlockNumber);
    if (fault != nullptr)
        VgCorrupt(index, 0, fault);
    return meta;
}

void VgReadMeta(Relation index, Meta *meta)
{
    Buffer buffer = VgReadPage(index, 0, BUFFER_LOCK_SHARE);
    memcpy(meta, VgCheckMeta(index, BufferGetPage(buffer)), sizeof(Meta));
    UnlockReleaseBuffer(buffer);
}

void VgNewMeta(Meta *meta, IndexKind kind, Metric metric, Storage storage, uint32_t dimensions, uint16_t m,
               uint16_t ef_construction)
{
    memset(meta, 0, sizeof(Meta));
    meta->magic = kMagic;
    meta->version = kFormatVersion;
    meta->kind = kind;
    meta->metric = metric;
    meta->storage = storage;
    meta->cell_width = 2;
    meta->dimensions = dimensions;
    meta->m = m;
    meta->ef_construction = ef_construction;
    meta->generation = 1;
    meta->incarnation = pg_prng_uint64(&pg_global_prng_state);
    meta->epoch = 1;
    meta->entry_handle = kNone;
    meta->entry_level = 0;
    meta->journal_block = kNoBlock;
    meta->parked_block = kNoBlock;
    for (DeltaChain &chain : meta->chains) {
        chain.head_block = kNoBlock;
        chain.tail_block = kNoBlock;
    }
}

void VgLockStructure(Relation index)
{
    LockPage(index, 0, ExclusiveLock);
}

bool VgTryLockStructure(Relation index)
{
    return ConditionalLockPage(index, 0, ExclusiveLock);
}

void VgUnlockStructure(Relation index)
{
    UnlockPage(index, 0, ExclusiveLock);
}

} // namespace vecgpu
