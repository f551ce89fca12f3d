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

constexpr uint32_t kPivots = 1024;

/* Immutable once made. */
struct Pivots {
    uint32_t count; /* at most kPivots; the arrays are padded to kPivots */
    uint32_t dimensions;
    float factor;                 /* key = bias + factor x dot */
    DeviceBuffer<float> columns;  /* dimensions x kPivots */
    DeviceBuffer<float> bias;     /* kPivots; NaN behind `count` */
    DeviceBuffer<uint32_t> slots; /* kPivots */
};

/* Copies the rows of `slots` out of the mirror. Blocks. */
void make_pivots(Pivots *pivots, Storage storage, const Rows &rows, const std::vector<uint32_t> &slots,
                 cudaStream_t stream);

/* entries[q * kEntries + i], kNone where there is none. Also zeroes *ticket. */
void launch_entry(const Machine &machine, const Pivots &pivots, const float *queries, uint32_t count, uint32_t *entries,
                  uint32_t *ticket, cudaStream_t stream);

} // namespace vecgpu::cuda
