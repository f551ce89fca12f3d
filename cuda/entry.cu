#include "entry.h"

#include "components.cuh"

namespace vecgpu::cuda {

namespace {

/* One warp a pivot. */
__global__ void __launch_bounds__(128)
    pivot_kernel(Storage storage, const Rows rows, const uint32_t *slots, uint32_t count, float *columns, float *bias)
{
    const int lane = threadIdx.x & 31;
    const uint32_t p = blockIdx.x * 4 + threadIdx.x / 32;
    if (p >= kPivots)
        return;
    float norm2 = 0;
    const float factor = p < count && rows.metric == Metric::Cosine ? rows.side[slots[p]].y : 1.f;
    for (uint32_t d = lane; d < rows.dimensions; d += 32) {
        const float x = p < count ? component(storage, rows, slots[p], d) * factor : 0.f;
        columns[static_cast<size_t>(d) * kPivots + p] = x;
        norm2 += x * x;
    }
    for (int offset = 16; offset; offset >>= 1)
        norm2 += __shfl_xor_sync(kFullWarp, norm2, offset);
    if (lane == 0)
        bias[p] = p >= count ? __uint_as_float(0x7fffffff) : rows.metric == Metric::L2 ? norm2 : 0.f;
}

/*
 * A block takes kQueries queries; a thread kEach pivots at a time. Every dot product is one chain of fused multiply-
 * adds in the order of the dimensions, so the entries of a query do not depend on which shape of this kernel ran.
 */
template <int kQueries, int kThreads, int kEach>
__global__ void __launch_bounds__(kThreads)
    entry_kernel(const float *columns, const float *bias, const uint32_t *slots, float factor, uint32_t dimensions,
                 const float *queries, uint32_t count, uint32_t *entries, uint32_t *ticket)
{
    constexpr int kChunk = 128, kWarps = kThreads / 32;
    __shared__ float tile[kChunk][kQueries];
    __shared__ Word bests[kWarps][32];
    const uint32_t first = blockIdx.x * kQueries;
    if (blockIdx.x == 0 && threadIdx.x == 0)
        *ticket = 0;
    Word best[kQueries];
#pragma unroll
    for (int q = 0; q < kQueries; q++)
        best[q] = kNoWord;
    for (uint32_t group = 0; group < kPivots; group += kThreads * kEach) {
        float sum[kEach][kQueries];
#pragma unroll
        for (int e = 0; e < kEach; e++)
#pragma unroll
            for (int q = 0; q < kQueries; q++)
                sum[e][q] = 0;
        for (uint32_t d0 = 0; d0 < dimensions; d0 += kChunk) {
            if (group == 0 || dimensions > kChunk) {
                __syncthreads();
                for (uint32_t i = threadIdx.x; i < kChunk * kQueries; i += kThreads) {
                    const uint32_t q = i / kChunk, d = i % kChunk;
                    tile[d][q] = first + q < count && d0 + d < dimensions
                                     ? queries[static_cast<size_t>(first + q) * dimensions + d0 + d]
                                     : 0.f;
                }
                __syncthreads();
            }
            const uint32_t end = min(static_cast<uint32_t>(kChunk), dimensions - d0);
            const float *column = columns + static_cast<size_t>(d0) * kPivots + group + threadIdx.x;
#pragma unroll(kQueries == 1 ? 32 : 8)
            for (uint32_t d = 0; d < end; d++) {
                float x[kEach];
#pragma unroll
                for (int e = 0; e < kEach; e++)
                    x[e] = __ldg(column + static_cast<size_t>(d) * kPivots + e * kThreads);
#pragma unroll
                for (int q = 0; q < kQueries; q++) {
                    const float y = tile[d][q];
#pragma unroll
                    for (int e = 0; e < kEach; e++)
                        sum[e][q] = fmaf(x[e], y, sum[e][q]);
                }
            }
        }
#pragma unroll
        for (int e = 0; e < kEach; e++) {
            const uint32_t p = group + e * kThreads + threadIdx.x;
            const float b = __ldg(bias + p);
#pragma unroll
            for (int q = 0; q < kQueries; q++)
                best[q] = min(best[q], word_of(fmaf(factor, sum[e][q], b), p));
        }
    }
    /* The class of a pivot is its number modulo 32, the lane. */
#pragma unroll
    for (int q = 0; q < kQueries; q++) {
        __syncthreads();
        bests[threadIdx.x / 32][threadIdx.x & 31] = best[q];
        __syncthreads();
        if (threadIdx.x < 32 && first + q < count) {
            Word least = kNoWord;
            for (int w = 0; w < kWarps; w++)
                least = min(least, bests[w][threadIdx.x]);
            entries[static_cast<size_t>(first + q) * kEntries + threadIdx.x] =
                least >> 32 == kNanOrder ? kNone : __ldg(slots + slot_of_word(least));
        }
    }
}

} // namespace

void make_pivots(Pivots *pivots, Storage storage, const Rows &rows, const std::vector<uint32_t> &slots,
                 cudaStream_t stream)
{
    pivots->count = static_cast<uint32_t>(slots.size());
    pivots->dimensions = rows.dimensions;
    pivots->factor = rows.metric == Metric::L2 ? -2.f : -1.f;
    pivots->columns.allocate(static_cast<size_t>(rows.dimensions) * kPivots);
    pivots->bias.allocate(kPivots);
    pivots->slots.allocate(kPivots);
    if (!slots.empty())
        check(cudaMemcpyAsync(pivots->slots.data(), slots.data(), slots.size() * sizeof(uint32_t),
                              cudaMemcpyHostToDevice, stream),
              "pivots");
    pivot_kernel<<<kPivots / 4, 128, 0, stream>>>(storage, rows, pivots->slots.data(), pivots->count,
                                                  pivots->columns.data(), pivots->bias.data());
    check_launch("pivot");
    check(cudaStreamSynchronize(stream), "pivots");
}

void launch_entry(const Machine &machine, const Pivots &pivots, const float *queries, uint32_t count, uint32_t *entries,
                  uint32_t *ticket, cudaStream_t stream)
{
    if (count <= static_cast<uint32_t>(machine.sms) * 4)
        entry_kernel<1, 1024, 1><<<count, 1024, 0, stream>>>(pivots.columns.data(), pivots.bias.data(),
                                                             pivots.slots.data(), pivots.factor, pivots.dimensions,
                                                             queries, count, entries, ticket);
    else
        entry_kernel<16, 256, 2>
            <<<(count + 15) / 16, 256, 0, stream>>>(pivots.columns.data(), pivots.bias.data(), pivots.slots.data(),
                                                    pivots.factor, pivots.dimensions, queries, count, entries, ticket);
    check_launch("entry");
}

} // namespace vecgpu::cuda
