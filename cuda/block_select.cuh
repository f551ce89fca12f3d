/*
 * block_select.cuh: selection and sorting by one thread block.
 *
 * Threshold selection needs an upper bound of the k-th smallest value that lets little more than k values through. The
 * k-th smallest minimum of groups is such a bound, always; it is found by bisection of the integers that the keys are,
 * three counts a barrier.
 */
#pragma once

#include "keys.cuh"

namespace vecgpu::cuda {

struct BlockBoundStorage {
    Word low, high;
    uint32_t valid;
    uint32_t counts[3][3]; /* of three rounds in turn, so that one barrier a round is enough */
};

/*
 * A value b with k <= #{v <= b} <= k + slack, or the k-th smallest when there is none (ties); kNone if fewer than k
 * values are below kNone. T is uint32_t or Word; kNone = all ones, "no value". All threads call; v is in registers.
 */
template <int kItems, class T>
__device__ T block_bound(const T (&v)[kItems], uint32_t k, uint32_t slack, BlockBoundStorage &s)
{
    const T none = ~static_cast<T>(0);
    T low = none, high = 0;
    uint32_t valid = 0;
#pragma unroll
    for (int i = 0; i < kItems; i++)
        if (v[i] != none) {
            low = min(low, v[i]);
            high = max(high, v[i]);
            valid++;
        }
    if constexpr (sizeof(T) == 4) {
        low = __reduce_min_sync(kFullWarp, low);
        high = __reduce_max_sync(kFullWarp, high);
    } else {
#pragma unroll
        for (int offset = 16; offset; offset >>= 1) {
            low = min(low, __shfl_xor_sync(kFullWarp, low, offset));
            high = max(high, __shfl_xor_sync(kFullWarp, high, offset));
        }
    }
    valid = __reduce_add_sync(kFullWarp, valid);
    __syncthreads();
    if (threadIdx.x == 0) {
        s.low = ~0ull;
        s.high = 0;
        s.valid = 0;
        s.counts[0][0] = s.counts[0][1] = s.counts[0][2] = 0;
    }
    __syncthreads();
    if ((threadIdx.x & 31) == 0 && valid) {
        atomicMin(&s.low, static_cast<Word>(low));
        atomicMax(&s.high, static_cast<Word>(high));
        atomicAdd(&s.valid, valid);
    }
    __syncthreads();
    low = static_cast<T>(s.low);
    high = static_cast<T>(s.high);
    valid = s.valid;
    if (valid < k)
        return none;
    if (valid <= k + slack)
        return high;
    /* Invariant: the k-th smallest is in [low, high]. Quarter the interval. */
    for (int round = 0; low < high; round = round == 2 ? 0 : round + 1) {
        const T width = high - low;
        const T middle[3] = {low + (width >> 2), low + (width >> 1), low + (width >> 1) + (width >> 2)};
        uint32_t count[3] = {0, 0, 0};
#pragma unroll
        for (int i = 0; i < kItems; i++) {
            count[0] += v[i] <= middle[0];
            count[1] += v[i] <= middle[1];
            count[2] += v[i] <= middle[2];
        }
        const int next = round == 2 ? 0 : round + 1;
        if (threadIdx.x == 0)
            s.counts[next][0] = s.counts[next][1] = s.counts[next][2] = 0;
#pragma unroll
        for (int j = 0; j < 3; j++) {
            const uint32_t sum = __reduce_add_sync(kFullWarp, count[j]);
            if ((threadIdx.x & 31) == 0 && sum)
                atomicAdd(&s.counts[round][j], sum);
        }
        __syncthreads();
        bool found = false;
#pragma unroll
        for (int j = 0; j < 3; j++) {
            if (found)
                break;
            uint32_t c = s.counts[round][j];
            if (c >= k) {
                high = middle[j];
                found = true;
                if (c <= k + slack)
                    return high;
            } else {
                low = middle[j] + 1;
            }
        }
    }
    return high;
}

/*
 * Keeps at least the k smallest of the `count` words of `buffer` (shared memory, count <= kThreads * kItems), and at
 * most k + slack. Returns how many, the same to all threads. All threads call.
 */
template <int kThreads, int kItems>
__device__ uint32_t block_prune(Word *buffer, uint32_t count, uint32_t k, uint32_t slack, BlockBoundStorage &s,
                                uint32_t &counter)
{
    Word v[kItems];
#pragma unroll
    for (int i = 0; i < kItems; i++) {
        uint32_t at = threadIdx.x + i * kThreads;
        v[i] = at < count ? buffer[at] : kNoWord;
    }
    Word bound = block_bound<kItems>(v, k, slack, s);
    __syncthreads();
    if (threadIdx.x == 0)
        counter = 0;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kItems; i++)
        if (v[i] != kNoWord && v[i] <= bound)
            buffer[atomicAdd(&counter, 1u)] = v[i];
    __syncthreads();
    uint32_t kept = counter;
    __syncthreads();
    return kept;
}

/*
 * Sorts `size` words of shared memory, a power of two, ascending. All threads call; barriers before and after are
 * inside.
 */
__device__ inline void block_sort(Word *words, uint32_t size)
{
    for (uint32_t run = 2; run <= size; run <<= 1)
        for (uint32_t step = run >> 1; step; step >>= 1) {
            __syncthreads();
            for (uint32_t i = threadIdx.x; i < size / 2; i += blockDim.x) {
                uint32_t a = (i / step) * 2 * step + i % step, b = a + step;
                bool up = (a & run) == 0;
                Word x = words[a], y = words[b];
                if ((x > y) == up) {
                    words[a] = y;
                    words[b] = x;
                }
            }
        }
    __syncthreads();
}

/*
 * Calls emit(rank, word) once for each of the min(k, count) smallest of `count` distinct words in shared memory, with
 * rank 0 for the smallest. `room` is how many words `words` can hold (a power of two >= count); the content is lost.
 * All threads call.
 */
template <int kThreads, int kItems, class Emit>
__device__ void block_emit_sorted(Word *words, uint32_t count, uint32_t k, BlockBoundStorage &s, uint32_t &counter,
                                  Emit emit)
{
    constexpr uint32_t kRankLimit = 512; /* up to here counting smaller ones beats sorting */
    if (count > kRankLimit && count > k)
        count = block_prune<kThreads, kItems>(words, count, k, k < kRankLimit ? (kRankLimit - k) / 2 : 0, s, counter);
    if (count <= kRankLimit) {
        for (uint32_t i = threadIdx.x; i < count; i += kThreads) {
            Word mine = words[i];
            uint32_t rank = 0;
            for (uint32_t j = 0; j < count; j++)
                rank += words[j] < mine;
            if (rank < k)
                emit(rank, mine);
        }
        __syncthreads();
        return;
    }
    uint32_t size = 1;
    while (size < count)
        size <<= 1;
    for (uint32_t i = count + threadIdx.x; i < size; i += kThreads)
        words[i] = kNoWord;
    block_sort(words, size);
    for (uint32_t i = threadIdx.x; i < min(k, count); i += kThreads)
        emit(i, words[i]);
    __syncthreads();
}

} // namespace vecgpu::cuda
