/*
 * heapvec.h: the exact vector of an index entry, from the heap.
 *
 * Needed where the index stores vectors in fewer bits than the column has: candidates come from the index, order from here.
 */
#pragma once

#include "am/am.h"

namespace vecgpu {

struct HeapVectors {
    Relation heap;
    Relation index;
    IndexFetchTableData *fetch;
    TupleTableSlot *slot;
    IndexInfo *info;
    EState *estate; /* only for expression indexes */
};

void VgOpenHeapVectors(HeapVectors *vectors, Relation heap, Relation index);
void VgCloseHeapVectors(HeapVectors *vectors);

/*
 * True and the column's datum if a row version of this entry is visible to the snapshot. The datum is valid until the next
 * call. *all_dead: no transaction can see any version.
 */
bool VgFetchHeapVector(HeapVectors *vectors, ItemPointerData tid, Snapshot snapshot, Datum *value, bool *all_dead);

} // namespace vecgpu
