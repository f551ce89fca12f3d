/*
 * threshold_select.cuh: k-selection of many rows, a block a row or part of one.
 */
#pragma once

#include "select_parts.cuh"

namespace vecgpu::cuda {

/* The greatest order below one of a key: both zeros have one order. */
__device__ __forceinline__ uint32_t order_below(uint32_t order)
{
    return order - (order == 0x80000000u ? 2 : 1);
}

/* A copy of 16 bytes to shared memory that this thread waits for later. */
__device__ __forceinline__ void copy_ahead(void *to, const void *from)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(static_cast<uint32_t>(__cvta_generic_to_shared(to))),
                 "l"(from)
                 : "memory");
}

__device__ __forceinline__ void wait_for_copies()
{
    asm volatile("cp.async.wait_all;" ::: "memory");
}

/*
 * The block's chunk of a row in registers: value i of a thread is column base + (i / 4 * kThreads + thread) * 4 + i % 4.
 * More values lie within `bound` than the list can take: takes the k smallest by (value, column) exactly, by bisection of
 * values and then of the columns that hold the k-th. `emit(i)` is called for them; returns the order of the k-th.
 */
template <int kThreads, int kValues, class Emit>
__device__ uint32_t select_exactly(const float (&v)[kValues], float bound, uint32_t k, BlockBoundStorage &s, Emit emit)
{
    uint32_t low = kNanOrder, high = 0, unused = 0;
#pragma unroll
    for (int i = 0; i < kValues; i++)
        if (v[i] <= bound)
            low = min(low, order_of(v[i])), high = max(high, order_of(v[i]));
    block_range(low, high, unused, s);
    int round = 0;
    auto at_most = [&](const uint32_t(&middle)[3], uint32_t(&counts)[3]) {
#pragma unroll
        for (int j = 0; j < 3; j++) {
            const float limit = key_of_order(middle[j]);
            counts[j] = 0;
#pragma unroll
            for (int i = 0; i < kValues; i++)
                counts[j] += v[i] <= limit;
        }
        block_sums(counts, round, s);
    };
    const uint32_t order = bisect(low, high, k, 0, at_most);
    const float last = key_of_order(order);
    uint32_t ties = 0, below = 0;
#pragma unroll
    for (int i = 0; i < kValues; i++) {
        ties |= v[i] == last ? 1u << i : 0;
        below += v[i] < last;
    }
    uint32_t counts[3] = {below, 0, below};
    block_sums(counts, round, s);
    const uint32_t needed = k - counts[0];
    const uint32_t column =
        bisect(0u, static_cast<uint32_t>(kThreads * kValues - 1), needed, 0,
               [&](const uint32_t(&middle)[3], uint32_t(&counts)[3]) {
#pragma unroll
                   for (int j = 0; j < 3; j++) {
                       counts[j] = 0;
#pragma unroll
                       for (int i = 0; i < kValues; i++)
                           counts[j] += (ties >> i & 1) && (i / 4 * kThreads + threadIdx.x) * 4 + i % 4 <= middle[j];
                   }
                   block_sums(counts, round, s);
               });
    /* `needed` is never 0; without it the compiler takes all columns into registers and spills. */
#pragma unroll
    for (int i = 0; i < kValues; i++)
        if (v[i] < last || ((ties >> i & 1) && needed && (i / 4 * kThreads + threadIdx.x) * 4 + i % 4 <= column))
            emit(i);
    return order;
}

/*
 * kThreads x kValues values at a time in registers. The bound starts as the k-th smallest minimum of groups of kGroup
 * values of the first chunk. Values within it are collected; when many are, all but about the k smallest go and the
 * bound becomes theirs. A block works on many rows (or parts of rows) in turn; with kAhead the next chunk, of this row or
 * the next one, is on its way to shared memory meanwhile.
 */
template <int kThreads, int kValues, int kGroup, int kCapacity, bool kAhead, int kBlocks>
__global__ void __launch_bounds__(kThreads, kBlocks)
    threshold_select_kernel(const float *values, uint32_t columns, uint32_t parts, uint32_t jobs, uint32_t k,
                            SelectOutput output)
{
    extern __shared__ __align__(16) unsigned char dynamic[];
    Word *list = reinterpret_cast<Word *>(dynamic); /* kCapacity */
    float4 *ahead = reinterpret_cast<float4 *>(list + kCapacity) + threadIdx.x;
    __shared__ BlockBoundStorage storage;
    __shared__ BlockBins<kThreads> bins;
    __shared__ uint32_t counter, size, overflow;
    static_assert(kCapacity % kThreads == 0);
    constexpr int kItems = kCapacity / kThreads;
    constexpr uint32_t kChunk = kThreads * kValues;
    const int lane = threadIdx.x & 31;
    /* Columns `base` .. `end` - 1 of `row` are the next to fetch. */
    auto fetch = [&](const float *row, uint32_t base, uint32_t end) {
#pragma unroll
        for (int j = 0; j < kValues / 4; j++) {
            const uint32_t at = base + (j * kThreads + threadIdx.x) * 4;
            if (at < end)
                copy_ahead(ahead + j * kThreads, row + at);
        }
    };
    auto bounds_of = [&](uint32_t job, uint32_t &first, uint32_t &end) {
        part_of(columns, parts, job % parts, first, end);
        return values + static_cast<size_t>(job / parts) * columns;
    };
    uint32_t first, end;
    if (kAhead) {
        const float *row = bounds_of(blockIdx.x, first, end);
        fetch(row, first, end);
    }
#pragma unroll 1
    for (uint32_t job = blockIdx.x; job < jobs; job += gridDim.x) {
        const float *row = bounds_of(job, first, end);
        if (threadIdx.x == 0) {
            size = 0;
            overflow = 0;
        }
        float bound = INFINITY;
        uint32_t held = 0;
#pragma unroll 1
        for (uint32_t base = first; base < end; base += kChunk) {
            float v[kValues];
            if (kAhead) {
                wait_for_copies();
#pragma unroll
                for (int j = 0; j < kValues / 4; j++) {
                    const float4 x = ahead[j * kThreads];
                    v[4 * j] = x.x, v[4 * j + 1] = x.y, v[4 * j + 2] = x.z, v[4 * j + 3] = x.w;
                }
                if (end - base < kChunk) {
#pragma unroll
                    for (int j = 0; j < kValues / 4; j++)
                        if (base + (j * kThreads + threadIdx.x) * 4 >= end)
                            v[4 * j] = v[4 * j + 1] = v[4 * j + 2] = v[4 * j + 3] = nan_value();
                }
                if (base + kChunk < end) {
                    fetch(row, base + kChunk, end);
                } else if (job + gridDim.x < jobs) {
                    uint32_t next_first, next_end;
                    const float *next = bounds_of(job + gridDim.x, next_first, next_end);
                    fetch(next, next_first, next_end);
                }
            } else {
#pragma unroll
                for (int j = 0; j < kValues / 4; j++) {
                    const float4 x = load_values(row, base + (j * kThreads + threadIdx.x) * 4, end, columns % 4 == 0);
                    v[4 * j] = x.x, v[4 * j + 1] = x.y, v[4 * j + 2] = x.z, v[4 * j + 3] = x.w;
                }
            }
            if (base == first) {
                uint32_t minima[kValues / kGroup];
#pragma unroll
                for (int g = 0; g < kValues / kGroup; g++) {
                    float least = v[g * kGroup];
#pragma unroll
                    for (int i = 1; i < kGroup; i++)
                        least = fminf(least, v[g * kGroup + i]); /* passes over NaN */
                    minima[g] = order_of(least);
                }
                const uint32_t order = block_bound<kValues / kGroup>(minima, k, max(k / 8, 3u), storage);
                bound = order >= kInfOrder ? INFINITY : key_of_order(order);
            }
            uint32_t mine = 0;
#pragma unroll
            for (int i = 0; i < kValues; i++)
                mine += v[i] <= bound;
            if (__any_sync(kFullWarp, mine > 0)) {
                const uint32_t sum = warp_inclusive_sum(mine, lane);
                uint32_t at = 0;
                if (lane == 31)
                    at = atomicAdd(&size, sum);
                at = __shfl_sync(kFullWarp, at, 31);
                const uint32_t total = __shfl_sync(kFullWarp, sum, 31);
                if (at + total > kCapacity) {
                    if (lane == 0)
                        overflow = 1;
                } else if (mine) {
                    uint32_t to = at + sum - mine;
#pragma unroll
                    for (int i = 0; i < kValues; i++)
                        if (v[i] <= bound)
                            list[to++] = word_of(v[i], base + (i / 4 * kThreads + threadIdx.x) * 4 + i % 4);
                }
            }
            __syncthreads();
            if (overflow) {
                __syncthreads();
                if (threadIdx.x == 0) {
                    size = held;
                    overflow = 0;
                }
                /* What comes later with a value equal to the k-th has a greater column. */
                const uint32_t last = select_exactly<kThreads>(v, bound, k, storage, [&](int i) {
                    list[atomicAdd(&size, 1u)] = word_of(v[i], base + (i / 4 * kThreads + threadIdx.x) * 4 + i % 4);
                });
                bound = key_of_order(order_below(last));
                __syncthreads();
            }
            held = size;
            if (base + kChunk >= end)
                break;
            __syncthreads();
            if (held > min(static_cast<uint32_t>(kCapacity) / 2, 2 * k + 64)) {
                const bool spread = block_spread<kThreads, kItems>(list, held, k, storage, bins);
                if (spread)
                    held = bins.kept;
                if (!spread || held > k + k / 4 + 4)
                    held = block_prune<kThreads, kItems>(list, held, k, 0, storage, counter);
                uint32_t least = kNanOrder, greatest = 0, unused = 0;
                for (uint32_t i = threadIdx.x; i < held; i += kThreads)
                    greatest = max(greatest, static_cast<uint32_t>(list[i] >> 32));
                block_range(least, greatest, unused, storage);
                bound = fminf(bound, key_of_order(held == k ? order_below(greatest) : greatest));
                if (threadIdx.x == 0)
                    size = held;
                __syncthreads();
            }
        }
        const size_t to = static_cast<size_t>(job) * k;
        block_emit_sorted<kThreads, kItems>(list, held, k, storage, bins,
                                            [&](uint32_t rank, Word word) { output.put(to + rank, word); });
        for (uint32_t i = min(held, k) + threadIdx.x; i < k; i += kThreads)
            output.put(to + i, kNoWord);
    }
}

} // namespace vecgpu::cuda
