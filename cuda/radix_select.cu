/*
 * radix_select.cu: the k smallest of one long array of orders, any k, any values: no bound to guess, no list to
 * overflow.
 *
 * Radix descent over the 64-bit (order, index) words: six digits, from the top; a histogram a pass, the last block of
 * which picks the bin of the k-th word. As the words are distinct the answer is exact and ties break by index. The
 * passes over the index digits end at once unless equal orders straddle the k-th place. Device-wide form of the radix
 * select of Alabi, Blelloch et al., "Fast K-selection Algorithms for Graphics Processing Units" (2012).
 */
#include "block_select.cuh"
#include "job.h"
#include "launch.h"

namespace vecgpu::cuda {

namespace {

constexpr int kThreads = 512;
constexpr int kDigits = 6;
__host__ __device__ constexpr int digit_bits(int digit)
{
    return digit % 3 == 2 ? 10 : 11;
}
__host__ __device__ constexpr int digit_shift(int digit)
{
    int shift = 64;
    for (int i = 0; i <= digit; i++)
        shift -= digit_bits(i);
    return shift;
}

__global__ void radix_begin_kernel(RadixState *state)
{
    for (uint32_t i = threadIdx.x; i < kRadixBins; i += blockDim.x)
        state->bins[i] = 0;
    if (threadIdx.x == 0) {
        state->bound = 0;
        state->remaining = 0;
        state->wanted = 0;
        state->done = 0;
        state->finished = 0;
        state->collected = 0;
        state->words = 0;
    }
}

__device__ bool last_block(uint32_t *finished)
{
    __shared__ uint32_t last;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0)
        last = atomicAdd(finished, 1u) == gridDim.x - 1;
    __syncthreads();
    if (last)
        __threadfence();
    return last;
}

template <int kDigit>
__global__ void __launch_bounds__(kThreads)
    radix_count_kernel(const uint32_t *orders, uint32_t count, uint32_t k, RadixState *state)
{
    constexpr int kShift = digit_shift(kDigit), kBits = digit_bits(kDigit);
    __shared__ uint32_t bins[kRadixBins], words;
    if (kDigit > 0 && __ldcg(&state->done))
        return;
    for (uint32_t i = threadIdx.x; i < kRadixBins; i += kThreads)
        bins[i] = 0;
    if (threadIdx.x == 0)
        words = 0;
    __syncthreads();
    const Word prefix = kDigit > 0 ? __ldcg(&state->bound) : 0;
    uint32_t seen = 0;
    for (uint64_t i = static_cast<uint64_t>(blockIdx.x) * kThreads + threadIdx.x; i < count;
         i += static_cast<uint64_t>(gridDim.x) * kThreads) {
        uint32_t order = orders[i];
        if (order == kNanOrder)
            continue;
        seen++;
        Word word = static_cast<Word>(order) << 32 | i;
        bool mine = true;
        if constexpr (kDigit > 0)
            mine = word >> (kShift + kBits) == prefix;
        if (mine)
            atomicAdd(&bins[static_cast<uint32_t>(word >> kShift) & ((1u << kBits) - 1)], 1u);
    }
    if (kDigit == 0 && seen)
        atomicAdd(&words, seen);
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < kRadixBins; i += kThreads)
        if (bins[i])
            atomicAdd(&state->bins[i], bins[i]);
    if (kDigit == 0 && threadIdx.x == 0 && words)
        atomicAdd(&state->words, words);
    if (!last_block(&state->finished))
        return;

    /* Running sums of the bins, and the bin that holds the wanted rank. */
    __shared__ uint32_t sums[kThreads], chosen, before, inside;
    constexpr int kEach = kRadixBins / kThreads;
    uint32_t total = 0, mine[kEach];
#pragma unroll
    for (int j = 0; j < kEach; j++) {
        mine[j] = __ldcg(&state->bins[threadIdx.x * kEach + j]);
        total += mine[j];
    }
    sums[threadIdx.x] = total;
    const uint32_t all = __ldcg(&state->words);
    const uint32_t wanted = min(k, all);
    const uint32_t rank = kDigit == 0 ? wanted : __ldcg(&state->remaining);
    if (threadIdx.x == 0)
        inside = 0;
    __syncthreads();
    for (int offset = 1; offset < kThreads; offset <<= 1) {
        uint32_t add = threadIdx.x >= offset ? sums[threadIdx.x - offset] : 0;
        __syncthreads();
        sums[threadIdx.x] += add;
        __syncthreads();
    }
    uint32_t below = sums[threadIdx.x] - total;
#pragma unroll
    for (int j = 0; j < kEach; j++) {
        if (below < rank && below + mine[j] >= rank) {
            chosen = threadIdx.x * kEach + j;
            before = below;
            inside = mine[j];
        }
        below += mine[j];
        state->bins[threadIdx.x * kEach + j] = 0;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        state->finished = 0;
        if (kDigit == 0)
            state->wanted = wanted;
        if (wanted == all) {
            state->bound = static_cast<Word>(kNanOrder) << 32; /* everything */
            state->done = 1;
        } else {
            Word digits = kDigit == 0 ? chosen : prefix << kBits | chosen;
            bool done = kShift == 0 || rank - before == inside;
            state->remaining = rank - before;
            state->bound = done ? (digits << kShift) | ((static_cast<Word>(1) << kShift) - 1) : digits;
            state->done = done;
        }
    }
}

__global__ void __launch_bounds__(1024) radix_collect_kernel(const uint32_t *orders, uint32_t count, RadixState *state,
                                                             Word *candidates, Hit *hits, uint32_t *found)
{
    extern __shared__ __align__(16) unsigned char dynamic[];
    Word *list = reinterpret_cast<Word *>(dynamic);
    __shared__ BlockBoundStorage storage;
    __shared__ BlockBins<1024> bins;
    const Word bound = __ldcg(&state->bound);
    for (uint64_t i = static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
         i += static_cast<uint64_t>(gridDim.x) * blockDim.x) {
        uint32_t order = orders[i];
        Word word = static_cast<Word>(order) << 32 | i;
        if (order != kNanOrder && word <= bound)
            __stcg(candidates + atomicAdd(&state->collected, 1u), word);
    }
    if (!last_block(&state->finished))
        return;
    const uint32_t size = __ldcg(&state->collected);
    for (uint32_t i = threadIdx.x; i < size; i += blockDim.x)
        list[i] = __ldcg(candidates + i);
    __syncthreads();
    block_emit_sorted<1024, kScanCandidates / 1024>(list, size, size, storage, bins, [&](uint32_t rank, Word word) {
        hits[rank] = {slot_of_word(word), key_of_word(word)};
    });
    if (threadIdx.x == 0)
        *found = size;
}

} // namespace

void launch_radix_select(const Machine &machine, const uint32_t *orders, uint32_t count, uint32_t k, RadixState *state,
                         Word *candidates, Hit *hits, uint32_t *found, cudaStream_t stream)
{
    const int blocks =
        static_cast<int>(std::min<uint64_t>(static_cast<uint64_t>(machine.sms) * 2, count / (kThreads * 4) + 1));
    radix_begin_kernel<<<1, 512, 0, stream>>>(state);
    radix_count_kernel<0><<<blocks, kThreads, 0, stream>>>(orders, count, k, state);
    radix_count_kernel<1><<<blocks, kThreads, 0, stream>>>(orders, count, k, state);
    radix_count_kernel<2><<<blocks, kThreads, 0, stream>>>(orders, count, k, state);
    radix_count_kernel<3><<<blocks, kThreads, 0, stream>>>(orders, count, k, state);
    radix_count_kernel<4><<<blocks, kThreads, 0, stream>>>(orders, count, k, state);
    radix_count_kernel<5><<<blocks, kThreads, 0, stream>>>(orders, count, k, state);
    static_assert(kDigits == 6);
    const size_t shared = kScanCandidates * sizeof(Word);
    allow_shared<radix_collect_kernel>(shared, machine.ordinal);
    radix_collect_kernel<<<blocks, 1024, shared, stream>>>(orders, count, state, candidates, hits, found);
    check_launch("radix_select");
}

} // namespace vecgpu::cuda
