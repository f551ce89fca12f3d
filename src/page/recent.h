/*
 * recent.h: where this backend found the pages of an index last.
 *
 * A graph walk reads a thousand scattered pages. Finding each in PostgreSQL's buffer table costs more than the distance
 * that it is read for; ReadRecentBuffer() pins a buffer that is named and checks that it still holds the page. The numbers
 * also let a caller prefetch rows before it pins anything.
 */
#pragma once

#include "page/page.h"

namespace vecgpu {

struct RecentBuffers {
    Buffer *buffer;    /* by block; InvalidBuffer: not known */
    uint32_t capacity; /* blocks */
    uint32_t reads;
};

/* The numbers for an index, kept for the life of the backend; null for temporary and very large ones. */
RecentBuffers *VgRecentBuffers(Relation index);

/* As ReadBuffer(), with an error for a block beyond the end of the file. `recent` may be null. */
Buffer VgReadRecent(Relation index, RecentBuffers *recent, BlockNumber block);

/* Asks the CPU for `bytes` bytes at `offset` of a page, its trailer and its buffer header, if the page was seen before. */
void VgPrefetch(const RecentBuffers *recent, BlockNumber block, uint32_t offset, uint32_t bytes);

} // namespace vecgpu
