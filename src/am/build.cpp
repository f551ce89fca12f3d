/*
 * build.cpp: CREATE INDEX and REINDEX: read the table, build the graph in memory, write the pages in order.
 */
#include "am/nodeset.h"
#include "am/phases.h"
#include "page/delta.h"

namespace vecgpu {

namespace {

struct BuildState {
    const VgOpclass *opclass;
    Meta meta;
    bool ready; /* dimensions are known and `set` is set up */
    NodeSet set;
    MemoryContext context;
    MemoryContext row_context;
    double indexed;
};

void AddTuple(Relation index, ItemPointer tid, Datum *values, bool *isnull, bool alive, void *context)
{
    (void) index;
    (void) alive;
    BuildState *state = static_cast<BuildState *>(context);
    if (isnull[0])
        return;
    MemoryContext old = MemoryContextSwitchTo(state->row_context);
    VgVector vector = state->opclass->read(values[0]);
    VgCheckFinite(vector.data, vector.dimensions);
    if (!state->ready) {
        if (state->meta.dimensions == 0)
            state->meta.dimensions = vector.dimensions;
        MemoryContextSwitchTo(state->context);
        VgInitNodeSet(&state->set, &state->meta, true);
        MemoryContextSwitchTo(state->row_context);
        state->ready = true;
    }
    VgCheckDimensions(state->meta.dimensions, vector.dimensions);
    if (VgIsIndexable(state->meta.metric, vector)) {
        MemoryContextSwitchTo(state->context);
        float error = VgEncode(state->meta.metric, state->meta.storage, vector, VgAddRow(&state->set, RowIdOf(*tid)));
        if (error > state->meta.max_error)
            state->meta.max_error = error;
        state->indexed++;
    }
    MemoryContextSwitchTo(old);
    MemoryContextReset(state->row_context);
}

void WriteMetaPage(Relation index, ForkNumber fork, const Meta &meta, bool is_new)
{
    Buffer buffer = ReadBufferExtended(index, fork, is_new ? P_NEW : 0, RBM_ZERO_AND_LOCK, nullptr);
    START_CRIT_SECTION();
    VgInitMetaPage(BufferGetPage(buffer), meta);
    MarkBufferDirty(buffer);
    /* An init fork is logged even though its relation is not: a crash copies it over the main fork. */
    if (fork == INIT_FORKNUM)
        log_newpage_buffer(buffer, true);
    END_CRIT_SECTION();
    UnlockReleaseBuffer(buffer);
}

void NewMeta(Relation index, Meta *meta)
{
    VgOptions options = VgOptionsOf(index);
    VgNewMeta(meta, static_cast<IndexKind>(options.kind), VgOpclassOf(index)->metric,
              static_cast<Storage>(options.storage), static_cast<uint32_t>(options.dimensions),
              static_cast<uint16_t>(options.m), static_cast<uint16_t>(options.ef_construction));
}

} // namespace

IndexBuildResult *VgBuild(Relation heap, Relation index, IndexInfo *info)
{
    if (RelationGetNumberOfBlocks(index) != 0)
        elog(ERROR, "index \"%s\" already contains data", RelationGetRelationName(index));

    /* The state lives in its own context: its arenas are unmapped with it, whatever way this ends. */
    MemoryContext context = AllocSetContextCreate(CurrentMemoryContext, "vecgpu build", ALLOCSET_DEFAULT_SIZES);
    MemoryContext old = MemoryContextSwitchTo(context);
    BuildState *state = static_cast<BuildState *>(palloc0(sizeof(BuildState)));
    state->context = context;
    state->row_context = AllocSetContextCreate(context, "vecgpu build row", ALLOCSET_DEFAULT_SIZES);
    state->opclass = VgOpclassOf(index);
    NewMeta(index, &state->meta);

    pgstat_progress_update_param(PROGRESS_CREATEIDX_SUBPHASE, kPhaseLoad);
    double heap_rows = table_index_build_scan(heap, index, info, true, true, AddTuple, state, nullptr);

    WriteMetaPage(index, MAIN_FORKNUM, state->meta, true);
    if (state->ready) {
        VgBuildNodeSet(&state->set);
        VgWriteNodeSet(&state->set, index, &state->meta, true);
        WriteMetaPage(index, MAIN_FORKNUM, state->meta, false);
        VgFreeNodeSet(&state->set);
    }
    if (RelationNeedsWAL(index))
        log_newpage_range(index, MAIN_FORKNUM, 0, RelationGetNumberOfBlocks(index), true);

    IndexBuildResult *result;
    MemoryContextSwitchTo(old);
    result = static_cast<IndexBuildResult *>(palloc(sizeof(IndexBuildResult)));
    result->heap_tuples = heap_rows;
    result->index_tuples = state->indexed;
    MemoryContextDelete(context);
    return result;
}

void VgBuildEmpty(Relation index)
{
    Meta meta;
    NewMeta(index, &meta);
    WriteMetaPage(index, INIT_FORKNUM, meta, true);
}

} // namespace vecgpu
