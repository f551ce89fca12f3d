/*
 * insert.cpp: a row goes to the delta; the graph learns of it at the next flush.
 */
#include "am/am.h"
#include "page/delta.h"

namespace vecgpu {

namespace {

/* Kept for the statement, in IndexInfo.ii_AmCache. What it holds of the metapage never changes once dimensions are known. */
struct InsertState {
    const VgOpclass *opclass;
    uint32_t dimensions;
    Storage storage;
    uint32_t row_size;
    float max_error; /* that the metapage allows for, as last seen; it never falls */
    uint8_t *row;
    DeltaCursor cursor;
};

/* Makes sure that the metapage allows for an error this large, before a row with it can be seen. */
void AllowError(Relation index, float error)
{
    Buffer buffer = VgReadPage(index, 0, BUFFER_LOCK_EXCLUSIVE);
    if (VgCheckMeta(index, BufferGetPage(buffer))->max_error < error) {
        GenericXLogState *state = GenericXLogStart(index);
        /* A quarter more, so that a slowly growing maximum does not come here for every row. */
        MetaOf(GenericXLogRegisterBuffer(state, buffer, 0))->max_error = error * 1.25f;
        GenericXLogFinish(state);
    }
    UnlockReleaseBuffer(buffer);
}

/* Fixes the dimensions of an index that has none, unless another session was first. */
uint32_t SetDimensions(Relation index, uint32_t dimensions)
{
    Buffer buffer = VgReadPage(index, 0, BUFFER_LOCK_EXCLUSIVE);
    uint32_t known = VgCheckMeta(index, BufferGetPage(buffer))->dimensions;
    if (known == 0) {
        GenericXLogState *state = GenericXLogStart(index);
        MetaOf(GenericXLogRegisterBuffer(state, buffer, 0))->dimensions = dimensions;
        GenericXLogFinish(state);
        known = dimensions;
    }
    UnlockReleaseBuffer(buffer);
    return known;
}

/*
 * Writers that outrun the flushes would make every search pay: the more rows wait (`load` is their number by that of
 * vecgpu.flush_rows), the longer a writer pauses after each page that it adds. A burst goes through: pauses begin when more
 * than twice flush_rows wait. From then on they hold the writers to what the flushes manage with about flush_rows waiting, until
 * the writing has ebbed away for a while.
 */
void Throttle(double load)
{
    constexpr double burst = 2.2, steady = 0.5;
    constexpr long longest = 200; /* ms */
    constexpr int ebb = 2000;     /* ms below `steady` */
    static bool limited = false;
    static TimestampTz last_busy = 0;
    TimestampTz now = GetCurrentTimestamp();
    if (load > steady) {
        if (TimestampDifferenceExceeds(last_busy, now, ebb))
            limited = false;
        last_busy = now;
    }
    limited = limited || load > burst;
    double start = limited ? steady : burst;
    if (load <= start)
        return;
    double pause = 40 * (load - start) * (load - start);
    long ms = pause > longest ? longest : static_cast<long>(pause);
    if (ms < 1)
        return;
    if (WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, ms, PG_WAIT_EXTENSION) & WL_LATCH_SET)
        ResetLatch(MyLatch);
    CHECK_FOR_INTERRUPTS();
}

InsertState *StateOf(Relation index, IndexInfo *info, uint32_t dimensions)
{
    InsertState *state = static_cast<InsertState *>(info->ii_AmCache);
    if (state != nullptr)
        return state;
    Meta meta;
    VgReadMeta(index, &meta);
    if (meta.dimensions == 0)
        meta.dimensions = SetDimensions(index, dimensions);

    MemoryContext old = MemoryContextSwitchTo(info->ii_Context);
    state = static_cast<InsertState *>(palloc(sizeof(InsertState)));
    state->opclass = VgOpclassOf(index);
    state->dimensions = meta.dimensions;
    state->storage = meta.storage;
    state->max_error = meta.max_error;
    state->row_size = static_cast<uint32_t>(row_bytes(meta.storage, meta.dimensions));
    state->row = static_cast<uint8_t *>(palloc(state->row_size));
    state->cursor = {kNoBlock, 0};
    info->ii_AmCache = state;
    MemoryContextSwitchTo(old);
    return state;
}

} // namespace

bool VgInsert(Relation index, Datum *values, bool *isnull, ItemPointer tid, Relation heap, IndexUniqueCheck unique,
              bool unchanged, IndexInfo *info)
{
    (void) heap;
    (void) unique;
    (void) unchanged;
    if (isnull[0])
        return false;
    const VgOpclass *opclass = info->ii_AmCache == nullptr ? VgOpclassOf(index)
                                                           : static_cast<InsertState *>(info->ii_AmCache)->opclass;
    VgVector vector = opclass->read(values[0]);
    VgCheckFinite(vector.data, vector.dimensions);
    InsertState *state = StateOf(index, info, vector.dimensions);
    VgCheckDimensions(state->dimensions, vector.dimensions);
    if (!VgIsIndexable(opclass->metric, vector)) {
        VgReleaseVector(&vector);
        return false;
    }
    float error = VgEncode(opclass->metric, state->storage, vector, state->row);
    VgReleaseVector(&vector);
    if (error > state->max_error) {
        AllowError(index, error);
        state->max_error = error;
    }

    uint32_t pages = VgDeltaAppend(index, RowIdOf(*tid), state->row, state->row_size, &state->cursor);
    if (pages > 0 && vg_flush_rows > 0) {
        uint64_t rows = static_cast<uint64_t>(pages) * delta_capacity(state->row_size);
        bool urgent = rows >= 4 * static_cast<uint64_t>(vg_flush_rows);
        /* Every page count is seen by one writer only, so one in sixteen of a crowd asks. */
        if (rows >= static_cast<uint64_t>(vg_flush_rows) && (urgent || pages % kDeltaChains == 0))
            VgRequestFlush(index, urgent);
        Throttle(static_cast<double>(rows) / vg_flush_rows);
    }
    return false;
}

} // namespace vecgpu
