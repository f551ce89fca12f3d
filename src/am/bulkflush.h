/*
 * bulkflush.h: the flush of a large batch: load the whole graph into memory, insert with threads, write what changed.
 *
 * One row inserted through the buffers costs about a millisecond on one core; in memory it costs a fifth of that on each of
 * many cores, after a load at memory speed.
 */
#pragma once

#include "am/am.h"
#include "page/delta.h"
#include "page/publish.h"

namespace vecgpu {

/* Rows of the delta in memory. */
struct Batch {
    uint8_t *vectors;
    RowId *rows;
    uint32_t count, capacity;
    uint32_t limit;
    uint32_t row_size;
};

constexpr uint32_t kBulkFlushBytes = 128 * 1024 * 1024; /* vectors in one batch */

struct GraphCache;

/*
 * True if that is the faster way for so many rows. Vectors and lists beyond maintenance_work_mem go to a temporary file, as in a
 * build, so then it takes more rows to pay.
 */
bool VgBulkFlushPays(const Meta &meta, uint64_t rows, const GraphCache *cache);

/*
 * The graph in memory, from one flush to the next: a worker that flushes again and again keeps it. It is good as long as the
 * index is still at the epoch that its last flush published. Created empty, in the current memory context.
 */
GraphCache *VgCreateGraphCache(void);
void VgDropGraphCache(GraphCache *cache);

/* Adds the rows; *meta is the working copy for the publish. `cache` may be null. */
void VgBulkFlush(Relation index, Meta *meta, const Batch &batch, ChangedBlocks *changed, GraphCache *cache);

/* After the publish: the cache is good for meta.epoch. */
void VgGraphCachePublished(GraphCache *cache, const Meta &meta);

} // namespace vecgpu
