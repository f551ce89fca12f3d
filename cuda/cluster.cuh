/*
 * cluster.cuh: blocks of a cluster among themselves. With one block all of it works on any chip.
 */
#pragma once

#include "hopper.cuh"
#include "keys.cuh"

namespace vecgpu::cuda {

__device__ __forceinline__ uint32_t block_of_cluster(uint32_t blocks)
{
    uint32_t me = 0;
#if __CUDA_ARCH__ >= 900
    if (blocks > 1)
        asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(me));
#endif
    return me;
}

/* `own`, an address in the shared memory of one's own block, in another block of the cluster. */
__device__ __forceinline__ uint32_t remote_address(const void *own, uint32_t block)
{
    uint32_t remote = 0;
#if __CUDA_ARCH__ >= 900
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(shared_address(own)), "r"(block));
#endif
    return remote;
}

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

__device__ __forceinline__ void add_remote(uint32_t *own, uint32_t block, uint32_t value)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("red.relaxed.cluster.shared::cluster.add.u32 [%0], %1;" ::"r"(remote_address(own, block)), "r"(value)
                 : "memory");
#endif
}

/* One word to a block of the cluster, oneself included. */
__device__ __forceinline__ void store_to(uint32_t *own, uint32_t block, uint32_t word, uint32_t blocks)
{
    if (blocks > 1)
        store_remote(own, block, word);
    else
        *own = word;
}

/*
 * Counting what arrives. `counter`, at the same address in all blocks, is a barrier of one arrival and as many bytes as
 * the block says that it waits for; with one block it is not used. Of one thread, before a barrier of the cluster:
 */
__device__ __forceinline__ void count_init(uint64_t *counter)
{
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "mbarrier.init.shared::cta.b64 [%0], 1;\n\tfence.mbarrier_init.release.cluster;" ::"r"(shared_address(counter))
        : "memory");
#endif
}

/* Two words, 8-byte aligned, to a block of the cluster, oneself included, and its counter counts them. Waits for nothing. */
__device__ __forceinline__ void send_to(uint32_t *own, uint32_t block, uint32_t first, uint32_t second,
                                        uint64_t *counter, uint32_t blocks)
{
#if __CUDA_ARCH__ >= 900
    if (blocks > 1) {
        asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%0], {%1, %2}, [%3];" ::"r"(
                         remote_address(own, block)),
                     "r"(first), "r"(second), "r"(remote_address(counter, block))
                     : "memory");
        return;
    }
#endif
    own[0] = first;
    own[1] = second;
}

/*
 * All threads of a block: until `bytes` have arrived since the last time; `parity` is that of the number of these times.
 * One warp asks all the time, as one that sleeps (try_wait) wakes later; the others wait in the barrier of the block.
 */
__device__ __forceinline__ void count_wait(uint64_t *counter, uint32_t bytes, uint32_t parity, uint32_t blocks)
{
#if __CUDA_ARCH__ >= 900
    if (blocks > 1 && threadIdx.x < 32) {
        const uint32_t address = shared_address(counter);
        if (threadIdx.x == 0)
            barrier_expect(counter, bytes);
        asm volatile("{ .reg .pred p;\n"
                     "wait_%=: mbarrier.test_wait.parity.acquire.cluster.shared::cta.b64 p, [%0], %1;\n"
                     "@p bra done_%=;\n"
                     "bra wait_%=;\n"
                     "done_%=: }" ::"r"(address),
                     "r"(parity)
                     : "memory");
    }
#endif
    __syncthreads();
}

/* What this thread wrote before comes before what it writes or sends after. */
__device__ __forceinline__ void cluster_fence(uint32_t blocks)
{
#if __CUDA_ARCH__ >= 900
    if (blocks > 1)
        asm volatile("fence.acq_rel.cluster;" ::: "memory");
#endif
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

__device__ __forceinline__ void cluster_barrier(uint32_t blocks)
{
    cluster_arrive(blocks);
    cluster_wait(blocks);
}

} // namespace vecgpu::cuda
