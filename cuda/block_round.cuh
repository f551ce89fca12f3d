/*
 * block_round.cuh: the words of one round of a graph search by blocks (graph_block.cuh): the room that blocks keep for each
 * other's, their order, and the nodes that the round expands.
 */
#pragma once

#include "block_select.cuh"
#include "graph_warp.cuh"

namespace vecgpu::cuda {

/* All links of a round. */
__host__ __device__ constexpr uint32_t round_cells(uint32_t parents, uint32_t degree)
{
    return parents * degree > kEntries ? parents * degree : kEntries;
}

/*
 * Places of one block in a box. All links of a round may belong to it, but of eight blocks one has an eighth of them: if
 * it should ever be more than half, the search gives up.
 */
__host__ __device__ constexpr uint32_t box_places(uint32_t parents, uint32_t degree, uint32_t blocks)
{
    const uint32_t half = round_cells(parents, degree) / 2;
    return blocks >= 8 && half >= kEntries ? half : round_cells(parents, degree);
}
constexpr uint32_t kTooMany = 1 << 24; /* instead of words in a box */

/*
 * Words in all: boxes by sender for two rounds, as others may be a round ahead, the words of a round without gaps, and in
 * order. A block on its own needs one box, which has no gaps.
 */
__host__ __device__ constexpr uint32_t box_words(uint32_t parents, uint32_t degree, uint32_t blocks)
{
    return blocks > 1 ? 2 * blocks * box_places(parents, degree, blocks) + 2 * round_cells(parents, degree)
                      : 2 * round_cells(parents, degree);
}

/* How many of `count` ascending words, at most 2^16, come before `word`. */
__device__ __forceinline__ uint32_t words_before(const Word *words, uint32_t count, Word word)
{
    uint32_t before = 0;
#pragma unroll 1
    for (uint32_t step = 1u << (31 - __clz(count | 1)); step; step >>= 1)
        if (before + step <= count && words[before + step - 1] < word)
            before += step;
    return before;
}

/* Up to so many words of a round are ranked by counting, more by bins. */
constexpr uint32_t kFewWords = 96;

/* Room for ordering the words of rounds. */
template <int kThreads>
struct RoundRoom {
    static constexpr uint32_t kBins = 1024;
    alignas(16) uint32_t bins[kBins]; /* all zero before sort() */
    uint32_t sums[kThreads / 32];     /* a warp */
    uint32_t least[2], most[2];       /* orders of the words of two rounds in turn */
    uint32_t crowded;

    /* By all threads, before the first round, and after each that has called sort(). A barrier must follow. */
    __device__ __forceinline__ void clear()
    {
        constexpr uint32_t kPieces = kBins / 4;
#pragma unroll
        for (uint32_t first = 0; first < kPieces; first += kThreads)
            if (kThreads <= kPieces || threadIdx.x < kPieces)
                reinterpret_cast<uint4 *>(bins)[first + threadIdx.x] = make_uint4(0, 0, 0, 0);
        if (threadIdx.x == 0)
            crowded = 0;
    }

    __device__ __forceinline__ void clear_range(uint32_t turn)
    {
        least[turn] = kNanOrder;
        most[turn] = 0;
    }

    /* All lanes of a warp call. */
    __device__ __forceinline__ void add_range(uint32_t low, uint32_t high, uint32_t turn)
    {
        low = __reduce_min_sync(kFullWarp, low);
        high = __reduce_max_sync(kFullWarp, high);
        if ((threadIdx.x & 31) == 0 && low <= high) {
            atomicMin(&least[turn], low);
            atomicMax(&most[turn], high);
        }
    }
};

/* A round's different new words, and what its parents are chosen from. Everything lies in shared memory. */
struct RoundWords {
    const Word *words;
    uint32_t count;
    Word *sorted;                /* to be: the words in ascending order; the lowest bit says that a node is expanded */
    const Word *open;            /* the best of the list that are not expanded, in order */
    const uint32_t *open_places; /* where they are in it */
    uint32_t opens;              /* at most kMaxParents */
    const Word *members;
    uint32_t ef;       /* the list: its first ef words */
    uint32_t width;    /* nodes to expand, at most kMaxParents */
    uint32_t *parents; /* to be: these nodes */
    uint8_t *expands;  /* to be: 1 for those of them that are in the list */

    /*
     * Whether a word is expanded that `rank` of the words and the open nodes come before, `place` of them words: if it
     * is among the ef best, so if fewer than ef - place of the list come before it.
     */
    __device__ __forceinline__ bool expanded(Word word, uint32_t rank, uint32_t place) const
    {
        return rank < width && place < ef && members[ef - 1 - place] >= word;
    }

    /* All of it by counting, by all threads: for few words. */
    template <int kThreads>
    __device__ __forceinline__ void rank() const
    {
        const uint32_t tid = threadIdx.x;
        /* Threads for two words each, so that a word read from shared memory is compared twice. */
        const uint32_t word_pairs = (count + 1) / 2, pairs = word_pairs + (opens + 1) / 2;
        const int shift = max(0, min(4, __clz(pairs - 1) - __clz(kThreads - 1))); /* 2^shift threads a pair */
        const uint32_t step = 1u << shift, sub = tid & (step - 1);
        for (uint32_t g = tid >> shift; (g & ~(31u >> shift)) < pairs; g += kThreads >> shift) {
            const bool is_new = g < word_pairs;
            const uint32_t first = 2 * (is_new ? g : g - word_pairs), end = is_new ? count : g < pairs ? opens : 0;
            const Word *const from = is_new ? words : open;
            const Word mine[2] = {first < end ? from[first] : kNoWord, first + 1 < end ? from[first + 1] : kNoWord};
            uint32_t less[2] = {0, 0}; /* new words in the lower half, open ones in the upper */
#pragma unroll 1
            for (int part = 0; part < 2; part++) {
                const Word *const others = part ? open : words;
                const uint32_t n = part ? opens : count, one = part ? 1 << 16 : 1;
#pragma unroll 2
                for (uint32_t j = 2 * sub; j < n; j += 2 * step) {
                    ulonglong2 two = *reinterpret_cast<const ulonglong2 *>(others + j);
                    two.y = j + 1 < n ? two.y : kNoWord;
                    less[0] += two.x < mine[0] ? one : 0;
                    less[1] += two.x < mine[1] ? one : 0;
                    less[0] += two.y < mine[0] ? one : 0;
                    less[1] += two.y < mine[1] ? one : 0;
                }
            }
            for (uint32_t s = step >> 1; s; s >>= 1) {
                less[0] += __shfl_xor_sync(kFullWarp, less[0], s);
                less[1] += __shfl_xor_sync(kFullWarp, less[1], s);
            }
            for (uint32_t i = sub; i < 2 && first + i < end; i += step) {
                const Word word = i ? mine[1] : mine[0];
                const uint32_t both = i ? less[1] : less[0], place = both & 0xffff, before = place + (both >> 16);
                const bool expand = expanded(word, before, place);
                if (expand)
                    parents[before] = static_cast<uint32_t>(word) >> 1;
                if (is_new)
                    sorted[place] = word | expand;
                else if (expand)
                    expands[open_places[first + i]] = 1;
            }
        }
    }

    /*
     * The words in order, by all threads; room.least[turn] and .most[turn] are their range. Bins are equal ranges of the
     * keys, each is sorted by one thread. False, and nothing done that matters, if one of them has too many. Barriers
     * come after each step.
     */
    template <int kThreads>
    __device__ __forceinline__ bool sort(RoundRoom<kThreads> &room, uint32_t turn) const
    {
        constexpr uint32_t kCrowded = 24, kBins = RoundRoom<kThreads>::kBins, kEach = kBins / kThreads;
        const uint32_t tid = threadIdx.x;
        const float low = key_of_order(room.least[turn]), width_of_all = key_of_order(room.most[turn]) - low;
        const float scale = width_of_all > 0 && width_of_all < 1e37f ? (kBins - 1) / width_of_all : 0.f;
        /* A greater word has no lesser bin: every step rounds monotonously. */
        auto bin_of = [&](Word word) {
            return min(kBins - 1, static_cast<uint32_t>((key_of_word(word) - low) * scale));
        };
        for (uint32_t i = tid; i < count; i += kThreads)
            atomicAdd(&room.bins[bin_of(words[i])], 1u);
        __syncthreads();
        uint2 *const mine = reinterpret_cast<uint2 *>(room.bins + tid * kEach);
        uint32_t held[kEach], total = 0, most = 0;
#pragma unroll
        for (uint32_t b = 0; b < kEach; b += 2) {
            const uint2 two = mine[b / 2];
            held[b] = two.x, held[b + 1] = two.y;
            total += two.x + two.y;
            most = max(most, max(two.x, two.y));
        }
        if (most > kCrowded)
            room.crowded = 1;
        const uint32_t before = block_sum_before(total, room.sums);
        if (room.crowded)
            return false;
        uint32_t start = before;
#pragma unroll
        for (uint32_t b = 0; b < kEach; b += 2) {
            mine[b / 2] = make_uint2(start, start + held[b]);
            start += held[b] + held[b + 1];
        }
        __syncthreads();
        for (uint32_t i = tid; i < count; i += kThreads) {
            const Word word = words[i];
            sorted[atomicAdd(&room.bins[bin_of(word)], 1u)] = word;
        }
        __syncthreads();
        start = before;
#pragma unroll
        for (uint32_t b = 0; b < kEach; b++) {
            for (uint32_t i = 1; i < held[b]; i++) {
                const Word word = sorted[start + i];
                uint32_t at = i;
                for (; at > 0; at--) {
                    const Word other = sorted[start + at - 1];
                    if (other < word)
                        break;
                    sorted[start + at] = other;
                }
                sorted[start + at] = word;
            }
            start += held[b];
        }
        __syncthreads();
        return true;
    }

    /* By all threads, after sort(): the parents, the first of two ascending sequences together. */
    __device__ __forceinline__ void choose() const
    {
        const uint32_t some = min(count, width), i = threadIdx.x % kMaxParents;
        const bool is_new = threadIdx.x < kMaxParents;
        const Word *const from = is_new ? sorted : open;
        Word word = kNoWord;
        uint32_t others = 0;
        if (threadIdx.x < 2 * kMaxParents && i < (is_new ? some : opens)) {
            word = from[i];
            others = words_before(is_new ? open : sorted, is_new ? opens : some, word);
        }
        __syncthreads();
        if (word != kNoWord && expanded(word, i + others, is_new ? i : others)) {
            parents[i + others] = static_cast<uint32_t>(word) >> 1;
            if (is_new)
                sorted[i] = word | 1;
            else
                expands[open_places[i]] = 1;
        }
    }
};

} // namespace vecgpu::cuda
