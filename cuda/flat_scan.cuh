/*
 * flat_scan.cuh: exact search of one query on the CUDA cores, in one launch at the speed of memory.
 *
 * Cooperative kernel, one block of 1,024 threads an SM: (1) the query into shared memory and registers; (2) keys of a
 * sample of rows spread over the table, one minimum a warp; (3) grid barrier; every block takes the k-th smallest
 * minimum as the bound, which is never too small; (4) all other rows, those within the bound are appended to a list of a
 * few times k; (5) the block that ends last sorts the list. The sample is spread because tables lie in the order of
 * their insertion, clusters together; its first part is not computed again, and what follows it is on its way from
 * memory during the barrier.
 *
 * int8 rows are scanned with the coarse kernel, whose key is off by at most e = A + B |row|^2: a row is sampled with key
 * + e and kept if key - e is within the bound, and the last block takes the keys of what was kept from the fine kernel.
 */
#pragma once

#include "block_select.cuh"
#include "job.h"
#include "launch.h"
#include "query.cuh"

#include <cooperative_groups.h>

#include <algorithm>

namespace vecgpu::cuda {

constexpr int kScanThreads = 1024;

/* One query, in the launch itself. */
struct ScanQuery {
    float values[kInlineFloats];
};

struct ScanArguments {
    Rows rows;
    const uint4 *prepared; /* null: the query is in `query` */
    const uint32_t *bits;
    uint32_t nodes;
    uint32_t k;
    uint32_t samples; /* chunks a warp; 0: no bound, every row is a candidate */
    ScanWorkspace workspace;
    Hit *hits;
    uint32_t *count;
    ScanQuery query;
};

/* The kernel that rows are scanned with, for the one whose keys are the answer's. */
template <class Kernel>
struct ScanFilter {
    using type = Kernel;
};
template <bool kDot, bool kShort, int kFlight>
struct ScanFilter<RowKernel<Storage::Int8, kDot, kShort, Precision::Fine, kFlight>> {
    using type = RowKernel<Storage::Int8, kDot, kShort, Precision::Coarse, kFlight>;
};

/* Rows that a warp takes at a time: as few as a step, or warps would end far apart. */
template <class Filter>
constexpr uint32_t kScanChunk = Filter::kStride < 8 ? 8 : Filter::kStride;

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

/* The part of a short row's query that belongs to a lane, and keys of consecutive rows from it. */
template <class Kernel>
struct ShortScan {
    static constexpr int kLoads = Kernel::Type::kLoads, kVectors = Kernel::kVectors, kRows = Kernel::kStride,
                         kSteps = kRows / 4;
    static_assert(!Kernel::kBrief || !Kernel::kRowScale);
    uint4 q[kLoads * kVectors];

    __device__ __forceinline__ void load(const uint4 *query, uint32_t pieces)
    {
        const uint32_t part = threadIdx.x & 7;
#pragma unroll
        for (int c = 0; c < kLoads; c++)
#pragma unroll
            for (int v = 0; v < kVectors; v++)
                q[c * kVectors + v] = part + 8 * c < pieces ? query[v * pieces + part + 8 * c] : make_uint4(0, 0, 0, 0);
    }

    /* Lane i < min(kRows, nodes - first) gets the key of row first + i, to the last bit that of Kernel::keys(). */
    __device__ __forceinline__ float keys(const Rows &rows, const QueryHead &head, uint32_t first, uint32_t nodes,
                                          float2 &side) const
    {
        const int lane = threadIdx.x & 31, team = lane >> 3, part = lane & 7;
        const uint4 *p = rows.data + static_cast<size_t>(first + team) * rows.pitch + part;
        const uint32_t left = nodes - first;
        uint4 v[kSteps][kLoads];
#pragma unroll
        for (int s = 0; s < kSteps; s++)
#pragma unroll
            for (int c = 0; c < kLoads; c++)
                v[s][c] = s * 4 + team < left && part + 8 * c < rows.pieces
                              ? load_piece(p + static_cast<size_t>(s) * 4 * rows.pitch + 8 * c)
                              : make_uint4(0, 0, 0, 0);
        side = make_float2(1, 0);
        if (lane < kRows && lane < left)
            side = Kernel::side_of(rows, first + lane);
        typename Kernel::Sum sum[kSteps];
#pragma unroll
        for (int s = 0; s < kSteps; s++)
            sum[s] = 0;
#pragma unroll
        for (int c = 0; c < kLoads; c++)
            if (part + 8 * c < rows.pieces) {
#pragma unroll
                for (int s = 0; s < kSteps; s++)
                    sum[s] = Kernel::add(sum[s], v[s][c], q + c * kVectors, 1, 1.f);
            }
        const typename Kernel::Sum total = Kernel::template reduce<kSteps, 8>(sum, lane);
        return Kernel::finish(__shfl_sync(kFullWarp, total, Kernel::holder(lane)), side, head, rows.metric);
    }
};

/* e = constant + slope * side.y is the most that a coarse key can be off from the fine one. */
struct CoarseError {
    float constant, slope;
};

/*
 * The 16-bit query q~ is off by d = |q - q~| <= 0.51 step sqrt(D): components are rounded to the nearest unit, and the
 * quotient that is rounded is itself within 0.01 of the true one. 2 |x| d <= d (|q| + |x|^2 / |q|) for L2 and more than
 * that for a product; 2^-24 (4 D + 128) (|q|^2 + |x|^2) is more than all roundings of both keys.
 */
__device__ __forceinline__ CoarseError coarse_error(Metric metric, uint32_t dimensions, const QueryHead &head)
{
    const float norm = sqrtf(head.norm2), error = norm > 0 ? 0.51f * head.step * sqrtf(dimensions) : 0.f,
                rounding = (4.f * dimensions + 128.f) / (1 << 24);
    if (metric == Metric::Cosine)
        return {(error * head.inverse + 4 * rounding) * 1.001f, 0.f};
    return {(error * norm + rounding * head.norm2) * 1.001f, ((norm > 0 ? error / norm : 0.f) + rounding) * 1.001f};
}

/*
 * The k-th smallest of one word a block of the grid, by all threads: `least` has room for all of them.
 */
__device__ __forceinline__ uint32_t bound_of_blocks(const uint32_t *minima, uint32_t k, uint32_t *least,
                                                    uint32_t &bound)
{
    const uint32_t blocks = gridDim.x, padded = (blocks + 3) / 4 * 4;
    if (threadIdx.x < padded)
        least[threadIdx.x] = threadIdx.x < blocks ? __ldcg(minima + threadIdx.x) : kNanOrder;
    __syncthreads();
    if (threadIdx.x < blocks) {
        const uint32_t mine = least[threadIdx.x];
        uint32_t less = 0, equal = 0;
#pragma unroll 4
        for (uint32_t i = 0; i < padded; i += 4) {
            const uint4 four = *reinterpret_cast<const uint4 *>(least + i);
            less += (four.x < mine) + (four.y < mine) + (four.z < mine) + (four.w < mine);
            equal += (four.x == mine) + (four.y == mine) + (four.z == mine) + (four.w == mine);
        }
        if (less < k && k <= less + equal) /* all for whom it holds have the same word */
            bound = mine;
    }
    __syncthreads();
    return bound;
}

/* Distinct words of shared memory in order, `count` <= kScanFew: emit(rank, word) for ranks below k. */
constexpr uint32_t kScanFew = 256;

template <class Emit>
__device__ __forceinline__ void emit_few(const Word *words, uint32_t count, uint32_t k, Emit emit)
{
    constexpr uint32_t kEach = kScanThreads / kScanFew; /* threads a word */
    const uint32_t i = threadIdx.x / kEach, sub = threadIdx.x % kEach;
    const Word mine = i < count ? words[i] : kNoWord;
    uint32_t rank = 0;
    for (uint32_t j = sub; j < count; j += kEach)
        rank += words[j] < mine;
    for (uint32_t step = kEach / 2; step; step >>= 1)
        rank += __shfl_xor_sync(kFullWarp, rank, step);
    if (sub == 0 && i < count && rank < k)
        emit(rank, mine);
}

template <class Kernel>
__global__ void __launch_bounds__(kScanThreads, 1) flat_scan_kernel(const __grid_constant__ ScanArguments a)
{
    using Filter = typename ScanFilter<Kernel>::type;
    constexpr bool kCoarse = Filter::kCoarse;
    constexpr int kQueryVectors = Kernel::kVectors + (kCoarse ? kCoarseVectors : 0);
    extern __shared__ __align__(16) unsigned char dynamic[];
    Word *list = reinterpret_cast<Word *>(dynamic); /* kScanCandidates */
    uint4 *query = reinterpret_cast<uint4 *>(list + kScanCandidates),
          *fine = query + (kCoarse ? kCoarseVectors : 0) * a.rows.pieces;
    constexpr int kWarps = kScanThreads / 32;
    __shared__ BlockBoundStorage storage;
    __shared__ BlockBins<kScanThreads> bins;
    __shared__ __align__(16) uint32_t least_of[kScanMinima / kWarps]; /* blocks */
    __shared__ uint32_t last, least_here, bound_found;

    constexpr uint32_t kChunk = kScanChunk<Filter>, kChunkMask = kChunk == 32 ? kFullWarp : (1u << kChunk % 32) - 1;
    const int lane = threadIdx.x & 31;
    const uint32_t warps = gridDim.x * kWarps, warp = blockIdx.x * kWarps + threadIdx.x / 32;
    /* This warp's chunks are warp + i * warps, i < mine; the sample begins with number `sampled`. */
    const uint32_t chunks = (a.nodes + kChunk - 1) / kChunk, mine = chunks > warp ? (chunks - warp - 1) / warps + 1 : 0;
    const uint32_t samples = min(a.samples, mine), sampled = __umulhi(warp * 0x9E3779B1u, mine);
    auto fetch = [&](uint32_t i) {
        if (i >= mine)
            return;
        const uint32_t first = (warp + i * warps) * kChunk;
        const size_t bytes = static_cast<size_t>(min(kChunk, a.nodes - first)) * a.rows.pitch * sizeof(uint4);
        const char *from = reinterpret_cast<const char *>(a.rows.data + static_cast<size_t>(first) * a.rows.pitch);
        for (size_t at = lane * 128; at < bytes; at += 32 * 128)
            asm volatile("prefetch.global.L2 [%0];" ::"l"(from + at));
    };
    if (samples && !a.bits)
        fetch(sampled);
    if (threadIdx.x == 0)
        least_here = kNanOrder;

    QueryHead head = {};
    if (a.prepared) {
        const uint4 first = __ldg(a.prepared);
        memcpy(&head, &first, sizeof head);
        for (uint32_t i = threadIdx.x; i < kQueryVectors * a.rows.pieces; i += kScanThreads)
            query[i] = __ldg(a.prepared + 1 + i);
    } else {
        float *to = reinterpret_cast<float *>(fine);
        for (uint32_t d = threadIdx.x; d < Kernel::kVectors * a.rows.pieces * 4; d += kScanThreads)
            to[fine_place<Kernel::kVectors>(d, a.rows.pieces)] = d < a.rows.dimensions ? a.query.values[d] : 0.f;
        __syncthreads();
        auto at = [&](uint32_t d) { return to[fine_place<Kernel::kVectors>(d, a.rows.pieces)]; };
        if (kCoarse || a.rows.metric == Metric::Cosine)
            head = query_head(at, a.rows.dimensions, a.rows.metric == Metric::Cosine);
        if (kCoarse) {
            signed char *high = reinterpret_cast<signed char *>(query), *low = high + a.rows.pieces * 16;
            for (uint32_t d = threadIdx.x; d < a.rows.pieces * 16; d += kScanThreads)
                split_component(d < a.rows.dimensions ? at(d) : 0.f, head.step, high[d], low[d]);
        }
    }
    __syncthreads();
    CoarseError error = {};
    if constexpr (kCoarse)
        error = coarse_error(a.rows.metric, a.rows.dimensions, head);
    ShortScan<Filter> brief;
    if constexpr (Kernel::kBrief)
        brief.load(query, a.rows.pieces);

    /* Keys of the rows of chunk i that may be returned, to lanes; kNone rows are none. */
    auto scan = [&](uint32_t i, uint32_t &row, uint32_t &least, uint32_t &most) {
        const uint32_t first = (warp + i * warps) * kChunk;
        row = kNone;
        uint32_t mask = a.nodes - first >= kChunk ? kChunkMask : (1u << (a.nodes - first)) - 1;
        if (a.bits)
            mask &= __ldg(a.bits + first / 32) >> (first & 31);
        const int n = __popc(mask);
        if (n == 0)
            return;
        float key;
        float2 side = make_float2(1, 0);
        bool done = false;
        if constexpr (Kernel::kBrief) {
            if ((mask & (mask + 1)) == 0) {
                key = brief.keys(a.rows, head, first, first + n, side);
                done = true;
            }
        }
        const uint32_t slot = first + (lane < n ? nth_bit(mask, lane) : 0);
        if (!done) {
            key = Filter::keys(a.rows, query, head, slot, n);
            if (kCoarse && lane < n)
                side = Filter::side_of(a.rows, slot);
        }
        if (lane >= n)
            return;
        row = slot;
        if constexpr (kCoarse) {
            const float e = error.constant + error.slope * side.y;
            const bool good = e < 1e37f && fabsf(key) < 1e37f;
            least = order_of(good ? key - e : -FLT_MAX);
            most = order_of(good ? key + e : FLT_MAX);
        } else {
            least = most = order_of(key);
        }
    };

    uint32_t bound = kNanOrder - 1, held_row = kNone, held_order = 0;
    if (a.samples) {
        uint32_t smallest = kNanOrder;
        for (uint32_t s = 0; s < samples; s++) {
            uint32_t row, least = 0, most = kNanOrder;
            scan((sampled + static_cast<uint32_t>(static_cast<uint64_t>(s) * mine / samples)) % mine, row, least, most);
            if (row != kNone)
                smallest = min(smallest, most);
            if (s == 0) {
                held_row = row;
                held_order = least;
            }
        }
        smallest = __reduce_min_sync(kFullWarp, smallest);
        /* A few of the k best in one block hardly loosen the bound: then one minimum a block will do. */
        const bool by_block = 4 * a.k <= gridDim.x;
        if (lane == 0) {
            if (by_block)
                atomicMin(&least_here, smallest);
            else
                __stcg(a.workspace.minima + warp, smallest);
        }
        if (!a.bits)
            fetch(sampled == 0 ? 1 : 0);
        if (by_block) {
            __syncthreads();
            if (threadIdx.x == 0)
                __stcg(a.workspace.minima + blockIdx.x, least_here);
        }
        cooperative_groups::this_grid().sync();
        if (by_block) {
            bound = min(bound, bound_of_blocks(a.workspace.minima, a.k, least_of, bound_found));
        } else {
            constexpr int kItems = kScanMinima / kScanThreads; /* warps of 256 SMs */
            uint32_t minima[kItems];
#pragma unroll
            for (int i = 0; i < kItems; i++) {
                uint32_t at = i * kScanThreads + threadIdx.x;
                minima[i] = at < warps ? __ldcg(a.workspace.minima + at) : kNanOrder;
            }
            bound = min(bound, block_bound<kItems>(minima, a.k, a.k / 2 + 8, storage));
        }
    }

    auto append = [&](uint32_t row, uint32_t order) {
        const bool hit = row != kNone && order <= bound;
        const uint32_t hits = __ballot_sync(kFullWarp, hit);
        if (hits) {
            uint32_t at = 0;
            if (lane == 0)
                at = atomicAdd(a.workspace.counters, __popc(hits));
            at = __shfl_sync(kFullWarp, at, 0) + __popc(hits & ((1u << lane) - 1));
            if (hit && at < kScanCandidates)
                __stcg(a.workspace.candidates + at, static_cast<Word>(order) << 32 | row);
        }
    };
    append(held_row, held_order);
    for (uint32_t i = 0; i < mine; i++) {
        if (samples && i == sampled)
            continue;
        uint32_t row, least = 0, most;
        scan(i, row, least, most);
        append(row, least);
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
    if constexpr (kCoarse) {
        const uint32_t share = found <= kWarps * kTeams ? kTeams : 32;
        for (uint32_t first = threadIdx.x / 32 * share; first < found; first += kWarps * share) {
            const int n = min(share, found - first);
            const uint32_t slot = slot_of_word(__ldcg(a.workspace.candidates + first + min(lane, n - 1)));
            const float key = Kernel::template keys<true>(a.rows, fine, head, slot, n);
            if (lane < n)
                list[first + lane] = word_of(key, slot);
        }
    } else {
        for (uint32_t i = threadIdx.x; i < found; i += kScanThreads)
            list[i] = __ldcg(a.workspace.candidates + i);
    }
    __syncthreads();
    auto emit = [&](uint32_t rank, Word word) { a.hits[rank] = {slot_of_word(word), key_of_word(word)}; };
    if (found <= kScanFew)
        emit_few(list, found, a.k, emit);
    else
        block_emit_sorted<kScanThreads, kScanCandidates / kScanThreads>(list, found, a.k, storage, bins, emit);
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
    const float *raw;
    const ScanWorkspace &workspace;
    cudaStream_t stream;
    bool done = false;

    template <class Kernel>
    void run()
    {
        using Filter = typename ScanFilter<Kernel>::type;
        const size_t shared =
            kScanCandidates * sizeof(Word) +
            (Kernel::kVectors + (Filter::kCoarse ? kCoarseVectors : 0)) * job.rows.pieces * sizeof(uint4);
        const uint64_t warps = static_cast<uint64_t>(machine.sms) * (kScanThreads / 32);
        if (shared + sizeof(BlockBins<kScanThreads>) + sizeof(BlockBoundStorage) +
                    kScanMinima / (kScanThreads / 32) * sizeof(uint32_t) + 64 >
                machine.shared_per_block ||
            warps > kScanMinima)
            return;
        allow_shared<flat_scan_kernel<Kernel>, cudaSharedmemCarveoutDefault>(shared, machine.ordinal);
        ScanArguments a;
        a.rows = job.rows;
        a.prepared =
            raw ? nullptr : job.prepared + static_cast<size_t>(query) * query_pieces(Kernel::storage, job.rows.pieces);
        if (raw)
            std::copy_n(raw, job.rows.dimensions, a.query.values);
        a.bits = job.bits;
        a.nodes = job.nodes;
        a.k = job.k;
        /* A sample of s rows leaves about k n / s candidates: aim at a quarter of the list. */
        const uint64_t wanted = static_cast<uint64_t>(job.k) * job.nodes / (kScanCandidates / 4);
        a.samples = job.nodes <= kScanCandidates ? 0 : static_cast<uint32_t>(wanted / (warps * kScanChunk<Filter>)+1);
        a.workspace = workspace;
        a.hits = job.hits + static_cast<size_t>(query) * job.k;
        a.count = job.counts + query;
        void *arguments[] = {&a};
        check(cudaLaunchCooperativeKernel(flat_scan_kernel<Kernel>, dim3(machine.sms), dim3(kScanThreads), arguments,
                                          shared, stream),
              "flat_scan");
        done = true;
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
bool launch_scan(const Machine &machine, const Job &job, uint32_t query, const float *raw,
                 const ScanWorkspace &workspace, cudaStream_t stream)
{
    ScanLauncher launcher{machine, job, query, raw, workspace, stream};
    /* Rows that a warp takes at a time are as many as its loads; of int8 rows twice as many would end too unevenly. */
    constexpr int kFlight = kStorage == Storage::Int8 ? 4 : 8;
    with_kernel<kStorage, Precision::Fine, kFlight>(job.rows.metric, job.rows.dimensions, launcher);
    return launcher.done;
}

template <Storage kStorage>
void launch_keys(const Machine &machine, const Job &job, uint32_t query, uint32_t *orders, cudaStream_t stream)
{
    with_kernel<kStorage, Precision::Fine, 8>(job.rows.metric, job.rows.dimensions,
                                              KeysLauncher{machine, job, query, orders, stream});
}

} // namespace vecgpu::cuda
