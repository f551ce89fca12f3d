/*
 * long_select.cuh: k-selection of one long row by the whole device.
 */
#pragma once

#include "select_parts.cuh"

#include <cooperative_groups.h>

namespace vecgpu::cuda {

constexpr int kLongThreads = 1024, kLongValues = 8;
constexpr uint32_t kLongMinima = 8192; /* warps of the device, at most */

/* Counters of one launch of long_select_kernel(). */
struct LongCounters {
    uint32_t candidates, exact;
    uint32_t counts[3][3];
};

/*
 * One long row by the whole device, a block an SM: a minimum of 256 values from each warp, grid barrier, the bound in
 * every block, what is within it to a list in memory, grid barrier, one block sorts. The first stretch of the row stays
 * in registers. More candidates than the list holds (ties): the k-th (value, column) is found by bisection over the
 * whole row, a grid barrier a round.
 */
__global__ void __launch_bounds__(kLongThreads, 1)
    long_select_kernel(const float *values, uint32_t columns, uint32_t k, uint32_t *minima, Word *candidates,
                       LongCounters *counters, SelectOutput output)
{
    extern __shared__ __align__(16) unsigned char dynamic[];
    Word *list = reinterpret_cast<Word *>(dynamic); /* kScanCandidates */
    __shared__ BlockBoundStorage storage;
    __shared__ BlockBins<kLongThreads> bins;
    const cooperative_groups::grid_group grid = cooperative_groups::this_grid();
    const int lane = threadIdx.x & 31;
    const uint32_t warps = gridDim.x * (kLongThreads / 32), stretch = gridDim.x * kLongThreads * kLongValues;
    const bool aligned = reinterpret_cast<uintptr_t>(values) % 16 == 0;
    auto column_of = [&](uint32_t base, int i) {
        return base + ((blockIdx.x * (kLongValues / 4) + i / 4) * kLongThreads + threadIdx.x) * 4 + i % 4;
    };
    float v[kLongValues];
    auto load = [&](uint32_t base) {
#pragma unroll
        for (int j = 0; j < kLongValues / 4; j++) {
            const float4 x = load_values(values, column_of(base, 4 * j), columns, aligned);
            v[4 * j] = x.x, v[4 * j + 1] = x.y, v[4 * j + 2] = x.z, v[4 * j + 3] = x.w;
        }
    };
    /* Calls each(base) with the row in registers, stretch by stretch. */
    auto all = [&](auto each) {
        each(0u);
        if (columns > stretch) {
            for (uint64_t base = stretch; base < columns; base += stretch) {
                load(static_cast<uint32_t>(base));
                each(static_cast<uint32_t>(base));
            }
            load(0);
        }
    };
    load(0);
    if (blockIdx.x == 0 && threadIdx.x < sizeof *counters / 4)
        reinterpret_cast<uint32_t *>(counters)[threadIdx.x] = 0;
    float least = v[0];
#pragma unroll
    for (int i = 1; i < kLongValues; i++)
        least = fminf(least, v[i]);
    const uint32_t smallest = __reduce_min_sync(kFullWarp, order_of(least));
    if (lane == 0)
        __stcg(minima + blockIdx.x * (kLongThreads / 32) + threadIdx.x / 32, smallest);
    grid.sync();

    constexpr int kItems = kLongMinima / kLongThreads;
    uint32_t orders[kItems];
#pragma unroll
    for (int i = 0; i < kItems; i++) {
        const uint32_t at = i * kLongThreads + threadIdx.x;
        orders[i] = at < warps ? __ldcg(minima + at) : kNanOrder;
    }
    const uint32_t bound_order = min(kInfOrder, block_bound<kItems>(orders, k, k / 16 + 1, storage));
    const float bound = key_of_order(bound_order);
    /* Values for which fits(value, column) to the list. */
    auto append = [&](uint32_t *counter, auto fits) {
        all([&](uint32_t base) {
            uint32_t mine = 0;
#pragma unroll
            for (int i = 0; i < kLongValues; i++)
                mine += fits(v[i], column_of(base, i));
            if (!__any_sync(kFullWarp, mine > 0))
                return;
            const uint32_t sum = warp_inclusive_sum(mine, lane);
            uint32_t to = 0;
            if (lane == 31)
                to = atomicAdd(counter, sum);
            to = __shfl_sync(kFullWarp, to, 31) + sum - mine;
#pragma unroll
            for (int i = 0; i < kLongValues; i++)
                if (fits(v[i], column_of(base, i))) {
                    if (to < kScanCandidates)
                        __stcg(candidates + to, word_of(v[i], column_of(base, i)));
                    to++;
                }
        });
        grid.sync();
        return __ldcg(counter);
    };
    uint32_t found = append(&counters->candidates, [&](float x, uint32_t) { return x <= bound; });
    if (found > kScanCandidates) {
        int round = 0, grid_round = 0;
        /* Three counts over the whole row; each(value, column, counts) adds. */
        auto count = [&](uint32_t(&counts)[3], auto each) {
            counts[0] = counts[1] = counts[2] = 0;
            all([&](uint32_t base) {
#pragma unroll
                for (int i = 0; i < kLongValues; i++)
                    each(v[i], column_of(base, i), counts);
            });
            block_sums(counts, round, storage);
            const int next = grid_round == 2 ? 0 : grid_round + 1;
            if (threadIdx.x < 3) {
                if (blockIdx.x == 0)
                    __stcg(&counters->counts[next][threadIdx.x], 0u);
                atomicAdd(&counters->counts[grid_round][threadIdx.x], counts[threadIdx.x]);
            }
            grid.sync();
#pragma unroll
            for (int j = 0; j < 3; j++)
                counts[j] = __ldcg(&counters->counts[grid_round][j]);
            grid_round = next;
        };
        uint32_t lowest = kNanOrder, highest = 0, unused = 0;
#pragma unroll
        for (int i = 0; i < kItems; i++)
            lowest = min(lowest, orders[i]);
        block_range(lowest, highest, unused, storage);
        const uint32_t order = bisect(
            columns > stretch ? 0u : lowest, bound_order, k, 0, [&](const uint32_t(&middle)[3], uint32_t(&counts)[3]) {
                const float limits[3] = {key_of_order(middle[0]), key_of_order(middle[1]), key_of_order(middle[2])};
                count(counts, [&](float x, uint32_t, uint32_t(&sums)[3]) {
#pragma unroll
                    for (int j = 0; j < 3; j++)
                        sums[j] += x <= limits[j];
                });
            });
        const float last = key_of_order(order);
        uint32_t counts[3];
        count(counts, [&](float x, uint32_t, uint32_t(&sums)[3]) {
            sums[0] += x < last;
            sums[2] += x < last;
        });
        const uint32_t needed = k - counts[0];
        const uint32_t column =
            bisect(0u, columns - 1, needed, 0, [&](const uint32_t(&middle)[3], uint32_t(&counts)[3]) {
                count(counts, [&](float x, uint32_t at, uint32_t(&sums)[3]) {
#pragma unroll
                    for (int j = 0; j < 3; j++)
                        sums[j] += x == last && at <= middle[j];
                });
            });
        found = append(&counters->exact, [&](float x, uint32_t at) { return x < last || (x == last && at <= column); });
    }
    if (blockIdx.x != 0)
        return;
    for (uint32_t i = threadIdx.x; i < found; i += kLongThreads)
        list[i] = __ldcg(candidates + i);
    __syncthreads();
    block_emit_sorted<kLongThreads, kScanCandidates / kLongThreads>(
        list, found, k, storage, bins, [&](uint32_t rank, Word word) { output.put(rank, word); });
    for (uint32_t i = min(found, k) + threadIdx.x; i < k; i += kLongThreads)
        output.put(i, kNoWord);
}

} // namespace vecgpu::cuda
