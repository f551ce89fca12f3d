/*
 * block_list.cuh: parts of a graph search by blocks (graph_block.cuh): the list of a search in shared memory, and the
 * keys of its best by the rows themselves.
 */
#pragma once

#include "graph_warp.cuh"

namespace vecgpu::cuda {

/* Keys by the fine kernel of any storage, with the metric and the length of rows of Kernel. */
template <class Kernel>
struct FineKeys;

template <Storage kStorage, bool kDot, bool kShort, Precision kPrecision, int kFlight>
struct FineKeys<RowKernel<kStorage, kDot, kShort, kPrecision, kFlight>> {
    static __device__ float get(Storage storage, const Rows &rows, const uint4 *query, const QueryHead &head,
                                uint32_t slot, int n)
    {
        switch (storage) {
        case Storage::Float32:
            return by<Storage::Float32>(rows, query, head, slot, n);
        case Storage::Float16:
            return by<Storage::Float16>(rows, query, head, slot, n);
        case Storage::BFloat16:
            return by<Storage::BFloat16>(rows, query, head, slot, n);
        default:
            return by<Storage::Int8>(rows, query, head, slot, n);
        }
    }

private:
    template <Storage kRows>
    static __device__ __forceinline__ float by(const Rows &rows, const uint4 *query, const QueryHead &head,
                                               uint32_t slot, int n)
    {
        using Kernel = RowKernel<kRows, kDot, kShort, Precision::Fine, kFlight>;
        return Kernel::template keys<true>(rows, query, head, slot, n);
    }
};

/*
 * By one warp: `count` new words, of which those with their lowest bit set may be doubles, into the list `members` of
 * ef; then the best `width` open nodes are marked as expanded and named in `parents`.
 */
template <int kRegisters>
__device__ __noinline__ void merge_doubles(Word *members, uint32_t ef, const Word *words, uint32_t count,
                                           uint32_t width, uint32_t *parents)
{
    const int lane = threadIdx.x & 31;
    WarpList<kRegisters> list;
#pragma unroll
    for (int r = 0; r < kRegisters; r++)
        list.v[r] = members[r * 32 + lane];
    auto enter = [&](Word word) {
        list.merge(word);
        list.truncate(ef);
    };
    for (uint32_t first = 0; first < count; first += 32) {
        const Word word = first + lane < count ? words[first + lane] : kNoWord;
        const bool suspect = word != kNoWord && (word & 1);
        enter(suspect ? kNoWord : word);
        for (uint32_t m = __ballot_sync(kFullWarp, suspect); m; m &= m - 1) {
            const Word x = __shfl_sync(kFullWarp, word, __ffs(m) - 1) & ~1ull;
            bool there = false;
#pragma unroll
            for (int r = 0; r < kRegisters; r++)
                there |= (list.v[r] | 1) == (x | 1);
            if (!__any_sync(kFullWarp, there))
                enter(lane == 0 ? x : kNoWord);
        }
    }
    uint32_t n = 0;
#pragma unroll
    for (int r = 0; r < kRegisters; r++) {
        const bool open = !(static_cast<uint32_t>(list.v[r]) & 1);
        const uint32_t m = __ballot_sync(kFullWarp, open), rank = n + __popc(m & ((1u << lane) - 1));
        if (open && rank < width) {
            parents[rank] = static_cast<uint32_t>(list.v[r]) >> 1;
            list.v[r] |= 1;
        }
        n += __popc(m);
        members[r * 32 + lane] = list.v[r];
    }
}

} // namespace vecgpu::cuda
