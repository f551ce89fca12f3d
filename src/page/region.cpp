/*
 * region.cpp: see region.h.
 */
#include "page/region.h"

#include "page/parked.h"

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

/*
 * Initialises consecutive pages and logs them, an empty page at about 90 bytes of WAL. Stops early when the statement is to be
 * canceled, without raising the error: the caller has to put the extent somewhere first. Returns the pages done.
 */
static uint32_t FormatExtent(Relation index, Extent extent, bool is_new, Region region, uint32_t generation,
                             uint64_t epoch)
{
    constexpr uint32_t step = 1024;
    uint32_t done = 0;
    while (done < extent.pages && !QueryCancelPending && !ProcDiePending) {
        uint32_t end = extent.pages - done < step ? extent.pages : done + step;
        BlockNumber first = extent.first_block + done;
        for (; done < end; done++) {
            Buffer buffer = ReadBufferExtended(index, MAIN_FORKNUM, is_new ? P_NEW : extent.first_block + done,
                                               RBM_ZERO_AND_LOCK, nullptr);
            if (BufferGetBlockNumber(buffer) != extent.first_block + done)
                elog(ERROR, "unexpected block %u while extending index \"%s\"", BufferGetBlockNumber(buffer),
                     RelationGetRelationName(index));
            START_CRIT_SECTION();
            VgInitPage(BufferGetPage(buffer), PageKind::Region, static_cast<uint16_t>(region), generation, epoch);
            MarkBufferDirty(buffer);
            END_CRIT_SECTION();
            UnlockReleaseBuffer(buffer);
        }
        if (RelationNeedsWAL(index)) {
            HOLD_INTERRUPTS();
            log_newpage_range(index, MAIN_FORKNUM, first, extent.first_block + done, true);
            RESUME_INTERRUPTS();
        }
    }
    return done;
}

Extent VgTakeExtent(Relation index, Region region, uint32_t generation, uint64_t epoch, uint32_t pages)
{
    Extent extent;
    uint32_t done;
    if (VgTakeParked(index, pages, &extent)) {
        done = FormatExtent(index, extent, false, region, generation, epoch);
    } else {
        /* Everyone who extends this relation takes this lock, so the new blocks are consecutive. */
        LockRelationForExtension(index, ExclusiveLock);
        extent.first_block = RelationGetNumberOfBlocks(index);
        extent.pages = pages;
        if (static_cast<uint64_t>(extent.first_block) + pages >= MaxBlockNumber)
            ereport(ERROR, (errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
                            errmsg("index \"%s\" cannot grow beyond %u blocks", RelationGetRelationName(index),
                                   MaxBlockNumber)));
        done = FormatExtent(index, extent, true, region, generation, epoch);
        UnlockRelationForExtension(index, ExclusiveLock);
        if (done < pages)
            extent.pages = done;
    }
    if (done < pages) {
        VgParkExtents(index, &extent, 1, false);
        CHECK_FOR_INTERRUPTS();
        ereport(ERROR, (errcode(ERRCODE_QUERY_CANCELED), errmsg("canceling statement due to user request")));
    }
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
