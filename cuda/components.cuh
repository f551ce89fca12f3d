/*
 * components.cuh: single components of rows, for kernels that are not in a hurry.
 */
#pragma once

#include "rows.cuh"

namespace vecgpu::cuda {

__device__ inline float component(Storage storage, const Rows &rows, uint32_t slot, uint32_t d)
{
    const uint4 *row = rows.data + static_cast<size_t>(slot) * rows.pitch;
    switch (storage) {
    case Storage::Float32:
        return reinterpret_cast<const float *>(row)[d];
    case Storage::Float16:
        return __half2float(reinterpret_cast<const __half *>(row)[d]);
    case Storage::BFloat16:
        return __bfloat162float(reinterpret_cast<const __nv_bfloat16 *>(row)[d]);
    case Storage::Int8:
        return reinterpret_cast<const signed char *>(row)[d] * rows.side[slot].x;
    }
    return 0;
}

} // namespace vecgpu::cuda
