/*
 * flat_rescore.cuh: the last step of a batch: keys of what is left in the lists, from the rows.
 */
#pragma once

#include "block_select.cuh"
#include "flat_batch.h"
#include "launch.h"

namespace vecgpu::cuda {

/* What the threshold of a query is when its k-th best score has order `bound`: see flat_batch.h. */
__device__ __forceinline__ float score_threshold(uint32_t bound, float error)
{
    /* Fewer than k rows so far: everything but rows that may not be returned, whose score is -inf. */
    return bound >= kInfOrder ? -FLT_MAX : fmaxf(-key_of_order(bound) - 2 * error, -FLT_MAX);
}

constexpr int kRescoreThreads = 256;

template <class Kernel>
__global__ void __launch_bounds__(kRescoreThreads) rescore_kernel(const Rows rows, const uint4 *prepared, uint32_t k,
                                                                  const FlatLists lists, Hit *hits, uint32_t *counts)
{
    extern __shared__ __align__(16) unsigned char dynamic[];
    Word *list = reinterpret_cast<Word *>(dynamic); /* kListRows */
    uint4 *query = reinterpret_cast<uint4 *>(list + kListRows);
    __shared__ BlockBoundStorage storage;
    __shared__ BlockBins<kRescoreThreads> bins;
    __shared__ uint32_t counter;
    constexpr int kItems = kListRows / kRescoreThreads;
    const uint32_t q = blockIdx.x, count = lists.counts[q];
    if (count > kListRows) {
        if (threadIdx.x == 0)
            counts[q] = kOverflow;
        return;
    }
    QueryHead head;
    {
        const uint4 *mine = prepared + static_cast<size_t>(q) * query_pieces(Kernel::storage, rows.pieces);
        uint4 first = __ldg(mine);
        memcpy(&head, &first, sizeof head);
        for (uint32_t i = threadIdx.x; i < Kernel::kVectors * rows.pieces; i += kRescoreThreads)
            query[i] = __ldg(mine + Kernel::query_offset(rows.pieces) + i);
    }
    Word words[kItems];
    uint32_t orders[kItems];
#pragma unroll
    for (int i = 0; i < kItems; i++) {
        const uint32_t at = i * kRescoreThreads + threadIdx.x;
        words[i] = at < count ? lists.words[static_cast<size_t>(q) * kListRows + at] : kNoWord;
        orders[i] = static_cast<uint32_t>(words[i] >> 32);
    }
    if (threadIdx.x == 0)
        counter = 0;
    const uint32_t bound = block_bound<kItems>(orders, k, 0, storage);
    const uint32_t limit = order_of(-score_threshold(bound, lists.errors[q]));
#pragma unroll
    for (int i = 0; i < kItems; i++)
        if (words[i] != kNoWord && orders[i] <= limit)
            list[atomicAdd(&counter, 1u)] = slot_of_word(words[i]);
    __syncthreads();
    const uint32_t left = counter;
    const int lane = threadIdx.x & 31;
    for (uint32_t first = threadIdx.x & ~31u; first < left; first += kRescoreThreads) {
        const int n = min(32u, left - first);
        const uint32_t slot = slot_of_word(list[first + min(lane, n - 1)]);
        const float key = Kernel::keys(rows, query, head, slot, n);
        __syncwarp();
        if (lane < n)
            list[first + lane] = word_of(key, slot);
    }
    __syncthreads();
    block_emit_sorted<kRescoreThreads, kItems>(list, left, k, storage, bins, [&](uint32_t rank, Word word) {
        hits[static_cast<size_t>(q) * k + rank] = {slot_of_word(word), key_of_word(word)};
    });
    if (threadIdx.x == 0)
        counts[q] = min(left, k);
}

struct RescoreLauncher {
    const Machine &machine;
    const Job &job;
    const FlatLists &lists;
    cudaStream_t stream;

    template <class Kernel>
    void run()
    {
        const size_t shared = kListRows * sizeof(Word) + Kernel::kVectors * job.rows.pieces * sizeof(uint4);
        allow_shared<rescore_kernel<Kernel>>(shared, machine.ordinal);
        rescore_kernel<Kernel><<<job.count, kRescoreThreads, shared, stream>>>(job.rows, job.prepared, job.k, lists,
                                                                               job.hits, job.counts);
        check_launch("rescore");
    }
};

template <Storage kStorage>
void launch_rescore(const Machine &machine, const Job &job, const FlatLists &lists, cudaStream_t stream)
{
    with_kernel<kStorage, Precision::Fine, 4>(job.rows.metric, job.rows.dimensions,
                                              RescoreLauncher{machine, job, lists, stream});
}

} // namespace vecgpu::cuda
