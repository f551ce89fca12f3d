/*
 * rebuild.cpp: builds the graph of a live index anew, from its own pages.
 *
 * Reads the live rows of the slots, the twins and the delta, builds a graph of the next generation on new extents, and
 * publishes it. The old extents keep their bytes until every snapshot that may still read them is gone (parked).
 * Scans and inserts go on all the while.
 */
#include "am/nodeset.h"
#include "page/delta.h"
#include "page/graph.h"
#include "page/parked.h"

namespace vecgpu {

namespace {

void Load(Relation index, NodeSet *set, const Meta &meta)
{
    Regions regions;
    VgOpenRegions(&regions, index, &meta);
    uint8_t *vector = static_cast<uint8_t *>(palloc(set->row_size));
    for (uint32_t slot = 0; slot < meta.nodes; slot++) {
        if (slot % 256 == 0)
            VgVacuumDelayPoint();
        SlotRecord record;
        VgReadSlot(regions, slot, &record);
        bool have_vector = false;
        if ((record.meta & kRowStateMask) == kRowLive) {
            VgReadRecord(regions, Region::Vectors, slot, vector);
            have_vector = true;
            memcpy(VgAddRow(set, record.row), vector, set->row_size);
        }
        if (!(record.meta & kRowHasTwins))
            continue;
        uint32_t steps = 0;
        for (uint32_t twin = VgFirstTwin(regions, slot); twin < meta.twins && steps <= meta.twins; steps++) {
            CHECK_FOR_INTERRUPTS();
            TwinRecord entry;
            VgReadRecord(regions, Region::Twins, twin, &entry);
            if (entry.slot != slot)
                break;
            if ((entry.meta & kRowStateMask) == kRowLive) {
                if (!have_vector)
                    VgReadRecord(regions, Region::Vectors, slot, vector);
                have_vector = true;
                memcpy(VgAddRow(set, entry.row), vector, set->row_size);
            }
            twin = entry.next;
        }
    }
    pfree(vector);
}

bool LoadDelta(void *context, const DeltaVisit &visit)
{
    NodeSet *set = static_cast<NodeSet *>(context);
    if ((visit.meta & kRowStateMask) == kRowLive)
        memcpy(VgAddRow(set, visit.id), visit.vector, set->row_size);
    return true;
}

} // namespace

uint64_t VgRebuild(Relation index)
{
    MemoryContext context = AllocSetContextCreate(CurrentMemoryContext, "vecgpu rebuild", ALLOCSET_DEFAULT_SIZES);
    MemoryContext old = MemoryContextSwitchTo(context);
    Meta *meta = static_cast<Meta *>(palloc(sizeof(Meta)));
    VgReadMeta(index, meta);
    if (meta->dimensions == 0) {
        MemoryContextSwitchTo(old);
        MemoryContextDelete(context);
        return 0;
    }

    NodeSet *set = static_cast<NodeSet *>(palloc(sizeof(NodeSet)));
    VgInitNodeSet(set, meta, false);
    DeltaEnd ends[kDeltaChains];
    Load(index, set, *meta);
    uint64_t in_graph = set->count;
    for (uint32_t chain = 0; chain < kDeltaChains; chain++)
        if (!VgDeltaScan(index, *meta, chain, true, LoadDelta, set, &ends[chain]))
            VgCorrupt(index, meta->chains[chain].head_block, "delta page was recycled under the structure lock");
    uint64_t from_delta = set->count - in_graph;
    VgBuildNodeSet(set);

    Extent retired[kRegions * kMaxExtents];
    uint32_t count = 0;
    for (const RegionDirectory &directory : meta->regions)
        for (uint32_t i = 0; i < directory.extents; i++)
            retired[count++] = directory.extent[i];
    DeltaChain before[kDeltaChains];
    memcpy(before, meta->chains, sizeof(before));

    VgPrepareParked(index);
    meta->generation++;
    VgWriteNodeSet(set, index, meta, false);
    ChangedBlocks changed;
    VgInitChanged(&changed, kJournalPerPage);
    changed.overflow = true; /* everything is new: a mirror reloads */
    VgPublishRebuild(index, meta, ends, &changed, retired, count);
    uint32_t row_size = set->row_size;
    for (uint32_t chain = 0; chain < kDeltaChains; chain++)
        VgDeltaFree(index, before[chain], ends[chain], row_size);
    IndexFreeSpaceMapVacuum(index);
    VgFreeNodeSet(set);
    MemoryContextSwitchTo(old);
    MemoryContextDelete(context);
    return from_delta;
}

} // namespace vecgpu
