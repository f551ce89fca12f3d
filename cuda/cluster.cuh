/*
 * cluster.cuh: what the blocks of a cluster do with each other. Before sm_90 there are no clusters: a block is alone.
 */
#pragma once

#include "keys.cuh"

namespace vecgpu::cuda {

/* `own`, an address in the shared memory of one's own block, in another block of the cluster. */
__device__ __forceinline__ uint32_t remote_address(const void *own, uint32_t block)
{
    uint32_t remote = 0;
#if __CUDA_ARCH__ >= 900
    asm("mapa.shared::cluster.u32 %0, %1, %2;"
        : "=r"(remote)
        : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(own))), "r"(block));
#endif
    return remote;
}

__device__ __forceinline__ void store_remote(Word *own, uint32_t block, Word word)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("st.shared::cluster.u64 [%0], %1;" ::"r"(remote_address(own, block)), "l"(word) : "memory");
#endif
}

__device__ __forceinline__ void add_remote(uint32_t *own, uint32_t block, uint32_t value)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("red.relaxed.cluster.shared::cluster.add.u32 [%0], %1;" ::"r"(remote_address(own, block)), "r"(value)
                 : "memory");
#endif
}

__device__ __forceinline__ uint32_t block_of_cluster(uint32_t blocks)
{
    uint32_t me = 0;
#if __CUDA_ARCH__ >= 900
    if (blocks > 1)
        asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(me));
#endif
    return me;
}

/* Between the two, no thread waits. */
__device__ __forceinline__ void cluster_arrive(uint32_t blocks)
{
#if __CUDA_ARCH__ >= 900
    if (blocks > 1)
        asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
}

__device__ __forceinline__ void cluster_wait(uint32_t blocks)
{
#if __CUDA_ARCH__ >= 900
    if (blocks > 1) {
        asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
        return;
    }
#endif
    __syncthreads();
}

} // namespace vecgpu::cuda
