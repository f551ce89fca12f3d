/*
 * vacuum.cpp: takes dead rows out of the index.
 *
 * Bulk delete marks them, in the delta and in the slots; the nodes stay in the graph as way points. When every fifth row
 * is dead, cleanup builds the graph anew from the live ones. Both hold the structure lock, so no row can move from the
 * delta to the graph while they look for it; inserts and scans go on.
 */
#include "am/am.h"
#include "page/publish.h"
#include "page/region.h"
#include "page/parked.h"

namespace vecgpu {

namespace {

constexpr double kRebuildShare = 0.2;

/* One pass over the records of a region that start with a RowId and a state. */
struct Sweep {
    uint64_t live;
    uint64_t removed; /* now */
    uint64_t dead;    /* all; a vacuum that was canceled may have marked some without counting them */
};

void SweepRegion(Relation index, const Meta &meta, Region region, uint32_t records, IndexBulkDeleteCallback callback,
                 void *state, uint64_t epoch, ChangedBlocks *changed, Sweep *sweep)
{
    RegionShape shape = region_shape(meta, region);
    const RegionDirectory &directory = meta.regions[static_cast<int>(region)];
    bool *dead = static_cast<bool *>(palloc(shape.per_page));
    for (uint32_t first = 0, page_number = 0; first < records; first += shape.per_page, page_number++) {
        VgVacuumDelayPoint();
        uint32_t count = records - first < shape.per_page ? records - first : shape.per_page;
        BlockNumber block = region_block(directory, page_number);
        if (block == kNoBlock)
            VgCorrupt(index, 0, "record beyond the end of its region");

        /* Look under a share lock; most pages have nothing to remove. Only we turn live into dead. */
        Buffer buffer = VgReadPage(index, block, BUFFER_LOCK_SHARE);
        Page page = BufferGetPage(buffer);
        if (!VgPageIs(page, PageKind::Region, static_cast<uint16_t>(region)) ||
            Trailer(page)->sequence != meta.generation)
            VgCorrupt(index, block, "not a page of the expected region");
        uint32_t found = 0;
        for (uint32_t i = 0; i < count; i++) {
            SlotRecord record;
            memcpy(&record, Payload(page) + static_cast<size_t>(i) * shape.record_bytes, sizeof(record));
            dead[i] = false;
            if ((record.meta & kRowStateMask) != kRowLive) {
                sweep->dead++;
                continue;
            }
            ItemPointerData tid = TidOf(record.row);
            dead[i] = callback(&tid, state);
            if (dead[i])
                found++;
            else
                sweep->live++;
        }
        if (found > 0) {
            LockBuffer(buffer, BUFFER_LOCK_UNLOCK);
            LockBuffer(buffer, BUFFER_LOCK_EXCLUSIVE);
            GenericXLogState *log = GenericXLogStart(index);
            page = GenericXLogRegisterBuffer(log, buffer, 0);
            for (uint32_t i = 0; i < count; i++) {
                if (!dead[i])
                    continue;
                uint8_t *at = Payload(page) + static_cast<size_t>(i) * shape.record_bytes + sizeof(RowId);
                uint16_t row_meta;
                memcpy(&row_meta, at, sizeof(row_meta));
                row_meta = static_cast<uint16_t>((row_meta & ~kRowStateMask) | kRowDead);
                memcpy(at, &row_meta, sizeof(row_meta));
            }
            Trailer(page)->epoch = epoch;
            GenericXLogFinish(log);
            VgNoteChanged(changed, block);
            sweep->removed += found;
            sweep->dead += found;
        }
        UnlockReleaseBuffer(buffer);
    }
    pfree(dead);
}

} // namespace

IndexBulkDeleteResult *VgBulkDelete(IndexVacuumInfo *info, IndexBulkDeleteResult *stats,
                                    IndexBulkDeleteCallback callback, void *state)
{
    Relation index = info->index;
    if (stats == nullptr)
        stats = static_cast<IndexBulkDeleteResult *>(palloc0(sizeof(IndexBulkDeleteResult)));

    VgLockStructure(index);
    Meta meta;
    VgReadMeta(index, &meta);
    ChangedBlocks changed;
    VgInitChanged(&changed, kJournalPerPage);
    Sweep slots = {0, 0, 0};
    Sweep twins = {0, 0, 0};
    uint64_t delta_removed = 0;
    if (meta.dimensions > 0) {
        SweepRegion(index, meta, Region::Slots, meta.nodes, callback, state, meta.epoch + 1, &changed, &slots);
        SweepRegion(index, meta, Region::Twins, meta.twins, callback, state, meta.epoch + 1, &changed, &twins);
    }
    uint64_t delta_live = VgDeltaVacuum(index, callback, state, &delta_removed);
    /* The rows are marked; the epoch tells every mirror before the heap may use their TIDs again. */
    if (slots.removed + twins.removed + delta_removed > 0 || slots.dead != meta.dead_nodes ||
        twins.dead != meta.dead_twins) {
        meta.dead_nodes = static_cast<uint32_t>(slots.dead);
        meta.dead_twins = static_cast<uint32_t>(twins.dead);
        VgPublish(index, &meta, nullptr, &changed);
    }
    VgUnlockStructure(index);

    stats->tuples_removed += static_cast<double>(slots.removed + twins.removed + delta_removed);
    stats->num_index_tuples = static_cast<double>(slots.live + twins.live + delta_live);
    return stats;
}

IndexBulkDeleteResult *VgVacuumCleanup(IndexVacuumInfo *info, IndexBulkDeleteResult *stats)
{
    Relation index = info->index;
    if (info->analyze_only)
        return stats;

    VgLockStructure(index);
    VgFlush(index, nullptr);
    Meta meta;
    VgReadMeta(index, &meta);
    double rows = static_cast<double>(meta.nodes) + meta.twins;
    double dead = static_cast<double>(meta.dead_nodes) + meta.dead_twins;
    if (dead > 0 && dead >= kRebuildShare * rows)
        VgRebuild(index);
    VgUnlockStructure(index);
    IndexFreeSpaceMapVacuum(index);

    VgReadMeta(index, &meta);
    if (stats == nullptr) {
        stats = static_cast<IndexBulkDeleteResult *>(palloc0(sizeof(IndexBulkDeleteResult)));
        stats->num_index_tuples = static_cast<double>(meta.nodes) + meta.twins - meta.dead_nodes - meta.dead_twins +
                                  static_cast<double>(VgDeltaRows(index, meta));
    }
    stats->num_pages = RelationGetNumberOfBlocks(index);
    stats->pages_free = static_cast<BlockNumber>(VgParkedPages(index, meta));
    return stats;
}

} // namespace vecgpu
