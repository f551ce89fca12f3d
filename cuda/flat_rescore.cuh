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

/*
 * Query q by a warp, whose list has at most kWarpRows words; `list` has room for them. The query's components are read
 * where they are, the L1 cache keeps them.
 */
template <class Kernel>
__device__ __forceinline__ void rescore_by_warp(const Rows &rows, const uint4 *prepared, uint32_t k,
                                                const FlatLists &lists, uint32_t q, uint32_t count, Word *list,
                                                Hit *hits, uint32_t *counts)
{
    constexpr int kItems = kWarpRows / 32;
    const uint32_t lane = threadIdx.x & 31;
    const uint4 *query = prepared + static_cast<size_t>(q) * query_pieces(Kernel::storage, rows.pieces);
    QueryHead head;
    const uint4 first_piece = __ldg(query);
    memcpy(&head, &first_piece, sizeof head);
    query += Kernel::query_offset(rows.pieces);
    uint32_t orders[kItems], slots[kItems];
#pragma unroll
    for (int i = 0; i < kItems; i++) {
        const uint32_t at = i * 32 + lane;
        const Word word = at < count ? lists.words[static_cast<size_t>(q) * kListRows + at] : kNoWord;
        orders[i] = static_cast<uint32_t>(word >> 32);
        slots[i] = slot_of_word(word);
    }
    const uint32_t limit = order_of(-score_threshold(warp_bound(orders, k, 0), lists.errors[q]));
    uint32_t left = 0;
#pragma unroll
    for (int i = 0; i < kItems; i++) {
        const bool stays = i * 32 + lane < count && orders[i] <= limit;
        const uint32_t all = __ballot_sync(kFullWarp, stays);
        if (stays)
            list[left + __popc(all & ((1u << lane) - 1))] = slots[i];
        left += __popc(all);
    }
    __syncwarp();
    for (uint32_t first = 0; first < left; first += 32) {
        const int n = min(32u, left - first);
        const uint32_t slot = slot_of_word(list[first + min(lane, n - 1u)]);
        const float key = Kernel::template keys<true>(rows, query, head, slot, n);
        __syncwarp();
        if (lane < n)
            list[first + lane] = word_of(key, slot);
    }
    __syncwarp();
    for (uint32_t i = lane; i < left; i += 32) {
        const Word mine = list[i];
        uint32_t rank = 0;
        for (uint32_t j = 0; j < left; j++)
            rank += list[j] < mine;
        if (rank < k)
            hits[static_cast<size_t>(q) * k + rank] = {slot_of_word(mine), key_of_word(mine)};
    }
    if (lane == 0)
        counts[q] = min(left, k);
}

/*
 * `each` queries a block. Several: lists of at most kWarpRows words are a warp's, longer ones the block's, one after the
 * other. One: the block's.
 */
template <class Kernel>
__global__ void __launch_bounds__(kRescoreThreads)
    rescore_kernel(const Rows rows, const uint4 *prepared, uint32_t queries, uint32_t each, uint32_t k,
                   const FlatLists lists, Hit *hits, uint32_t *counts)
{
    extern __shared__ __align__(16) unsigned char dynamic[];
    uint4 *query = reinterpret_cast<uint4 *>(dynamic);
    __shared__ Word list[kListRows];
    static_assert(kRescoreThreads / 32 * kWarpRows <= kListRows);
    __shared__ BlockBoundStorage storage;
    __shared__ BlockBins<kRescoreThreads> bins;
    __shared__ uint32_t counter;
    constexpr int kItems = kListRows / kRescoreThreads;
    const uint32_t warp = threadIdx.x / 32, first_query = blockIdx.x * each;
    if (each > 1 && first_query + warp < queries && lists.counts[first_query + warp] <= kWarpRows)
        rescore_by_warp<Kernel>(rows, prepared, k, lists, first_query + warp, lists.counts[first_query + warp],
                                list + warp * kWarpRows, hits, counts);
    for (uint32_t q = first_query; q < min(first_query + each, queries); q++) {
        const uint32_t count = lists.counts[q];
        if (each > 1 && count <= kWarpRows)
            continue;
        if (count > kListRows) {
            if (threadIdx.x == 0)
                counts[q] = kOverflow;
            continue;
        }
        __syncthreads();
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
        const uint32_t share = warp_share(left, kRescoreThreads / 32);
        for (uint32_t first = threadIdx.x / 32 * share; first < left; first += kRescoreThreads / 32 * share) {
            const int n = min(share, left - first);
            const uint32_t slot = slot_of_word(list[first + min(lane, n - 1)]);
            const float key = Kernel::template keys<true>(rows, query, head, slot, n);
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
}

struct RescoreLauncher {
    const Machine &machine;
    const Job &job;
    const FlatLists &lists;
    cudaStream_t stream;

    template <class Kernel>
    void run()
    {
        const size_t shared = Kernel::kVectors * job.rows.pieces * sizeof(uint4);
        allow_shared<rescore_kernel<Kernel>>(shared, machine.ordinal);
        const uint32_t each = lists_a_block(machine, job.count, kRescoreThreads);
        rescore_kernel<Kernel><<<(job.count + each - 1) / each, kRescoreThreads, shared, stream>>>(
            job.rows, job.prepared, job.count, each, job.k, lists, job.hits, job.counts);
        check_launch("rescore");
    }
};

template <Storage kStorage>
void launch_rescore(const Machine &machine, const Job &job, const FlatLists &lists, cudaStream_t stream)
{
    with_kernel<kStorage, Precision::Fine, 4, 8>(job.rows.metric, job.rows.dimensions,
                                                 RescoreLauncher{machine, job, lists, stream});
}

} // namespace vecgpu::cuda
