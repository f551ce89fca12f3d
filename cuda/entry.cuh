/*
 * entry.cuh: keys of pivots, for the entry kernel and for search kernels that find their entries themselves.
 *
 * The dot product of a pivot and a query is the sum of kChains chains of fused multiply-adds over consecutive groups of
 * dimensions, added in order. So whoever computes it, in one thread or in several, gets the same bits and the same
 * entries.
 */
#pragma once

#include "job.h"

namespace vecgpu::cuda {

constexpr uint32_t kChains = 4;
constexpr uint32_t kClassPivots = kPivots / kEntries;
static_assert(kClassPivots == 32, "a class is a warp");

/* Groups of dimensions in a chain; the last chains may have fewer or none. */
__host__ __device__ constexpr uint32_t chain_groups(uint32_t groups)
{
    return (groups + kChains - 1) / kChains;
}

__device__ __forceinline__ float chain_add(float sum, const float4 &x, const float4 &y)
{
    sum = fmaf(x.x, y.x, sum);
    sum = fmaf(x.y, y.y, sum);
    sum = fmaf(x.z, y.z, sum);
    return fmaf(x.w, y.w, sum);
}

/* The lanes of a warp have the pivots p of one class: the entry of the class, for all lanes. */
__device__ __forceinline__ uint32_t class_entry(const PivotView &pivots, uint32_t p, float dot)
{
    const uint32_t order = order_of(fmaf(pivots.factor, dot, __ldg(pivots.bias + p)));
    const uint32_t least = __reduce_min_sync(kFullWarp, order);
    const int winner = __ffs(__ballot_sync(kFullWarp, order == least)) - 1;
    return least == kNanOrder ? kNone : __ldg(pivots.slots + __shfl_sync(kFullWarp, p, winner));
}

} // namespace vecgpu::cuda
