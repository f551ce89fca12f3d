/*
 * block_select.cuh: selection and sorting by one thread block.
 *
 * Threshold selection needs an upper bound of the k-th smallest value that lets little more than k values through. The
 * k-th smallest minimum of groups is such a bound, always; it is found by bisection of the integers that the keys are,
 * three counts a barrier.
 *
 * Few words are ranked by counting, more are spread over bins that are ranges of their order (a word's rank is then the
 * start of its bin and its rank among the few in the bin), and only words that are too alike for that are sorted by
 * comparisons.
 */
#pragma once

#include "keys.cuh"

namespace vecgpu::cuda {

/* The sum of the values of this lane and of those before it. All lanes call. */
__device__ __forceinline__ uint32_t warp_inclusive_sum(uint32_t value, int lane)
{
#pragma unroll
    for (int offset = 1; offset < 32; offset <<= 1) {
        const uint32_t other = __shfl_up_sync(kFullWarp, value, offset);
        if (lane >= offset)
            value += other;
    }
    return value;
}

/*
 * The sum of the values of the threads before this one. All threads of a block call, with `sums` of a word a warp in
 * shared memory; a barrier comes between two calls with the same. One barrier is inside.
 */
__device__ __forceinline__ uint32_t block_sum_before(uint32_t value, uint32_t *sums)
{
    const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    const uint32_t within = warp_inclusive_sum(value, lane);
    if (lane == 31)
        sums[warp] = within;
    __syncthreads();
    return within - value + __reduce_add_sync(kFullWarp, lane < warp ? sums[lane] : 0u);
}

struct BlockBoundStorage {
    Word low[32], high[32]; /* a warp */
    uint32_t valid[32];
    uint32_t counts[3][3]; /* of three rounds in turn, so that one barrier a round is enough */
};

/*
 * The least t in [low, high] with count(t) >= k, given that count(high) >= k; any t with count(t) <= k + slack instead,
 * where one is met. count(middle, counts) counts for three ascending values at once. All threads that count call, with
 * the same arguments.
 */
template <class T, class Count>
__device__ __forceinline__ T bisect(T low, T high, uint32_t k, uint32_t slack, Count count)
{
    while (low < high) {
        const T width = high - low;
        const T middle[3] = {low + (width >> 2), low + (width >> 1), low + (width >> 1) + (width >> 2)};
        uint32_t counts[3];
        count(middle, counts);
        bool found = false;
#pragma unroll
        for (int j = 0; j < 3; j++) {
            if (found)
                break;
            if (counts[j] >= k) {
                high = middle[j];
                found = true;
                if (counts[j] <= k + slack)
                    return high;
            } else {
                low = middle[j] + 1;
            }
        }
    }
    return high;
}

/* Three counts of each thread, at most 65,535 in all, to sums for all threads; `round` goes 0, 1, 2, 0, … from 0. */
__device__ __forceinline__ void block_sums(uint32_t (&counts)[3], int &round, BlockBoundStorage &s)
{
    const int next = round == 2 ? 0 : round + 1;
    if (threadIdx.x == 0)
        s.counts[next][0] = s.counts[next][1] = s.counts[next][2] = 0;
    const uint32_t pair = __reduce_add_sync(kFullWarp, counts[0] | counts[1] << 16),
                   last = __reduce_add_sync(kFullWarp, counts[2]);
    if ((threadIdx.x & 31) == 0 && last) {
        atomicAdd(&s.counts[round][0], pair & 0xffff);
        atomicAdd(&s.counts[round][1], pair >> 16);
        atomicAdd(&s.counts[round][2], last);
    }
    __syncthreads();
#pragma unroll
    for (int j = 0; j < 3; j++)
        counts[j] = s.counts[round][j];
    round = next;
}

template <class T>
__device__ __forceinline__ void warp_range(T &low, T &high)
{
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
}

/*
 * Of all threads: the least and the greatest, and the sum of `valid`. Makes the storage ready for block_sums(). A
 * barrier lies before the storage is written.
 */
template <class T>
__device__ __forceinline__ void block_range(T &low, T &high, uint32_t &valid, BlockBoundStorage &s)
{
    const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    warp_range(low, high);
    valid = __reduce_add_sync(kFullWarp, valid);
    __syncthreads();
    if (lane == 0) {
        s.low[warp] = low;
        s.high[warp] = high;
        s.valid[warp] = valid;
    }
    if (threadIdx.x == 0)
        s.counts[0][0] = s.counts[0][1] = s.counts[0][2] = 0;
    __syncthreads();
    const bool some = lane < blockDim.x / 32;
    low = some ? static_cast<T>(s.low[lane]) : ~static_cast<T>(0);
    high = some ? static_cast<T>(s.high[lane]) : 0;
    warp_range(low, high);
    valid = __reduce_add_sync(kFullWarp, some ? s.valid[lane] : 0u);
}

/*
 * A value b with k <= #{v <= b} <= k + slack, or the k-th smallest when there is none (ties); all ones if fewer than k
 * values are not all ones, which means "no value". T is uint32_t or Word. All threads call; v is in registers.
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
    block_range(low, high, valid, s);
    if (valid < k)
        return none;
    if (valid <= k + slack)
        return high;
    int round = 0;
    return bisect(low, high, k, slack, [&](const T(&middle)[3], uint32_t(&counts)[3]) {
#pragma unroll
        for (int j = 0; j < 3; j++)
            counts[j] = 0;
#pragma unroll
        for (int i = 0; i < kItems; i++)
#pragma unroll
            for (int j = 0; j < 3; j++)
                counts[j] += v[i] <= middle[j];
        block_sums(counts, round, s);
    });
}

/* The same by one warp, for values in its registers. All lanes call. */
template <int kItems>
__device__ __forceinline__ uint32_t warp_bound(const uint32_t (&v)[kItems], uint32_t k, uint32_t slack)
{
    uint32_t low = kNanOrder, high = 0, valid = 0;
#pragma unroll
    for (int i = 0; i < kItems; i++)
        if (v[i] != kNanOrder) {
            low = min(low, v[i]);
            high = max(high, v[i]);
            valid++;
        }
    warp_range(low, high);
    valid = __reduce_add_sync(kFullWarp, valid);
    if (valid < k)
        return kNanOrder;
    if (valid <= k + slack)
        return high;
    return bisect(low, high, k, slack, [&](const uint32_t(&middle)[3], uint32_t(&counts)[3]) {
        uint32_t pair = 0, last = 0; /* each at most 32 kItems */
#pragma unroll
        for (int i = 0; i < kItems; i++) {
            pair += (v[i] <= middle[0]) + ((v[i] <= middle[1]) << 16);
            last += v[i] <= middle[2];
        }
        pair = __reduce_add_sync(kFullWarp, pair);
        counts[0] = pair & 0xffff;
        counts[1] = pair >> 16;
        counts[2] = __reduce_add_sync(kFullWarp, last);
    });
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

/* Room of block_spread(). */
template <int kThreads>
struct BlockBins {
    static constexpr uint32_t kBins = 4 * kThreads;
    alignas(16) uint32_t ends[kBins];
    uint32_t sums[kThreads / 32];
    uint32_t kept, crowded;
    /* What bins are equal ranges of. All words have orders (Slot: slots) from `low` on. */
    enum : uint32_t { Key, Order, Slot } by;
    uint32_t low;
    float least, scale;

    /* By one thread. */
    __device__ __forceinline__ void divide(uint32_t from, uint32_t to, bool slots, bool keys)
    {
        low = from;
        least = key_of_order(from);
        by = slots ? Slot : Order;
        scale = static_cast<float>(kBins - 1) / static_cast<float>(to - from);
        const float fine = static_cast<float>(kBins - 1) / (key_of_order(to) - least);
        if (!slots && keys && fine > 0 && fine < 1e37f) {
            by = Key;
            scale = fine;
        }
    }

    /* A greater word has no lesser bin: every step rounds monotonously. */
    __device__ __forceinline__ uint32_t of(Word word) const
    {
        const uint32_t x = by == Slot ? slot_of_word(word) : static_cast<uint32_t>(word >> 32);
        const float from = by == Key ? key_of_order(x) - least : static_cast<float>(x - low);
        return min(kBins - 1, static_cast<uint32_t>(from * scale));
    }
};

/*
 * Orders `count` distinct words of shared memory by bins: bin b's words come to places bins.ends[b - 1] (bin 0: 0) ..
 * bins.ends[b] - 1, for the bins that begin below place k; other words are dropped. bins.kept is how many words are left.
 * Bins are ranges of keys, or of orders if a few keys are far off, or of slots if all orders are equal. Returns false,
 * with the words as they were, if a bin would have more than kCrowd words. All threads call.
 */
constexpr uint32_t kCrowd = 128;

template <int kThreads, int kItems>
__device__ __forceinline__ bool block_spread(Word *words, uint32_t count, uint32_t k, BlockBoundStorage &s,
                                             BlockBins<kThreads> &bins)
{
    uint32_t low = kNanOrder, high = 0, unused = 0;
    for (uint32_t i = threadIdx.x; i < count; i += kThreads) {
        const uint32_t order = static_cast<uint32_t>(words[i] >> 32);
        low = min(low, order);
        high = max(high, order);
    }
    block_range(low, high, unused, s);
    const bool slots = low == high;
    if (slots) {
        low = kNanOrder, high = 0;
        for (uint32_t i = threadIdx.x; i < count; i += kThreads) {
            low = min(low, slot_of_word(words[i]));
            high = max(high, slot_of_word(words[i]));
        }
        block_range(low, high, unused, s);
    }
    uint4 *mine = reinterpret_cast<uint4 *>(bins.ends) + threadIdx.x;
#pragma unroll 1
    for (bool keys = true;; keys = false) {
        *mine = make_uint4(0, 0, 0, 0);
        if (threadIdx.x == 0) {
            bins.divide(low, high, slots, keys);
            bins.kept = count;
            bins.crowded = 0;
        }
        __syncthreads();
        for (uint32_t i = threadIdx.x; i < count; i += kThreads)
            atomicAdd(&bins.ends[bins.of(words[i])], 1u);
        __syncthreads();
        const uint4 held = *mine;
        const uint32_t total = held.x + held.y + held.z + held.w;
        const uint32_t before = block_sum_before(total, bins.sums);
        const uint32_t starts[4] = {before, before + held.x, before + held.x + held.y, before + total - held.w},
                       sizes[4] = {held.x, held.y, held.z, held.w};
        *mine = make_uint4(starts[0], starts[1], starts[2], starts[3]);
#pragma unroll
        for (int j = 0; j < 4; j++)
            if (starts[j] < k) {
                if (sizes[j] > kCrowd)
                    bins.crowded = 1;
                if (starts[j] + sizes[j] >= k)
                    bins.kept = starts[j] + sizes[j];
            }
        __syncthreads();
        if (!bins.crowded)
            break;
        if (bins.by != bins.Key)
            return false;
        __syncthreads();
    }
    Word v[kItems];
#pragma unroll
    for (int i = 0; i < kItems; i++) {
        const uint32_t at = threadIdx.x + i * kThreads;
        v[i] = at < count ? words[at] : kNoWord;
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kItems; i++)
        if (v[i] != kNoWord) {
            const uint32_t at = atomicAdd(&bins.ends[bins.of(v[i])], 1u);
            if (at < bins.kept) /* or its bin begins at k or later */
                words[at] = v[i];
        }
    __syncthreads();
    return true;
}

/*
 * Calls emit(rank, word) once for each of the min(k, count) smallest of `count` distinct words in shared memory, with
 * rank 0 for the smallest. `words` has room for kThreads x kItems, a power of two; the content is lost. All threads
 * call.
 */
template <int kThreads, int kItems, class Emit>
__device__ __forceinline__ void block_emit_sorted(Word *words, uint32_t count, uint32_t k, BlockBoundStorage &s,
                                                  BlockBins<kThreads> &bins, Emit emit)
{
    /* Up to here counting smaller ones is faster than bins; in a large block by several lanes a word. */
    constexpr uint32_t kRankLimit = kThreads >= 1024 ? 256 : 96;
    if (count <= kRankLimit) {
        uint32_t lanes = 1;
        if (kThreads >= 1024)
            while (lanes < 32 && count * lanes * 2 <= kThreads)
                lanes *= 2;
        if (lanes == 1) {
            for (uint32_t i = threadIdx.x; i < count; i += kThreads) {
                const Word mine = words[i];
                uint32_t rank = 0;
                for (uint32_t j = 0; j < count; j++)
                    rank += words[j] < mine;
                if (rank < k)
                    emit(rank, mine);
            }
        } else {
            const uint32_t i = threadIdx.x / lanes, sub = threadIdx.x & (lanes - 1);
            const Word mine = i < count ? words[i] : 0;
            uint32_t rank = 0;
            for (uint32_t j = sub; j < count; j += lanes)
                rank += words[j] < mine;
            for (uint32_t offset = lanes / 2; offset; offset >>= 1)
                rank += __shfl_xor_sync(kFullWarp, rank, offset);
            if (sub == 0 && i < count && rank < k)
                emit(rank, mine);
        }
        __syncthreads();
        return;
    }
    if (block_spread<kThreads, kItems>(words, count, k, s, bins)) {
        for (uint32_t i = threadIdx.x; i < bins.kept; i += kThreads) {
            const Word mine = words[i];
            const uint32_t bin = bins.of(mine), start = bin ? bins.ends[bin - 1] : 0, end = bins.ends[bin];
            uint32_t rank = start;
            for (uint32_t j = start; j < end; j++)
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
