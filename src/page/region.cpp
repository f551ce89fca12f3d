/*
 * region.cpp: see region.h.
 */
#include "page/region.h"

namespace vecgpu {

void VgOpenRegions(Regions *regions, Relation index, const Meta *meta)
{
    regions->index = index;
    regions->meta = meta;
    regions->recent = VgRecentBuffers(index);
    for (int r = 0; r < kRegions; r++) {
        if (meta->dimensions == 0)
            regions->shape[r] = {0, 0};
        else
            regions->shape[r] = region_shape(*meta, static_cast<Region>(r));
    }
}

Buffer VgReadRegionPage(const Regions &regions, Region region, uint32_t page)
{
    BlockNumber block = region_block(Directory(regions, region), page);
    if (block == kNoBlock)
        VgCorrupt(regions.index, 0, "record beyond the end of its region");
    Buffer buffer = VgReadRecent(regions.index, regions.recent, block);
    LockBuffer(buffer, BUFFER_LOCK_SHARE);
    if (!IsRegionPage(BufferGetPage(buffer), region, regions.meta->generation))
        VgRecycled(regions.index, block, "not a page of the expected region");
    return buffer;
}

void VgReadRecord(const Regions &regions, Region region, uint32_t record, void *out)
{
    const RegionShape &shape = Shape(regions, region);
    RecordAddress at = record_address(shape, record);
    uint8_t *to = static_cast<uint8_t *>(out);
    uint32_t left = shape.record_bytes;
    while (left > 0) {
        uint32_t part = kPayloadBytes - at.offset < left ? kPayloadBytes - at.offset : left;
        Buffer buffer = VgReadRegionPage(regions, region, at.page);
        memcpy(to, Payload(BufferGetPage(buffer)) + at.offset, part);
        UnlockReleaseBuffer(buffer);
        to += part;
        left -= part;
        at.page++;
        at.offset = 0;
    }
}

/* ---- extents ---- */

/* Initialises consecutive pages and logs them in records of up to 32 pages; an empty page costs about 90 bytes of WAL. */
static void FormatExtent(Relation index, Extent extent, bool is_new, Region region, uint32_t generation, uint64_t epoch)
{
    for (uint32_t i = 0; i < extent.pages; i++) {
        CHECK_FOR_INTERRUPTS();
        Buffer buffer = ReadBufferExtended(index, MAIN_FORKNUM, is_new ? P_NEW : extent.first_block + i,
                                           RBM_ZERO_AND_LOCK, nullptr);
        if (BufferGetBlockNumber(buffer) != extent.first_block + i)
            elog(ERROR, "unexpected block %u while extending index \"%s\"", BufferGetBlockNumber(buffer),
                 RelationGetRelationName(index));
        START_CRIT_SECTION();
        VgInitPage(BufferGetPage(buffer), PageKind::Region, static_cast<uint16_t>(region), generation, epoch);
        MarkBufferDirty(buffer);
        END_CRIT_SECTION();
        UnlockReleaseBuffer(buffer);
    }
    if (RelationNeedsWAL(index))
        log_newpage_range(index, MAIN_FORKNUM, extent.first_block, extent.first_block + extent.pages, true);
}

/* Takes pages out of a parked extent that every snapshot is past, smallest fit first; false if there is none. */
static bool TakeParked(Relation index, uint32_t pages, Extent *taken)
{
    Meta meta;
    VgReadMeta(index, &meta);
    if (meta.parked == 0 || meta.parked_block == kNoBlock)
        return false;

    Buffer meta_buffer = VgReadPage(index, 0, BUFFER_LOCK_EXCLUSIVE);
    Buffer buffer = VgReadPage(index, meta.parked_block, BUFFER_LOCK_EXCLUSIVE);
    if (!VgPageIs(BufferGetPage(buffer), PageKind::Parked))
        VgCorrupt(index, meta.parked_block, "not a list of parked extents");
    const ParkedExtent *list = reinterpret_cast<const ParkedExtent *>(Payload(BufferGetPage(buffer)));
    int best = -1;
    for (uint32_t i = 0; i < meta.parked; i++) {
        if (list[i].pages >= pages && (best < 0 || list[i].pages < list[best].pages) &&
            GlobalVisCheckRemovableFullXid(nullptr, FullTransactionIdFromU64(list[i].xid)))
            best = static_cast<int>(i);
    }
    if (best >= 0) {
        GenericXLogState *state = GenericXLogStart(index);
        Page meta_page = GenericXLogRegisterBuffer(state, meta_buffer, 0);
        Page page = GenericXLogRegisterBuffer(state, buffer, 0);
        ParkedExtent *entries = reinterpret_cast<ParkedExtent *>(Payload(page));
        taken->first_block = entries[best].first_block;
        taken->pages = pages;
        entries[best].first_block += pages;
        entries[best].pages -= pages;
        if (entries[best].pages == 0) {
            entries[best] = entries[meta.parked - 1];
            MetaOf(meta_page)->parked = meta.parked - 1;
        }
        GenericXLogFinish(state);
    }
    UnlockReleaseBuffer(buffer);
    UnlockReleaseBuffer(meta_buffer);
    return best >= 0;
}

Extent VgTakeExtent(Relation index, Region region, uint32_t generation, uint64_t epoch, uint32_t pages)
{
    Extent extent;
    if (TakeParked(index, pages, &extent)) {
        FormatExtent(index, extent, false, region, generation, epoch);
        return extent;
    }
    /* Everyone who extends this relation takes this lock, so the new blocks are consecutive. */
    LockRelationForExtension(index, ExclusiveLock);
    extent.first_block = RelationGetNumberOfBlocks(index);
    extent.pages = pages;
    if (static_cast<uint64_t>(extent.first_block) + pages >= MaxBlockNumber)
        ereport(ERROR, (errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
                        errmsg("index \"%s\" cannot grow beyond %u blocks", RelationGetRelationName(index),
                               MaxBlockNumber)));
    FormatExtent(index, extent, true, region, generation, epoch);
    UnlockRelationForExtension(index, ExclusiveLock);
    return extent;
}

static void AddExtent(Relation index, RegionDirectory *directory, Extent extent)
{
    if (directory->extents > 0) {
        Extent *last = &directory->extent[directory->extents - 1];
        if (last->first_block + last->pages == extent.first_block) {
            last->pages += extent.pages;
            directory->pages += extent.pages;
            return;
        }
    }
    if (directory->extents == kMaxExtents)
        ereport(ERROR, (errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
                        errmsg("index \"%s\" has too many extents", RelationGetRelationName(index)),
                        errhint("Please REINDEX it.")));
    directory->extent[directory->extents++] = extent;
    directory->pages += extent.pages;
}

void VgGrowRegion(Relation index, Meta *meta, Region region, uint64_t records)
{
    RegionDirectory *directory = &meta->regions[static_cast<int>(region)];
    uint64_t needed = region_pages(region_shape(*meta, region), records);
    if (needed <= directory->pages)
        return;
    needed -= directory->pages;

    /*
     * A quarter more, but at most 32 MB: what is taken ahead lies idle, and inserters wait while the file is extended. Only
     * when the directory fills up the steps grow, so that it never gets full.
     */
    uint64_t share = directory->extents < 32 ? directory->pages / 4 : directory->pages;
    uint64_t pages = needed;
    if (share > 4096 && directory->extents < 24)
        share = 4096;
    if (pages < share)
        pages = share;
    if (pages < 4)
        pages = 4;
    if (pages > MaxBlockNumber)
        pages = MaxBlockNumber;
    Extent extent = VgTakeExtent(index, region, meta->generation, meta->epoch, static_cast<uint32_t>(pages));

    Buffer buffer = VgReadPage(index, 0, BUFFER_LOCK_EXCLUSIVE);
    VgCheckMeta(index, BufferGetPage(buffer));
    GenericXLogState *state = GenericXLogStart(index);
    Meta *on_page = MetaOf(GenericXLogRegisterBuffer(state, buffer, 0));
    AddExtent(index, &on_page->regions[static_cast<int>(region)], extent);
    *directory = on_page->regions[static_cast<int>(region)];
    GenericXLogFinish(state);
    UnlockReleaseBuffer(buffer);
}

void VgParkExtents(Relation index, const Extent *extents, uint32_t count)
{
    if (count == 0)
        return;
    uint64_t xid = U64FromFullTransactionId(ReadNextFullTransactionId());

    /* Under the structure lock nobody else sets parked_block; a new page is locked first since no one else can reach it. */
    Meta meta;
    VgReadMeta(index, &meta);
    bool is_new = meta.parked_block == kNoBlock;
    Buffer buffer = is_new ? VgTakePage(index) : InvalidBuffer;
    Buffer meta_buffer = VgReadPage(index, 0, BUFFER_LOCK_EXCLUSIVE);
    if (!is_new)
        buffer = VgReadPage(index, meta.parked_block, BUFFER_LOCK_EXCLUSIVE);

    GenericXLogState *state = GenericXLogStart(index);
    Meta *on_page = MetaOf(GenericXLogRegisterBuffer(state, meta_buffer, 0));
    Page page = GenericXLogRegisterBuffer(state, buffer, is_new ? GENERIC_XLOG_FULL_IMAGE : 0);
    if (is_new) {
        VgInitPage(page, PageKind::Parked, 0, 0, on_page->epoch);
        SetPayloadUsed(page, kMaxParked * sizeof(ParkedExtent));
        on_page->parked_block = BufferGetBlockNumber(buffer);
    }
    ParkedExtent *list = reinterpret_cast<ParkedExtent *>(Payload(page));
    for (uint32_t i = 0; i < count; i++) {
        if (extents[i].pages == 0)
            continue;
        if (on_page->parked < kMaxParked) {
            list[on_page->parked++] = {xid, extents[i].first_block, extents[i].pages};
            continue;
        }
        /* The list is full: the smallest extent is given up until the next REINDEX. */
        uint32_t smallest = 0;
        for (uint32_t j = 1; j < kMaxParked; j++)
            if (list[j].pages < list[smallest].pages)
                smallest = j;
        if (list[smallest].pages < extents[i].pages)
            list[smallest] = {xid, extents[i].first_block, extents[i].pages};
    }
    GenericXLogFinish(state);
    UnlockReleaseBuffer(buffer);
    UnlockReleaseBuffer(meta_buffer);
}

/* ---- single pages ---- */

Buffer VgTakePage(Relation index)
{
    for (;;) {
        BlockNumber block = GetFreeIndexPage(index);
        if (block == InvalidBlockNumber)
            break;
        if (block >= RelationGetNumberOfBlocks(index))
            continue; /* the map outlived a crash that the page did not */
        /* The map is not crash-safe and may name a page twice: look at the page itself, and never wait for it. */
        Buffer buffer = ReadBuffer(index, block);
        if (ConditionalLockBuffer(buffer)) {
            Page page = BufferGetPage(buffer);
            if (PageIsNew(page) || VgPageIs(page, PageKind::Free))
                return buffer;
            LockBuffer(buffer, BUFFER_LOCK_UNLOCK);
        }
        ReleaseBuffer(buffer);
    }
    LockRelationForExtension(index, ExclusiveLock);
    Buffer buffer = ReadBufferExtended(index, MAIN_FORKNUM, P_NEW, RBM_ZERO_AND_LOCK, nullptr);
    UnlockRelationForExtension(index, ExclusiveLock);
    return buffer;
}

void VgFreePage(Relation index, BlockNumber block)
{
    Buffer buffer = VgReadPage(index, block, BUFFER_LOCK_EXCLUSIVE);
    GenericXLogState *state = GenericXLogStart(index);
    Page page = GenericXLogRegisterBuffer(state, buffer, GENERIC_XLOG_FULL_IMAGE);
    VgInitPage(page, PageKind::Free, 0, 0, 0);
    GenericXLogFinish(state);
    UnlockReleaseBuffer(buffer);
    RecordFreeIndexPage(index, block);
}

} // namespace vecgpu
