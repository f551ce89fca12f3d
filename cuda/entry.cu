#include "entry.h"

#include "block_select.cuh"
#include "components.cuh"
#include "entry.cuh"
#include "query.cuh"

namespace vecgpu::cuda {

namespace {

/* Component d of the row of a pivot, normalised for cosine. */
__device__ __forceinline__ float pivot_component(Storage storage, const Rows &rows, uint32_t slot, uint32_t d)
{
    return component(storage, rows, slot, d) * (rows.metric == Metric::Cosine ? rows.side[slot].y : 1.f);
}

/* The mean of all pivots, a thread a dimension. */
__global__ void __launch_bounds__(128)
    pivot_mean_kernel(Storage storage, const Rows rows, const uint32_t *slots, float *mean)
{
    const uint32_t d = blockIdx.x * 128 + threadIdx.x;
    if (d >= rows.dimensions)
        return;
    double sum = 0;
    uint32_t count = 0;
    for (uint32_t p = 0; p < kPivots; p++) {
        const uint32_t slot = slots[p];
        if (slot != kNone) {
            sum += pivot_component(storage, rows, slot, d);
            count++;
        }
    }
    mean[d] = count > 0 ? static_cast<float>(sum / count) : 0.f;
}

/*
 * One warp a pivot: what its row has beyond the mean, in steps of a 127th of its largest component. The product of a
 * query and the mean is the same for all pivots, so keys do without it; and where all rows lie together far from the
 * origin, steps stay as fine as their differences ask for.
 */
__global__ void __launch_bounds__(128) pivot_kernel(Storage storage, const Rows rows, const uint32_t *slots,
                                                    const float *mean, uint32_t pieces, uint32_t *columns, float2 *side)
{
    const int lane = threadIdx.x & 31;
    const uint32_t p = blockIdx.x * 4 + threadIdx.x / 32;
    if (p >= kPivots)
        return;
    const uint32_t slot = slots[p];
    const bool real = slot != kNone;
    auto beyond = [&](uint32_t d) {
        return real && d < rows.dimensions ? pivot_component(storage, rows, slot, d) - mean[d] : 0.f;
    };
    float largest = 0;
    for (uint32_t d = lane; d < rows.dimensions; d += 32)
        largest = fmaxf(largest, fabsf(beyond(d)));
    for (int offset = 16; offset; offset >>= 1)
        largest = fmaxf(largest, __shfl_xor_sync(kFullWarp, largest, offset));
    const float scale = largest / 127;
    double norm2 = 0; /* of the row as it is now */
    for (uint32_t w = lane; w < pieces * 4; w += 32) {
        uint32_t bytes = 0;
        for (uint32_t b = 0; b < 4; b++) {
            const uint32_t d = w * 4 + b;
            const int v = scale > 0 ? max(-127, min(127, __float2int_rn(beyond(d) / scale))) : 0;
            const double x = d < rows.dimensions ? mean[d] + static_cast<double>(scale) * v : 0;
            bytes |= static_cast<uint32_t>(v & 255) << (8 * b);
            norm2 += x * x;
        }
        columns[(static_cast<size_t>(w / 4) * kPivots + p) * 4 + w % 4] = bytes;
    }
    norm2 = warp_sum(norm2);
    const bool l2 = rows.metric == Metric::L2;
    if (lane == 0)
        side[p] = make_float2(l2 ? -2 * scale : -scale, !real ? __uint_as_float(0x7fffffff)
                                                        : l2  ? static_cast<float>(norm2)
                                                              : 0.f);
}

/* A block takes kQueries queries and one of gridDim.y parts of the pivots; a thread kEach pivots at a time. */
template <int kQueries, int kThreads, int kEach>
__global__ void __launch_bounds__(kThreads)
    entry_kernel(const PivotView pivots, uint32_t dimensions, const float *queries, uint32_t count, uint32_t *entries,
                 float *nearest, uint32_t *ticket)
{
    constexpr uint32_t kTile = 16; /* pieces */
    __shared__ uint4 tile[kTile][kQueries];
    __shared__ float steps[kQueries], lacks[kQueries], factors[kQueries]; /* distance = (key + lack) * factor */
    __shared__ uint32_t least[kQueries];
    const uint32_t first = blockIdx.x * kQueries, part = kPivots / gridDim.y;
    auto component_of = [&](uint32_t q, uint32_t d) {
        return first + q < count && d < dimensions ? queries[static_cast<size_t>(first + q) * dimensions + d] : 0.f;
    };
    if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0)
        *ticket = 0;
    for (uint32_t q = threadIdx.x / 32; q < kQueries; q += kThreads / 32) {
        float largest = 0, norm2 = 0, by_mean = 0;
        for (uint32_t d = threadIdx.x & 31; d < dimensions; d += 32) {
            const float x = component_of(q, d);
            largest = fmaxf(largest, fabsf(x));
            norm2 = fmaf(x, x, norm2);
            by_mean = fmaf(x, __ldg(pivots.mean + d), by_mean);
        }
        for (int offset = 16; offset; offset >>= 1) {
            largest = fmaxf(largest, __shfl_xor_sync(kFullWarp, largest, offset));
            norm2 += __shfl_xor_sync(kFullWarp, norm2, offset);
            by_mean += __shfl_xor_sync(kFullWarp, by_mean, offset);
        }
        if ((threadIdx.x & 31) == 0) {
            steps[q] = query_step(largest);
            lacks[q] = pivots.metric == Metric::L2 ? norm2 - 2 * by_mean : -by_mean;
            factors[q] = pivots.metric == Metric::Cosine && norm2 > 0 ? rsqrtf(norm2) : 1.f;
            least[q] = kNanOrder;
        }
    }
    for (uint32_t done = 0; done < part; done += kThreads * kEach) {
        const uint32_t p0 = blockIdx.y * part + done + threadIdx.x;
        int dot[kEach][kQueries];
#pragma unroll
        for (int e = 0; e < kEach; e++)
#pragma unroll
            for (int q = 0; q < kQueries; q++)
                dot[e][q] = 0;
        for (uint32_t from = 0; from < pivots.pieces; from += kTile) {
            const uint32_t end = min(kTile, pivots.pieces - from);
            if (done == 0 || pivots.pieces > kTile) {
                __syncthreads();
                signed char *bytes = reinterpret_cast<signed char *>(tile);
                for (uint32_t i = threadIdx.x; i < end * 16 * kQueries; i += kThreads) {
                    const uint32_t q = i / (end * 16), d = i % (end * 16);
                    signed char high, low;
                    split_component(component_of(q, from * 16 + d), steps[q], high, low);
                    bytes[(d / 16 * kQueries + q) * 16 + d % 16] = high;
                }
                __syncthreads();
            }
#pragma unroll 2
            for (uint32_t piece = 0; piece < end; piece++) {
                uint4 x[kEach];
#pragma unroll
                for (int e = 0; e < kEach; e++)
                    x[e] = __ldg(pivots.columns + static_cast<size_t>(from + piece) * kPivots + p0 + e * kThreads);
#pragma unroll
                for (int q = 0; q < kQueries; q++) {
                    const uint4 y = tile[piece][q];
#pragma unroll
                    for (int e = 0; e < kEach; e++)
                        dot[e][q] = pivot_add(dot[e][q], x[e], y);
                }
            }
        }
#pragma unroll
        for (int q = 0; q < kQueries; q++) {
            uint32_t best = kNanOrder;
#pragma unroll
            for (int e = 0; e < kEach; e++) {
                const uint32_t p = p0 + e * kThreads;
                uint32_t order;
                const uint32_t slot = class_entry(pivots, p, dot[e][q], steps[q], order);
                best = min(best, order);
                if ((threadIdx.x & 31) == 0 && first + q < count)
                    entries[static_cast<size_t>(first + q) * kEntries + p / kClassPivots] = slot;
            }
            if ((threadIdx.x & 31) == 0)
                atomicMin(&least[q], best);
        }
    }
    __syncthreads();
    for (uint32_t q = threadIdx.x; q < kQueries && first + q < count; q += kThreads)
        nearest[static_cast<size_t>(blockIdx.y) * count + first + q] = (key_of_order(least[q]) + lacks[q]) * factors[q];
}

/* One block: bins are equal ranges of the distances' orders; what is within a bin is in no order. */
constexpr int kTurnThreads = 1024;

template <uint32_t kParts>
__global__ void __launch_bounds__(kTurnThreads) turns_kernel(const float *nearest, uint32_t count, uint32_t *turns)
{
    constexpr uint32_t kBins = 4 * kTurnThreads, kItems = kMostTurns / kTurnThreads;
    __shared__ __align__(16) uint32_t bins[kBins];
    __shared__ uint32_t sums[kTurnThreads / 32];
    __shared__ BlockBoundStorage storage;
    uint32_t orders[kItems], low = kNanOrder, high = 0, unused = 0;
#pragma unroll
    for (uint32_t i = 0; i < kItems; i++) {
        const uint32_t q = i * kTurnThreads + threadIdx.x;
        float distance = INFINITY;
#pragma unroll
        for (uint32_t part = 0; part < kParts; part++)
            distance = fminf(distance, nearest[static_cast<size_t>(part) * count + min(q, count - 1)]);
        orders[i] = order_of(distance);
        if (q < count) {
            low = min(low, orders[i]);
            high = max(high, orders[i]);
        }
    }
    reinterpret_cast<uint4 *>(bins)[threadIdx.x] = make_uint4(0, 0, 0, 0);
    block_range(low, high, unused, storage);
    const float scale = high > low ? (kBins - 1) / static_cast<float>(high - low) : 0.f;
    auto bin_of = [&](uint32_t order) {
        return min(kBins - 1, static_cast<uint32_t>(static_cast<float>(high - order) * scale));
    };
#pragma unroll
    for (uint32_t i = 0; i < kItems; i++)
        if (i * kTurnThreads + threadIdx.x < count)
            atomicAdd(&bins[bin_of(orders[i])], 1u);
    __syncthreads();
    uint4 &mine = reinterpret_cast<uint4 *>(bins)[threadIdx.x];
    const uint4 held = mine;
    const uint32_t total = held.x + held.y + held.z + held.w;
    const uint32_t before = block_sum_before(total, sums);
    mine = make_uint4(before, before + held.x, before + held.x + held.y, before + total - held.w);
    __syncthreads();
#pragma unroll
    for (uint32_t i = 0; i < kItems; i++) {
        const uint32_t q = i * kTurnThreads + threadIdx.x;
        if (q < count)
            turns[atomicAdd(&bins[bin_of(orders[i])], 1u)] = q;
    }
}

} // namespace

void make_pivots(Pivots *pivots, Storage storage, const Rows &rows, const std::vector<uint32_t> &slots,
                 cudaStream_t stream)
{
    pivots->pieces = row_pieces(Storage::Int8, rows.dimensions);
    pivots->columns.allocate(static_cast<size_t>(pivots->pieces) * kPivots);
    pivots->side.allocate(kPivots);
    pivots->slots.allocate(kPivots);
    /* Neighbours in `slots` may be neighbours in space: they go to different classes. */
    std::vector<uint32_t> placed(kPivots, kNone);
    for (uint32_t i = 0; i < slots.size(); i++)
        placed[i % kEntries * kClassPivots + i / kEntries] = slots[i];
    check(cudaMemcpyAsync(pivots->slots.data(), placed.data(), kPivots * sizeof(uint32_t), cudaMemcpyHostToDevice,
                          stream),
          "pivots");
    pivots->mean.allocate(rows.dimensions);
    pivots->metric = rows.metric;
    pivot_mean_kernel<<<(rows.dimensions + 127) / 128, 128, 0, stream>>>(storage, rows, pivots->slots.data(),
                                                                         pivots->mean.data());
    check_launch("pivot_mean");
    pivot_kernel<<<kPivots / 4, 128, 0, stream>>>(storage, rows, pivots->slots.data(), pivots->mean.data(),
                                                  pivots->pieces, &pivots->columns.data()->x, pivots->side.data());
    check_launch("pivot");
    check(cudaStreamSynchronize(stream), "pivots");
}

/* Parts of the pivots, by blocks of their own. */
static uint32_t entry_parts(const Machine &machine, uint32_t count)
{
    return count <= static_cast<uint32_t>(machine.sms) * 4 ? kEntryParts : kPivots / 512;
}

void launch_entry(const Machine &machine, const PivotView &pivots, uint32_t dimensions, const float *queries,
                  uint32_t count, uint32_t *entries, float *nearest, uint32_t *ticket, cudaStream_t stream)
{
    const uint32_t parts = entry_parts(machine, count);
    if (parts == kEntryParts)
        entry_kernel<8, 128, 1><<<dim3((count + 7) / 8, parts), 128, 0, stream>>>(pivots, dimensions, queries, count,
                                                                                  entries, nearest, ticket);
    else
        entry_kernel<16, 128, 4><<<dim3((count + 15) / 16, parts), 128, 0, stream>>>(pivots, dimensions, queries, count,
                                                                                     entries, nearest, ticket);
    check_launch("entry");
}

void launch_turns(const Machine &machine, const float *nearest, uint32_t count, uint32_t *turns, cudaStream_t stream)
{
    if (entry_parts(machine, count) == kEntryParts)
        turns_kernel<kEntryParts><<<1, kTurnThreads, 0, stream>>>(nearest, count, turns);
    else
        turns_kernel<kPivots / 512><<<1, kTurnThreads, 0, stream>>>(nearest, count, turns);
    check_launch("turns");
}

} // namespace vecgpu::cuda
