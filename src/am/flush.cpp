/*
 * flush.cpp: moves rows of the delta into the graph.
 *
 * A batch: read rows of the delta, insert them into the graph (a few: one by one through an overlay of changed pages; many:
 * by threads in memory, bulkflush.h), write the changed pages, publish. Until the publish nobody can see any of it: new
 * nodes lie beyond the node count of every metapage copy, and links to them are skipped. Whatever ends a batch early, an
 * error or a crash, leaves the delta as it was.
 */
#include "am/bulkflush.h"
#include "am/pagestore.h"
#include "page/overlay.h"

namespace vecgpu {

namespace {

bool Collect(void *context, const DeltaVisit &visit)
{
    Batch *batch = static_cast<Batch *>(context);
    if (batch->count == batch->limit)
        return false;
    if ((visit.meta & kRowStateMask) != kRowLive)
        return true;
    if (batch->count == batch->capacity) {
        batch->capacity = batch->capacity * 2 < batch->limit ? batch->capacity * 2 : batch->limit;
        batch->vectors = static_cast<uint8_t *>(
            repalloc_huge(batch->vectors, static_cast<size_t>(batch->capacity) * batch->row_size));
        batch->rows = static_cast<RowId *>(repalloc_huge(batch->rows, sizeof(RowId) * batch->capacity));
    }
    memcpy(batch->vectors + static_cast<size_t>(batch->count) * batch->row_size, visit.vector, batch->row_size);
    batch->rows[batch->count++] = visit.id;
    return true;
}

/* Rows whose work fits into maintenance_work_mem: each changes up to about 2m + 4 pages, though pages are soon shared. */
uint32_t BatchLimit(const Meta &meta, uint32_t row_size)
{
    uint64_t memory = static_cast<uint64_t>(maintenance_work_mem) * 1024;
    uint64_t all_links = region_pages(region_shape(meta, Region::Links), meta.nodes) * kPageBytes;
    uint64_t per_row = row_size * 2 + 64;
    if (all_links > memory / 2)
        per_row += static_cast<uint64_t>(meta.m) * kPageBytes;
    uint64_t limit = memory / 2 / per_row;
    if (limit < 64)
        limit = 64;
    return limit > 100000 ? 100000 : static_cast<uint32_t>(limit);
}

uint64_t FlushBatch(Relation index, bool *more, GraphCache *cache)
{
    Meta meta;
    VgReadMeta(index, &meta);
    *more = false;
    if (meta.dimensions == 0)
        return 0;
    uint32_t row_size = static_cast<uint32_t>(row_bytes(meta.storage, meta.dimensions));
    Batch batch = {};
    bool threads = VgBulkFlushPays(meta, VgDeltaRows(index, meta), cache);
    batch.limit = threads ? kBulkFlushBytes / row_size + 64 : BatchLimit(meta, row_size);
    batch.capacity = 64 < batch.limit ? 64 : batch.limit;
    batch.row_size = row_size;
    batch.vectors = static_cast<uint8_t *>(MemoryContextAllocHuge(CurrentMemoryContext,
                                                                  static_cast<size_t>(batch.capacity) * row_size));
    batch.rows = static_cast<RowId *>(palloc(sizeof(RowId) * batch.capacity));

    DeltaEnd ends[kDeltaChains];
    for (uint32_t chain = 0; chain < kDeltaChains; chain++)
        if (!VgDeltaScan(index, meta, chain, true, Collect, &batch, &ends[chain]))
            VgCorrupt(index, meta.chains[chain].head_block, "delta page was recycled under the structure lock");
    bool moves = false;
    for (uint32_t chain = 0; chain < kDeltaChains; chain++)
        moves = moves || ends[chain].block != meta.chains[chain].head_block ||
                ends[chain].rows != meta.chains[chain].head_row;
    if (!moves)
        return 0;

    /* An index that is mostly delta is built, by threads, rather than grown row by row. */
    bool mostly_delta = meta.kind == IndexKind::Hnsw && batch.count >= 1000 && batch.count > meta.nodes / 2;
    /* Cells hold slots, twins and upper records; with m = 2 there may be more of the last than of the first. */
    uint64_t numbers = meta.nodes > meta.twins ? meta.nodes : meta.twins;
    if (meta.upper + 2ull * batch.count > numbers)
        numbers = meta.upper + 2ull * batch.count;
    bool needs_wider_cells = numbers + batch.count > max_nodes(meta.cell_width);
    if (mostly_delta || needs_wider_cells)
        return VgRebuild(index); /* takes all of the delta */

    if (meta.metric == Metric::InnerProduct && meta.nodes == 0) {
        /* M of the reduction to L2, from the first rows that there are; a rebuild draws it anew, longer rows are clamped. */
        float *scratch = static_cast<float *>(palloc(sizeof(float) * meta.dimensions));
        meta.max_norm = largest_norm(meta.storage, batch.vectors, batch.count, meta.dimensions, scratch);
        pfree(scratch);
    }
    DeltaChain before[kDeltaChains];
    memcpy(before, meta.chains, sizeof(before));
    ChangedBlocks changed;
    VgInitChanged(&changed, kJournalPerPage);
    if (threads && batch.count > 0) {
        VgBulkFlush(index, &meta, batch, &changed, cache);
    } else if (batch.count > 0) {
        PageStore store;
        store.open(index, &meta, batch.count);
        for (uint32_t i = 0; i < batch.count; i++) {
            CHECK_FOR_INTERRUPTS();
            store.add(batch.rows[i], batch.vectors + static_cast<size_t>(i) * row_size);
        }
        store.apply(meta.epoch + 1, &changed);
    }
    VgPublish(index, &meta, ends, &changed);
    if (threads && cache != nullptr)
        VgGraphCachePublished(cache, meta);
    bool freed = false;
    for (uint32_t chain = 0; chain < kDeltaChains; chain++)
        freed |= VgDeltaFree(index, before[chain], ends[chain], row_size);
    if (freed)
        IndexFreeSpaceMapVacuum(index); /* else the freed pages are found only after the next VACUUM */
    *more = batch.count == batch.limit;
    return batch.count;
}

} // namespace

uint64_t VgFlush(Relation index, GraphCache *cache)
{
    MemoryContext context = AllocSetContextCreate(CurrentMemoryContext, "vecgpu flush", ALLOCSET_DEFAULT_SIZES);
    MemoryContext old = MemoryContextSwitchTo(context);
    uint64_t rows = 0;
    bool more = true;
    while (more) {
        rows += FlushBatch(index, &more, cache);
        MemoryContextReset(context);
    }
    MemoryContextSwitchTo(old);
    MemoryContextDelete(context);
    return rows;
}

} // namespace vecgpu

extern "C" {
PG_FUNCTION_INFO_V1(vecgpu_flush);

Datum vecgpu_flush(PG_FUNCTION_ARGS)
{
    using namespace vecgpu;
    Relation index = VgOpenIndex(PG_GETARG_OID(0), RowExclusiveLock, true);
    PreventCommandDuringRecovery("vecgpu_flush()");
    VgLockStructure(index);
    uint64_t rows = VgFlush(index, nullptr);
    VgUnlockStructure(index);
    index_close(index, RowExclusiveLock);
    PG_RETURN_INT64(static_cast<int64>(rows));
}
}
