/*
 * flat_scan.cuh: exact search of one query on the CUDA cores, in one launch at the speed of memory.
 *
 * Cooperative kernel, one block of 1,024 threads an SM: (1) keys of a sample of rows spread over the table, one minimum
 * a warp; (2) grid barrier; every block takes the k-th smallest minimum as the bound, which is never too small; (3) all
 * rows, those within the bound are appended to a list of a few times k; (4) the block that ends last sorts the list.
 * The sample is spread because tables lie in the order of their insertion, clusters together.
 */
#pragma once

#include "block_select.cuh"
#include "job.h"
#include "launch.h"

#include <cooperative_groups.h>

namespace vecgpu::cuda {

constexpr int kScanThreads = 1024;
constexpr uint32_t kSampleRows = 8; /* consecutive rows of one sample */

struct ScanArguments {
    Rows rows;
    const uint4 *query; /* prepared */
    const uint32_t *bits;
    uint32_t nodes;
    uint32_t k;
    uint32_t samples; /* of kSampleRows, a warp; 0: no bound, every row is a candidate */
    ScanWorkspace workspace;
    Hit *hits;
    uint32_t *count;
};

/* The (lane+1)-th set bit of a mask; the mask is the same in all lanes. */
__device__ __forceinline__ uint32_t nth_bit(uint32_t mask, int lane)
{
    return (mask & (mask + 1)) == 0 ? lane : __fns(mask, 0, lane + 1); /* without gaps it is the lane's own */
}

template <class Kernel>
__device__ __forceinline__ void load_query(const uint4 *prepared, uint32_t pieces, uint4 *shared, QueryHead &head)
{
    uint4 first = __ldg(prepared);
    memcpy(&head, &first, sizeof head);
    for (uint32_t i = threadIdx.x; i < Kernel::kVectors * pieces; i += blockDim.x)
        shared[i] = __ldg(prepared + Kernel::query_offset(pieces) + i);
    __syncthreads();
}

template <class Kernel>
__global__ void __launch_bounds__(kScanThreads, 1) flat_scan_kernel(const ScanArguments a)
{
    extern __shared__ __align__(16) unsigned char dynamic[];
    Word *list = reinterpret_cast<Word *>(dynamic); /* kScanCandidates */
    uint4 *query = reinterpret_cast<uint4 *>(list + kScanCandidates);
    __shared__ BlockBoundStorage storage;
    __shared__ uint32_t counter, last;
    QueryHead head;
    load_query<Kernel>(a.query, a.rows.pieces, query, head);

    constexpr int kWarps = kScanThreads / 32;
    const int lane = threadIdx.x & 31;
    const uint32_t warps = gridDim.x * kWarps, warp = blockIdx.x * kWarps + threadIdx.x / 32;

    uint32_t bound = kNanOrder - 1;
    if (a.samples) {
        const uint64_t groups = (a.nodes + kSampleRows - 1) / kSampleRows,
                       all = static_cast<uint64_t>(warps) * a.samples;
        uint32_t least = kNanOrder;
        for (uint32_t i = 0; i < a.samples; i++) {
            uint64_t at = static_cast<uint64_t>(i) * warps + warp;
            if (groups <= all ? at >= groups : false)
                break;
            uint32_t first = static_cast<uint32_t>(groups <= all ? at : at * groups / all) * kSampleRows;
            uint32_t mask = (1u << min(kSampleRows, a.nodes - first)) - 1;
            if (a.bits)
                mask &= __ldg(a.bits + first / 32) >> (first & 31);
            int n = __popc(mask);
            if (n == 0)
                continue;
            float key = Kernel::keys(a.rows, query, head, first + (lane < n ? nth_bit(mask, lane) : 0), n);
            if (lane < n)
                least = min(least, order_of(key));
        }
        least = __reduce_min_sync(kFullWarp, least);
        if (lane == 0)
            __stcg(a.workspace.minima + warp, least);
        cooperative_groups::this_grid().sync();
        constexpr int kItems = kScanMinima / kScanThreads; /* warps of 256 SMs */
        uint32_t minima[kItems];
#pragma unroll
        for (int i = 0; i < kItems; i++) {
            uint32_t at = i * kScanThreads + threadIdx.x;
            minima[i] = at < warps ? __ldcg(a.workspace.minima + at) : kNanOrder;
        }
        bound = min(bound, block_bound<kItems>(minima, a.k, max(a.k / 4, 5u), storage));
    }

    /* Chunks as small as a step: with 32 rows each, warps would end up to a tenth apart. */
    constexpr uint32_t kChunk = Kernel::kStride < 8 ? 8 : Kernel::kStride,
                       kChunkMask = kChunk == 32 ? kFullWarp : (1u << kChunk % 32) - 1;
    for (uint64_t chunk = warp; chunk * kChunk < a.nodes; chunk += warps) {
        const uint32_t first = static_cast<uint32_t>(chunk * kChunk);
        uint32_t mask = a.nodes - first >= kChunk ? kChunkMask : (1u << (a.nodes - first)) - 1;
        if (a.bits)
            mask &= __ldg(a.bits + first / 32) >> (first & 31);
        const int n = __popc(mask);
        if (n == 0)
            continue;
        const uint32_t row = first + (lane < n ? nth_bit(mask, lane) : 0);
        const uint32_t order = order_of(Kernel::keys(a.rows, query, head, row, n));
        const bool hit = lane < n && order <= bound;
        const uint32_t hits = __ballot_sync(kFullWarp, hit);
        if (hits) {
            uint32_t at = 0;
            if (lane == 0)
                at = atomicAdd(a.workspace.counters, __popc(hits));
            at = __shfl_sync(kFullWarp, at, 0) + __popc(hits & ((1u << lane) - 1));
            if (hit && at < kScanCandidates)
                __stcg(a.workspace.candidates + at, static_cast<Word>(order) << 32 | row);
        }
    }

    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0)
        last = atomicAdd(a.workspace.counters + 1, 1u) == gridDim.x - 1;
    __syncthreads();
    if (!last)
        return;
    __threadfence();
    const uint32_t found = __ldcg(a.workspace.counters);
    __syncthreads();
    if (threadIdx.x == 0) {
        a.workspace.counters[0] = 0;
        a.workspace.counters[1] = 0;
    }
    if (found > kScanCandidates) {
        if (threadIdx.x == 0)
            *a.count = kOverflow;
        return;
    }
    for (uint32_t i = threadIdx.x; i < found; i += kScanThreads)
        list[i] = __ldcg(a.workspace.candidates + i);
    __syncthreads();
    block_emit_sorted<kScanThreads, kScanCandidates / kScanThreads>(
        list, found, a.k, storage, counter, [&](uint32_t rank, Word word) {
            a.hits[rank] = {slot_of_word(word), key_of_word(word)};
        });
    if (threadIdx.x == 0)
        *a.count = min(found, a.k);
}

/* Orders of all rows; what may not be returned gets kNanOrder. */
template <class Kernel>
__global__ void __launch_bounds__(512)
    flat_keys_kernel(const Rows rows, const uint4 *prepared, const uint32_t *bits, uint32_t nodes, uint32_t *orders)
{
    extern __shared__ __align__(16) unsigned char dynamic[];
    uint4 *query = reinterpret_cast<uint4 *>(dynamic);
    QueryHead head;
    load_query<Kernel>(prepared, rows.pieces, query, head);
    const int lane = threadIdx.x & 31;
    const uint32_t warps = gridDim.x * (blockDim.x / 32), warp = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    for (uint64_t chunk = warp; chunk * 32 < nodes; chunk += warps) {
        const uint32_t first = static_cast<uint32_t>(chunk * 32);
        uint32_t mask = nodes - first >= 32 ? kFullWarp : (1u << (nodes - first)) - 1;
        if (bits)
            mask &= __ldg(bits + chunk);
        const int n = __popc(mask);
        if (first + lane < nodes && !(mask >> lane & 1))
            orders[first + lane] = kNanOrder;
        if (n == 0)
            continue;
        const uint32_t row = first + (lane < n ? nth_bit(mask, lane) : 0);
        const float key = Kernel::keys(rows, query, head, row, n);
        if (lane < n)
            orders[row] = order_of(key);
    }
}

struct ScanLauncher {
    const Machine &machine;
    const Job &job;
    uint32_t query;
    const ScanWorkspace &workspace;
    cudaStream_t stream;

    template <class Kernel>
    void run()
    {
        const size_t shared = kScanCandidates * sizeof(Word) + Kernel::kVectors * job.rows.pieces * sizeof(uint4);
        allow_shared<flat_scan_kernel<Kernel>>(shared, machine.ordinal);
        const uint64_t warps = static_cast<uint64_t>(machine.sms) * (kScanThreads / 32);
        ScanArguments a;
        a.rows = job.rows;
        a.query = job.prepared + static_cast<size_t>(query) * query_pieces(Kernel::storage, job.rows.pieces);
        a.bits = job.bits;
        a.nodes = job.nodes;
        a.k = job.k;
        /* A sample of s rows leaves about k n / s candidates: aim at a quarter of the list. */
        uint64_t wanted = static_cast<uint64_t>(job.k) * job.nodes / (kScanCandidates / 4);
        a.samples = job.nodes <= kScanCandidates ? 0 : static_cast<uint32_t>(wanted / (warps * kSampleRows) + 1);
        a.workspace = workspace;
        a.hits = job.hits + static_cast<size_t>(query) * job.k;
        a.count = job.counts + query;
        void *arguments[] = {&a};
        check(cudaLaunchCooperativeKernel(flat_scan_kernel<Kernel>, dim3(machine.sms), dim3(kScanThreads), arguments,
                                          shared, stream),
              "flat_scan");
    }
};

struct KeysLauncher {
    const Machine &machine;
    const Job &job;
    uint32_t query;
    uint32_t *orders;
    cudaStream_t stream;

    template <class Kernel>
    void run()
    {
        const size_t shared = Kernel::kVectors * job.rows.pieces * sizeof(uint4);
        allow_shared<flat_keys_kernel<Kernel>>(shared, machine.ordinal);
        flat_keys_kernel<Kernel><<<machine.sms * 2, 512, shared, stream>>>(
            job.rows, job.prepared + static_cast<size_t>(query) * query_pieces(Kernel::storage, job.rows.pieces),
            job.bits, job.nodes, orders);
        check_launch("flat_keys");
    }
};

template <Storage kStorage>
void launch_scan(const Machine &machine, const Job &job, uint32_t query, const ScanWorkspace &workspace,
                 cudaStream_t stream)
{
    with_kernel<kStorage, true, kStorage == Storage::Int8 ? 4 : 8>(
        job.rows.metric, job.rows.dimensions, ScanLauncher{machine, job, query, workspace, stream});
}

template <Storage kStorage>
void launch_keys(const Machine &machine, const Job &job, uint32_t query, uint32_t *orders, cudaStream_t stream)
{
    with_kernel<kStorage, true, 8>(job.rows.metric, job.rows.dimensions,
                                   KeysLauncher{machine, job, query, orders, stream});
}

} // namespace vecgpu::cuda
