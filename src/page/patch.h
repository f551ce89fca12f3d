/*
 * patch.h: WAL-logged changes of a few known bytes of a page.
 *
 * GenericXLog finds out what changed by copying a page and comparing all of it, byte by byte: about ten microseconds a page. A
 * flush that replaces some cells on each of ten thousand pages, and an insert that appends a row, know what they change. A
 * patch writes the same WAL record (resource manager Generic: pairs of offset and length, each followed by its bytes), so
 * replay needs nothing of ours, and nothing but the time differs. One page a record.
 */
#pragma once

#include "page/page.h"

namespace vecgpu {

struct PagePatch {
    Relation index;
    Buffer buffer; /* exclusively locked by the caller */
    Page page;
    uint32_t size; /* of the runs */
    uint8_t runs[2 * kPageBytes + 64];
};

void VgBeginPatch(PagePatch *patch, Relation index, Buffer buffer);

/* Bytes at an offset of the page become `data`; bytes that are so already cost nothing. The page itself changes in VgFinishPatch. */
void VgPatch(PagePatch *patch, uint32_t offset, const void *data, uint32_t bytes);

/* Changes the page, marks it dirty, logs it. False if there was nothing to change. The buffer stays locked. */
bool VgFinishPatch(PagePatch *patch);

} // namespace vecgpu
