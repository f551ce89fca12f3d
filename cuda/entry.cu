#include "entry.h"

#include "components.cuh"
#include "entry.cuh"

namespace vecgpu::cuda {

namespace {

/* One warp a pivot. */
__global__ void __launch_bounds__(128)
    pivot_kernel(Storage storage, const Rows rows, const uint32_t *slots, uint32_t groups, float *columns, float *bias)
{
    const int lane = threadIdx.x & 31;
    const uint32_t p = blockIdx.x * 4 + threadIdx.x / 32;
    if (p >= kPivots)
        return;
    const uint32_t slot = slots[p];
    const bool real = slot != kNone;
    float norm2 = 0;
    const float factor = real && rows.metric == Metric::Cosine ? rows.side[slot].y : 1.f;
    for (uint32_t d = lane; d < groups * 4; d += 32) {
        const float x = real && d < rows.dimensions ? component(storage, rows, slot, d) * factor : 0.f;
        columns[(static_cast<size_t>(d / 4) * kPivots + p) * 4 + d % 4] = x;
        norm2 += x * x;
    }
    for (int offset = 16; offset; offset >>= 1)
        norm2 += __shfl_xor_sync(kFullWarp, norm2, offset);
    if (lane == 0)
        bias[p] = !real ? __uint_as_float(0x7fffffff) : rows.metric == Metric::L2 ? norm2 : 0.f;
}

/* A block takes kQueries queries and one of gridDim.y parts of the pivots; a thread kEach pivots at a time. */
template <int kQueries, int kThreads, int kEach>
__global__ void __launch_bounds__(kThreads, 2)
    entry_kernel(const PivotView pivots, uint32_t dimensions, const float *queries, uint32_t count, uint32_t *entries,
                 uint32_t *ticket)
{
    constexpr uint32_t kTile = 32; /* groups of dimensions */
    __shared__ float4 tile[kTile][kQueries];
    const uint32_t first = blockIdx.x * kQueries, part = kPivots / gridDim.y;
    const uint32_t chain = chain_groups(pivots.groups);
    if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0)
        *ticket = 0;
    for (uint32_t done = 0; done < part; done += kThreads * kEach) {
        const uint32_t p0 = blockIdx.y * part + done + threadIdx.x;
        float sum[kEach][kQueries], dot[kEach][kQueries];
#pragma unroll
        for (int e = 0; e < kEach; e++)
#pragma unroll
            for (int q = 0; q < kQueries; q++)
                sum[e][q] = dot[e][q] = 0;
        uint32_t chain_end = chain;
        for (uint32_t g0 = 0; g0 < pivots.groups; g0 += kTile) {
            const uint32_t end = min(g0 + kTile, pivots.groups);
            if (done == 0 || pivots.groups > kTile) {
                __syncthreads();
                float *flat = &tile[0][0].x;
                for (uint32_t i = threadIdx.x; i < kTile * 4 * kQueries; i += kThreads) {
                    const uint32_t q = i / (kTile * 4), d = i % (kTile * 4);
                    flat[(d / 4 * kQueries + q) * 4 + d % 4] =
                        first + q < count && g0 * 4 + d < dimensions
                            ? queries[static_cast<size_t>(first + q) * dimensions + g0 * 4 + d]
                            : 0.f;
                }
                __syncthreads();
            }
            for (uint32_t g = g0; g < end;) {
                const uint32_t stop = min(end, chain_end);
#pragma unroll 4
                for (; g < stop; g++) {
                    float4 x[kEach];
#pragma unroll
                    for (int e = 0; e < kEach; e++)
                        x[e] = __ldg(pivots.columns + static_cast<size_t>(g) * kPivots + p0 + e * kThreads);
#pragma unroll
                    for (int q = 0; q < kQueries; q++) {
                        const float4 y = tile[g - g0][q];
#pragma unroll
                        for (int e = 0; e < kEach; e++)
                            sum[e][q] = chain_add(sum[e][q], x[e], y);
                    }
                }
                if (g == chain_end || g == pivots.groups) {
                    chain_end += chain;
#pragma unroll
                    for (int e = 0; e < kEach; e++)
#pragma unroll
                        for (int q = 0; q < kQueries; q++) {
                            dot[e][q] += sum[e][q];
                            sum[e][q] = 0;
                        }
                }
            }
        }
#pragma unroll
        for (int e = 0; e < kEach; e++) {
            const uint32_t p = p0 + e * kThreads;
#pragma unroll
            for (int q = 0; q < kQueries; q++) {
                const uint32_t slot = class_entry(pivots, p, dot[e][q]);
                if ((threadIdx.x & 31) == 0 && first + q < count)
                    entries[static_cast<size_t>(first + q) * kEntries + p / kClassPivots] = slot;
            }
        }
    }
}

} // namespace

void make_pivots(Pivots *pivots, Storage storage, const Rows &rows, const std::vector<uint32_t> &slots,
                 cudaStream_t stream)
{
    pivots->groups = (rows.dimensions + 3) / 4;
    pivots->factor = rows.metric == Metric::L2 ? -2.f : -1.f;
    pivots->columns.allocate(static_cast<size_t>(pivots->groups) * kPivots);
    pivots->bias.allocate(kPivots);
    pivots->slots.allocate(kPivots);
    /* Neighbours in `slots` may be neighbours in space: they go to different classes. */
    std::vector<uint32_t> placed(kPivots, kNone);
    for (uint32_t i = 0; i < slots.size(); i++)
        placed[i % kEntries * kClassPivots + i / kEntries] = slots[i];
    check(cudaMemcpyAsync(pivots->slots.data(), placed.data(), kPivots * sizeof(uint32_t), cudaMemcpyHostToDevice,
                          stream),
          "pivots");
    pivot_kernel<<<kPivots / 4, 128, 0, stream>>>(storage, rows, pivots->slots.data(), pivots->groups,
                                                  &pivots->columns.data()->x, pivots->bias.data());
    check_launch("pivot");
    check(cudaStreamSynchronize(stream), "pivots");
}

void launch_entry(const Machine &machine, const PivotView &pivots, uint32_t dimensions, const float *queries,
                  uint32_t count, uint32_t *entries, uint32_t *ticket, cudaStream_t stream)
{
    if (count <= static_cast<uint32_t>(machine.sms) * 4)
        entry_kernel<8, 128, 1><<<dim3((count + 7) / 8, kPivots / 128), 128, 0, stream>>>(pivots, dimensions, queries,
                                                                                          count, entries, ticket);
    else
        entry_kernel<16, 256, 2><<<dim3((count + 15) / 16, kPivots / 512), 256, 0, stream>>>(
            pivots, dimensions, queries, count, entries, ticket);
    check_launch("entry");
}

} // namespace vecgpu::cuda
