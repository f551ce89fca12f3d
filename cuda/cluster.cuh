/*
 * cluster.cuh: blocks of a cluster among themselves. With one block all of it works on any chip.
 */
#pragma once

#include "keys.cuh"

namespace vecgpu::cuda {

/* Number of this block in its cluster. */
__device__ __forceinline__ uint32_t cluster_rank()
{
    uint32_t rank = 0;
#if __CUDA_ARCH__ >= 900
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
#endif
    return rank;
}

/* Address of one's own shared memory, as it is in another block of the cluster. */
__device__ __forceinline__ uint32_t remote_address(const void *own, uint32_t block)
{
    uint32_t remote = static_cast<uint32_t>(__cvta_generic_to_shared(own));
#if __CUDA_ARCH__ >= 900
    asm volatile("mapa.shared::cluster.u32 %0, %0, %1;" : "+r"(remote) : "r"(block));
#endif
    return remote;
}

/* Into the shared memory of `block`, at the place that `own` is in one's own. */
__device__ __forceinline__ void store_remote(Word *own, uint32_t block, Word word)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("st.shared::cluster.u64 [%0], %1;" ::"r"(remote_address(own, block)), "l"(word) : "memory");
#endif
}

__device__ __forceinline__ void store_remote(uint32_t *own, uint32_t block, uint32_t word)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("st.shared::cluster.u32 [%0], %1;" ::"r"(remote_address(own, block)), "r"(word) : "memory");
#endif
}

__device__ __forceinline__ void cluster_barrier(uint32_t blocks)
{
#if __CUDA_ARCH__ >= 900
    if (blocks > 1) {
        asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
        return;
    }
#endif
    __syncthreads();
}

} // namespace vecgpu::cuda
