/*
 * warp_list.cuh: a sorted list of words in the registers of a warp: element r * 32 + lane is in v[r] of the lane.
 *
 * The queue of WarpSelect (Johnson, Douze, Jegou, "Billion-scale similarity search with GPUs", 2017, section 4): new
 * words are sorted by a bitonic network, the smaller half of each pair (list ascending, new words descending) is kept,
 * and one bitonic merge restores order.
 */
#pragma once

#include "keys.cuh"

namespace vecgpu::cuda {

/* The words of the lanes, one each, sorted descending. */
__device__ __forceinline__ Word warp_sort_descending(Word v)
{
    const int lane = threadIdx.x & 31;
#pragma unroll
    for (int run = 2; run <= 32; run <<= 1)
#pragma unroll
        for (int step = run >> 1; step; step >>= 1) {
            const Word other = __shfl_xor_sync(kFullWarp, v, step);
            const bool descending = run == 32 || (lane & run) == 0, lower = (lane & step) == 0;
            v = (lower != descending) == (v < other) ? v : other;
        }
    return v;
}

template <int kRegisters>
struct WarpList {
    static constexpr int kCapacity = 32 * kRegisters;
    Word v[kRegisters];

    __device__ __forceinline__ void clear()
    {
#pragma unroll
        for (int r = 0; r < kRegisters; r++)
            v[r] = kNoWord;
    }

    /* Keeps the kCapacity smallest of the list and one new word a lane (kNoWord: none). */
    __device__ __forceinline__ void merge(Word fresh)
    {
        const int lane = threadIdx.x & 31;
        fresh = warp_sort_descending(fresh);
        v[kRegisters - 1] = min(v[kRegisters - 1], fresh);
        settle(lane);
    }

    /* Keeps the kCapacity smallest of the list and `count` words of shared memory that are sorted ascending. */
    __device__ __forceinline__ void merge_sorted(const Word *words, int count)
    {
        const int lane = threadIdx.x & 31;
#pragma unroll
        for (int r = 0; r < kRegisters; r++) {
            const int at = kCapacity - 1 - (r * 32 + lane);
            if (at < count)
                v[r] = min(v[r], words[at]);
        }
        settle(lane);
    }

    /* Inserts one word, the same in all lanes; the last one falls out. */
    __device__ __forceinline__ void insert(Word word)
    {
        const int lane = threadIdx.x & 31;
        int place = 0;
        Word before[kRegisters];
#pragma unroll
        for (int r = 0; r < kRegisters; r++) {
            place += __popc(__ballot_sync(kFullWarp, v[r] < word));
            before[r] = __shfl_sync(kFullWarp, v[r], (lane + 31) & 31);
        }
#pragma unroll
        for (int r = kRegisters - 1; r >= 0; r--) {
            const Word previous = lane == 0 && r > 0 ? before[r > 0 ? r - 1 : 0] : before[r];
            const int at = r * 32 + lane;
            v[r] = at > place ? previous : at == place ? word : v[r];
        }
    }

    /*
     * Element `at`, for all lanes. Selects written as instructions: from selects in C++ the compiler makes an indexed
     * read, for which it moves v to local memory.
     */
    __device__ __forceinline__ Word element(int at) const
    {
        Word x = v[0];
#pragma unroll
        for (int r = 1; r < kRegisters; r++)
            asm("{ .reg .pred p; setp.eq.s32 p, %2, %3; selp.b64 %0, %1, %0, p; }"
                : "+l"(x)
                : "l"(v[r]), "r"(at >> 5), "r"(r));
        return __shfl_sync(kFullWarp, x, at & 31);
    }

    /* Drops the elements from `size` on. */
    __device__ __forceinline__ void truncate(int size)
    {
        const int lane = threadIdx.x & 31;
#pragma unroll
        for (int r = 0; r < kRegisters; r++)
            if (r * 32 + lane >= size)
                v[r] = kNoWord;
    }

private:
    /* Bitonic to ascending. */
    __device__ __forceinline__ void settle(int lane)
    {
#pragma unroll
        for (int step = kRegisters / 2; step >= 1; step >>= 1)
#pragma unroll
            for (int r = 0; r < kRegisters; r++)
                if (!(r & step)) {
                    const Word a = v[r], b = v[r + step];
                    v[r] = min(a, b);
                    v[r + step] = max(a, b);
                }
#pragma unroll
        for (int step = 16; step; step >>= 1)
#pragma unroll
            for (int r = 0; r < kRegisters; r++) {
                const Word other = __shfl_xor_sync(kFullWarp, v[r], step);
                v[r] = ((lane & step) == 0) == (v[r] < other) ? v[r] : other;
            }
    }
};

/*
 * Inserts `word` (the same in all lanes) into an ascending list of `size` words in shared memory unless it is there
 * already.
 */
__device__ __forceinline__ void warp_insert_shared(Word *list, uint32_t size, Word word)
{
    const int lane = threadIdx.x & 31;
    uint32_t place = 0;
    bool twice = false;
    for (uint32_t first = 0; first < size; first += 32) {
        const Word x = first + lane < size ? list[first + lane] : kNoWord;
        place += __popc(__ballot_sync(kFullWarp, x < word));
        twice |= __any_sync(kFullWarp, x == word);
    }
    if (twice || place >= size)
        return;
    for (int r = static_cast<int>((size - 1) / 32); r >= static_cast<int>(place / 32); r--) {
        const uint32_t at = r * 32 + lane;
        const bool moves = at < size && at > place;
        const Word x = moves ? list[at - 1] : word;
        __syncwarp();
        if (moves || at == place)
            list[at] = x;
        __syncwarp();
    }
}

} // namespace vecgpu::cuda
