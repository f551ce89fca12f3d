/*
 * heapvec.cpp: see heapvec.h.
 */
#include "am/heapvec.h"

namespace vecgpu {

void VgOpenHeapVectors(HeapVectors *vectors, Relation heap, Relation index)
{
    vectors->heap = heap;
    vectors->index = index;
    vectors->fetch = table_index_fetch_begin(heap);
    vectors->slot = table_slot_create(heap, nullptr);
    vectors->info = BuildIndexInfo(index);
    vectors->estate = vectors->info->ii_IndexAttrNumbers[0] == 0 ? CreateExecutorState() : nullptr;
}

void VgCloseHeapVectors(HeapVectors *vectors)
{
    if (vectors->estate != nullptr)
        FreeExecutorState(vectors->estate);
    ExecDropSingleTupleTableSlot(vectors->slot);
    table_index_fetch_end(vectors->fetch);
}

bool VgFetchHeapVector(HeapVectors *vectors, ItemPointerData tid, Snapshot snapshot, Datum *value, bool *all_dead)
{
    bool call_again = false;
    table_index_fetch_reset(vectors->fetch);
    if (!table_index_fetch_tuple(vectors->fetch, &tid, snapshot, vectors->slot, &call_again, all_dead))
        return false;
    bool isnull;
    AttrNumber attribute = vectors->info->ii_IndexAttrNumbers[0];
    if (attribute != 0) {
        *value = slot_getattr(vectors->slot, attribute, &isnull);
    } else {
        Datum values[INDEX_MAX_KEYS];
        bool nulls[INDEX_MAX_KEYS];
        ExprContext *context = GetPerTupleExprContext(vectors->estate);
        ResetExprContext(context);
        context->ecxt_scantuple = vectors->slot;
        FormIndexDatum(vectors->info, vectors->slot, vectors->estate, values, nulls);
        *value = values[0];
        isnull = nulls[0];
    }
    return !isnull;
}

} // namespace vecgpu
