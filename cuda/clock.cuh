/*
 * clock.cuh: time, for waits that must end.
 */
#pragma once

#include <cstdint>

namespace vecgpu::cuda {

/* Since some time or other, for differences only. */
__device__ __forceinline__ uint64_t nanoseconds()
{
    uint64_t t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
    return t;
}

} // namespace vecgpu::cuda
