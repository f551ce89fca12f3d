/*
 * entry.h: where a graph search starts.
 *
 * Instead of walking down the upper layers hop by hop, every query is compared with up to kPivots nodes of them: one
 * step that does not depend on memory latency. The best pivot of each of kEntries classes is an entry.
 */
#pragma once

#include "buffer.h"
#include "job.h"

#include <vector>

namespace vecgpu::cuda {

/* Immutable once made. */
struct Pivots {
    uint32_t pieces;              /* of 16 dimensions */
    DeviceBuffer<uint4> columns;  /* pieces x kPivots: rows without their mean, a byte a component; zeros at the end */
    DeviceBuffer<float2> side;    /* kPivots: key = y + x times dot product; y is NaN where there is no pivot */
    DeviceBuffer<uint32_t> slots; /* kPivots */
    DeviceBuffer<float> mean;
    Metric metric;

    PivotView view() const { return {columns.data(), side.data(), slots.data(), mean.data(), pieces, metric}; }
};

/* Copies the rows of at most kPivots `slots` out of the mirror. Blocks. */
void make_pivots(Pivots *pivots, Storage storage, const Rows &rows, const std::vector<uint32_t> &slots,
                 cudaStream_t stream);

constexpr uint32_t kEntryParts = kPivots / 128; /* of the pivots, at most */
constexpr uint32_t kMostTurns = 16384;          /* queries that can be put in order */

/*
 * entries[q * kEntries + i], kNone where there is none; nearest[p * count + q] for some p < kEntryParts, the least of
 * which is about the distance of the best entry. Also zeroes *ticket.
 */
void launch_entry(const Machine &machine, const PivotView &pivots, uint32_t dimensions, const float *queries,
                  uint32_t count, uint32_t *entries, float *nearest, uint32_t *ticket, cudaStream_t stream);

/*
 * The numbers of `count` <= kMostTurns queries, `nearest` as launch_entry() left it for them, those first whose nearest
 * entry is far away: their walks are long (rows computed and that distance correlate by 0.6), and long ones that begin
 * late are what a batch ends up waiting for.
 */
void launch_turns(const Machine &machine, const float *nearest, uint32_t count, uint32_t *turns, cudaStream_t stream);

} // namespace vecgpu::cuda
