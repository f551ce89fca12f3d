/*
 * query.cuh: float32 queries into what the row kernels read (rows.cuh): a head, then components.
 *
 * Whoever prepares a query, a kernel of its own or the search kernel itself, does it with these functions: the same bits.
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

/* What a unit of 16-bit components means: they stay within +-32512, so that the upper byte never rounds up to 128. */
__device__ __forceinline__ float query_step(float largest)
{
    return largest > 0 ? largest / 32512.f : 1.f;
}

/* By one warp, all lanes get it; component d is at(d). `inverse`: 1 / norm is wanted. */
template <class At>
__device__ __forceinline__ QueryHead query_head(At at, uint32_t dimensions, bool inverse = true)
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
    return {query_step(largest), static_cast<float>(norm2), inverse ? inverse_norm(norm2) : 0.f, 0};
}

/* A component of the coarse kernel for int8 as two signed bytes: high * 256 + low units of `step`. */
__device__ __forceinline__ void split_component(float x, float step, signed char &high, signed char &low)
{
    const int v = max(-32512, min(32512, __float2int_rn(x / step))), h = (v + 128) >> 8;
    high = static_cast<signed char>(h);
    low = static_cast<signed char>(v - h * 256);
}

/* Where component d of a fine query lies, in floats: piece p of a row meets query pieces p, pieces + p, ... */
template <int kVectors>
__device__ __forceinline__ uint32_t fine_place(uint32_t d, uint32_t pieces)
{
    const uint32_t four = d / 4;
    return (four % kVectors * pieces + four / kVectors) * 4 + d % 4;
}

/* Query pieces of the fine kernel for one row piece. */
__host__ __device__ constexpr uint32_t fine_vectors(Storage storage)
{
    return storage == Storage::Float32 ? 1 : storage == Storage::Int8 ? 4 : 2;
}

/* Where the fine components begin. */
__host__ __device__ constexpr uint32_t fine_offset(Storage storage, uint32_t pieces)
{
    return storage == Storage::Int8 ? kCoarseVectors * pieces : 0;
}

/* The two bytes of components to `out`, upper ones first, by `threads` threads of which this one is `thread`. */
__device__ __forceinline__ void coarse_components(const float *query, uint32_t dimensions, uint32_t pieces, float step,
                                                  uint4 *out, uint32_t thread, uint32_t threads)
{
    signed char *const bytes = reinterpret_cast<signed char *>(out);
    for (uint32_t d = thread; d < pieces * 16; d += threads)
        split_component(d < dimensions ? query[d] : 0.f, step, bytes[d], bytes[pieces * 16 + d]);
}

/* The components of the fine kernel to `out`. */
__device__ __forceinline__ void fine_components(Storage storage, const float *query, uint32_t dimensions,
                                                uint32_t pieces, uint4 *out, uint32_t thread, uint32_t threads)
{
    auto at = [&](uint32_t d) { return d < dimensions ? query[d] : 0.f; };
    const uint32_t vectors = fine_vectors(storage);
    for (uint32_t i = thread; i < pieces * vectors; i += threads) {
        const uint32_t p = i / vectors, k = i % vectors, d = i * 4;
        out[k * pieces + p] = make_uint4(__float_as_uint(at(d)), __float_as_uint(at(d + 1)), __float_as_uint(at(d + 2)),
                                         __float_as_uint(at(d + 3)));
    }
}

} // namespace vecgpu::cuda
