/*
 * query_head.cuh: what is computed of a query before it is searched: the head of a prepared query and the 16-bit
 * components of int8 rows' coarse kernel. In one place, for kernels that prepare their query themselves.
 */
#pragma once

#include "rows.cuh"

namespace vecgpu::cuda {

__device__ __forceinline__ double warp_sum(double v)
{
    for (int offset = 16; offset; offset >>= 1)
        v += __shfl_xor_sync(kFullWarp, v, offset);
    return v;
}

__device__ __forceinline__ float inverse_norm(double norm2)
{
    return norm2 > 0 ? static_cast<float>(1 / sqrt(norm2)) : 0.f;
}

/* By one warp; component d is at(d). */
template <class At>
__device__ __forceinline__ QueryHead query_head(At at, uint32_t dimensions)
{
    double norm2 = 0;
    float largest = 0;
    for (uint32_t d = threadIdx.x & 31; d < dimensions; d += 32) {
        const float x = at(d);
        norm2 += static_cast<double>(x) * x;
        largest = fmaxf(largest, fabsf(x));
    }
    norm2 = warp_sum(norm2);
    for (int offset = 16; offset; offset >>= 1)
        largest = fmaxf(largest, __shfl_xor_sync(kFullWarp, largest, offset));
    /* 16-bit components stay within +-32512, so that the upper byte never rounds up to 128. */
    return {largest > 0 ? largest / 32512.f : 1.f, static_cast<float>(norm2), inverse_norm(norm2), 0};
}

/* A component of the coarse kernel for int8 as two signed bytes: high * 256 + low units of `step`. */
__device__ __forceinline__ void split_component(float x, float step, signed char &high, signed char &low)
{
    const int v = max(-32512, min(32512, __float2int_rn(x / step))), h = (v + 128) >> 8;
    high = static_cast<signed char>(h);
    low = static_cast<signed char>(v - h * 256);
}

/* Where component d of a fine query lies, in floats: piece p of a row meets query pieces p, pieces + p, … */
template <int kVectors>
__device__ __forceinline__ uint32_t fine_place(uint32_t d, uint32_t pieces)
{
    const uint32_t four = d / 4;
    return (four % kVectors * pieces + four / kVectors) * 4 + d % 4;
}

} // namespace vecgpu::cuda
