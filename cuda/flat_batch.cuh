/*
 * flat_batch.cuh: the pass of flat_batch.h over a run of tiles: matrix product and selection in one kernel.
 *
 * A block has a warpgroup that only copies (one thread of it works) and two that multiply, 64 x kBlocks queries each,
 * by tiles of 128 rows. Tiles come through a ring of stages, 64 dimensions each; the queries stay in shared memory
 * (kResident), or come through the ring too when they are too long. Units (query block x run of tiles) are ordered so
 * that all SMs work on the same rows at a time, which then come from L2.
 *
 * Tiles are taken in the order i -> i * stride mod tiles: any run of them is a sample of the whole table, whatever its
 * order.
 *
 * The accumulators of a thread: query (warp % 4) * 16 + lane / 4 (+ 8), rows 8 j + 2 (lane % 4) (+ 1).
 */
#pragma once

#include "flat_rescore.cuh"
#include "hopper.cuh"

namespace vecgpu::cuda {

constexpr int kBatchThreads = 384;
constexpr int kMaxStages = 12;
constexpr int kStaged = 128; /* hits that a warp holds back, to append many with one wait */

struct PassArguments {
    const unsigned char *queries; /* image: query block, slab, 128 kBlocks queries, 128 bytes */
    const unsigned char *tiles;
    const float *h;
    uint32_t nodes, slabs, query_blocks;
    uint32_t table_tiles; /* of the table */
    uint32_t stride;      /* coprime to table_tiles */
    uint32_t first, last; /* tiles first .. last - 1, before permutation */
    uint32_t run;         /* tiles of a unit */
    int stages;
    const float *thresholds; /* a query; +inf for those that only pad */
    uint32_t *counts;
    Word *lists;
    float *maxima; /* !kAppend: query x 4 (last - first) maxima of 32 rows */
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || !defined(__CUDA_ARCH__)
#define VECGPU_WGMMA 1
#endif

/* kSlabs: slabs of a row where the compiler should know them, or 0. */
template <int kBlocks, bool kResident, int kSlabs, bool kAppend, bool kBfloat>
__global__ void __launch_bounds__(kBatchThreads, 1) flat_pass_kernel(const __grid_constant__ PassArguments a)
{
#ifdef VECGPU_WGMMA
    constexpr uint32_t kQueries = 128 * kBlocks, kQuerySlab = kQueries * 128;
    constexpr uint32_t kStageBytes = kTileBytes + (kResident ? 0 : kQuerySlab);
    const uint32_t slabs = kSlabs ? kSlabs : a.slabs;
    extern __shared__ __align__(1024) unsigned char pass_memory[];
    unsigned char *resident = pass_memory, *ring = pass_memory + (kResident ? slabs * kQuerySlab : 0);
    Word *staged_words = reinterpret_cast<Word *>(ring + a.stages * kStageBytes);
    uint16_t *staged_queries = reinterpret_cast<uint16_t *>(staged_words + 8 * kStaged);
    __shared__ __align__(8) uint64_t full[kMaxStages], empty[kMaxStages], queries_full, queries_empty;

    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    if (threadIdx.x == 0) {
        for (int i = 0; i < a.stages; i++) {
            barrier_init(full + i, 1);
            barrier_init(empty + i, 2);
        }
        barrier_init(&queries_full, 1);
        barrier_init(&queries_empty, 2);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    const uint32_t runs = (a.last - a.first + a.run - 1) / a.run, units = runs * a.query_blocks;
    /* The tile that is `i`-th in order, and the one after it: one division a unit. */
    auto tile_of = [&](uint32_t i) {
        return static_cast<uint32_t>(static_cast<uint64_t>(i) * a.stride % a.table_tiles);
    };
    auto next_tile = [&](uint32_t tile) {
        tile += a.stride;
        return tile >= a.table_tiles ? tile - a.table_tiles : tile;
    };
    int stage = 0;
    uint32_t phase = 0, query_phase = 0;
    auto advance = [&] {
        if (++stage == a.stages) {
            stage = 0;
            phase ^= 1;
        }
    };

    if (warp >= 8) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
        if (threadIdx.x != 256)
            return;
        for (uint32_t unit = blockIdx.x; unit < units; unit += gridDim.x) {
            const uint32_t block = unit % a.query_blocks, run = unit / a.query_blocks;
            const unsigned char *queries = a.queries + static_cast<size_t>(block) * slabs * kQuerySlab;
            if (kResident) {
                barrier_wait(&queries_empty, query_phase ^ 1);
                query_phase ^= 1;
                barrier_expect(&queries_full, slabs * kQuerySlab);
                for (uint32_t s = 0; s < slabs; s++)
                    bulk_copy(resident + s * kQuerySlab, queries + static_cast<size_t>(s) * kQuerySlab, kQuerySlab,
                              &queries_full);
            }
            const uint32_t begin = a.first + run * a.run, end = min(a.last, begin + a.run);
            for (uint32_t i = begin, number = tile_of(begin); i < end; i++, number = next_tile(number)) {
                const unsigned char *tile = a.tiles + static_cast<size_t>(number) * slabs * kTileBytes;
                for (uint32_t s = 0; s < slabs; s++) {
                    barrier_wait(empty + stage, phase ^ 1);
                    barrier_expect(full + stage, kStageBytes);
                    bulk_copy(ring + stage * kStageBytes, tile + static_cast<size_t>(s) * kTileBytes, kTileBytes,
                              full + stage);
                    if (!kResident)
                        bulk_copy(ring + stage * kStageBytes + kTileBytes,
                                  queries + static_cast<size_t>(s) * kQuerySlab, kQuerySlab, full + stage);
                    advance();
                }
            }
        }
        return;
    }

    asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
    const int group = warp >> 2;
    const bool leader = (threadIdx.x & 127) == 0;
    uint32_t staged = 0, first_query = 0;
    auto flush = [&] {
        __syncwarp();
#pragma unroll 1
        for (uint32_t i = lane; i < staged; i += 32) {
            const uint32_t q = first_query + staged_queries[warp * kStaged + i], at = atomicAdd(a.counts + q, 1u);
            if (at < kListRows)
                a.lists[static_cast<size_t>(q) * kListRows + at] = staged_words[warp * kStaged + i];
        }
        __syncwarp();
        staged = 0;
    };
    for (uint32_t unit = blockIdx.x; unit < units; unit += gridDim.x) {
        const uint32_t block = unit % a.query_blocks, run = unit / a.query_blocks;
        first_query = block * kQueries;
        const uint32_t query = group * kBlocks * 64 + (warp & 3) * 16 + lane / 4; /* within the block; + 8, + 64 */
        float threshold[kBlocks][2];
#pragma unroll
        for (int m = 0; m < kBlocks; m++)
#pragma unroll
            for (int r = 0; r < 2; r++)
                threshold[m][r] = kAppend ? __ldcg(a.thresholds + first_query + query + m * 64 + r * 8) : 0;
        if (kResident) {
            barrier_wait(&queries_full, query_phase);
            query_phase ^= 1;
        }
        const uint32_t begin = a.first + run * a.run, end = min(a.last, begin + a.run);
        for (uint32_t i = begin, tile = tile_of(begin); i < end; i++, tile = next_tile(tile)) {
            float sum[kBlocks][64];
            float2 h[16];
            const float2 *hs =
                reinterpret_cast<const float2 *>(a.h + static_cast<size_t>(tile) * kTileRows) + (lane & 3);
#pragma unroll
            for (int j = 0; j < 16; j++)
                h[j] = __ldg(hs + j * 4);
            if ((tile + 1) * kTileRows > a.nodes) {
                const uint32_t row = tile * kTileRows + (lane & 3) * 2;
#pragma unroll
                for (int j = 0; j < 16; j++) {
                    if (row + j * 8 >= a.nodes)
                        h[j].x = INFINITY;
                    if (row + j * 8 + 1 >= a.nodes)
                        h[j].y = INFINITY;
                }
            }
            int previous = 0;
#pragma unroll kSlabs ? kSlabs : 1
            for (uint32_t s = 0; s < slabs; s++) {
                barrier_wait(full + stage, phase);
                wgmma_fence();
                const uint32_t b = shared_address(ring) + stage * kStageBytes;
                const uint32_t q =
                    (kResident ? shared_address(resident) + s * kQuerySlab : b + kTileBytes) + group * kBlocks * 8192;
#pragma unroll
                for (int kk = 0; kk < 4; kk++)
#pragma unroll
                    for (int m = 0; m < kBlocks; m++) {
                        const uint64_t x = wgmma_operand(q + m * 8192 + kk * 32), y = wgmma_operand(b + kk * 32);
                        if (kBfloat)
                            wgmma_bfloat(sum[m], x, y, s > 0 || kk > 0);
                        else
                            wgmma_half(sum[m], x, y, s > 0 || kk > 0);
                    }
                wgmma_commit();
                if (s > 0) {
                    wgmma_wait<1>();
                    if (leader)
                        barrier_arrive(empty + previous);
                }
                previous = stage;
                advance();
            }
            wgmma_wait<0>();
            if (leader) {
                barrier_arrive(empty + previous);
                if (kResident && i + 1 == end)
                    barrier_arrive(&queries_empty);
            }
#pragma unroll
            for (int m = 0; m < kBlocks; m++)
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    float even = -INFINITY, odd = -INFINITY;
#pragma unroll
                    for (int j = 0; j < 16; j++) {
                        float &x = sum[m][j * 4 + r * 2], &y = sum[m][j * 4 + r * 2 + 1];
                        x -= h[j].x;
                        y -= h[j].y;
                        even = fmaxf(even, x);
                        odd = fmaxf(odd, y);
                    }
                    const float best = fmaxf(even, odd), least = threshold[m][r];
                    const uint32_t mine = query + m * 64 + r * 8;
                    if constexpr (!kAppend) {
                        a.maxima[static_cast<size_t>(first_query + mine) * (4 * (a.last - a.first)) +
                                 (i - a.first) * 4 + (lane & 3)] = best;
                    } else if (__any_sync(kFullWarp, best >= least)) {
                        /*
                         * Rare, and compact on purpose: unrolled over the accumulators it would flood the instruction
                         * cache.
                         */
                        uint32_t mask = 0;
#pragma unroll
                        for (int j = 0; j < 16; j++) {
                            mask |= sum[m][j * 4 + r * 2] >= least ? 1u << (2 * j) : 0u;
                            mask |= sum[m][j * 4 + r * 2 + 1] >= least ? 2u << (2 * j) : 0u;
                        }
#pragma unroll 1
                        for (uint32_t some; (some = __ballot_sync(kFullWarp, mask != 0)); mask &= mask - 1) {
                            if (staged + __popc(some) > kStaged)
                                flush();
                            const int j = __ffs(mask) - 1;
                            float e[32];
#pragma unroll
                            for (int x = 0; x < 32; x++)
                                e[x] = sum[m][(x >> 1) * 4 + r * 2 + (x & 1)];
#pragma unroll
                            for (int half = 16; half; half >>= 1)
#pragma unroll
                                for (int x = 0; x < half; x++)
                                    e[x] = j & half ? e[x + half] : e[x];
                            if (mask) {
                                const uint32_t at = warp * kStaged + staged + __popc(some & ((1u << lane) - 1));
                                staged_words[at] =
                                    word_of(-e[0], tile * kTileRows + (lane & 3) * 2 + (j >> 1) * 8 + (j & 1));
                                staged_queries[at] = static_cast<uint16_t>(mine);
                            }
                            staged += __popc(some);
                        }
                    }
                }
            if (kAppend && staged && (staged > kStaged / 2 || i + 1 == end))
                flush();
        }
    }
#else
    __trap();
#endif
}

} // namespace vecgpu::cuda
