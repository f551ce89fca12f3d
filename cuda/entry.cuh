/*
 * entry.cuh: keys of pivots, for the entry kernel and for search kernels that find their entries themselves.
 *
 * Pivots and queries are multiplied as integers of 8 bits, so sums are exact: whoever computes one, in one thread or in
 * several, gets the same entries. For where a walk begins that is fine enough.
 */
#pragma once

#include "job.h"

namespace vecgpu::cuda {

constexpr uint32_t kClassPivots = kPivots / kEntries;
static_assert(kClassPivots == 32, "a class is a warp");

/* The dot product so far, and what 16 dimensions add to it. */
__device__ __forceinline__ int pivot_add(int dot, const uint4 &x, const uint4 &y)
{
    dot = __dp4a(static_cast<int>(x.x), static_cast<int>(y.x), dot);
    dot = __dp4a(static_cast<int>(x.y), static_cast<int>(y.y), dot);
    dot = __dp4a(static_cast<int>(x.z), static_cast<int>(y.z), dot);
    return __dp4a(static_cast<int>(x.w), static_cast<int>(y.w), dot);
}

/*
 * The lanes of a warp have the pivots p of one class, and their dot products with the upper bytes of a query of step
 * `step`: the entry of the class, and the order of its key, for all lanes.
 */
__device__ __forceinline__ uint32_t class_entry(const PivotView &pivots, uint32_t p, int dot, float step,
                                                uint32_t &least)
{
    const float2 side = __ldg(pivots.side + p);
    const uint32_t order = order_of(fmaf(side.x * (256 * step), static_cast<float>(dot), side.y));
    least = __reduce_min_sync(kFullWarp, order);
    const int winner = __ffs(__ballot_sync(kFullWarp, order == least)) - 1;
    return least == kNanOrder ? kNone : __ldg(pivots.slots + __shfl_sync(kFullWarp, p, winner));
}

} // namespace vecgpu::cuda
