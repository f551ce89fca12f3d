/*
 * flat_scan.cuh: exact search of one query on the CUDA cores, in one launch at the speed of memory.
 *
 * One block of 1,024 threads an SM, warps take chunks of rows in turn, from a place of their own on. (1) The query into
 * shared memory. (2) The first chunks of all warps are a sample of the table, spread over it because tables lie in the
 * order of their insertion, clusters together: groups of warps post their least keys. (3) The k-th smallest of what all
 * have posted is never too small, so rows within this bound are appended to a list of a few times k. A warp does not
 * wait for the bound: it goes on with its rows and holds their keys in shared memory until one warp of its block has
 * seen that all groups have posted and told the others. (4) The block that ends last sorts the list.
 *
 * Blocks need not be on the chip at the same time. A block that has no more room for keys waits for the others for
 * kScanPatience at most; the k-th smallest of what has been posted by then is a bound too, only a wider one.
 *
 * int8 rows are scanned with the coarse kernel, whose key is off by at most e = A + B |row|^2: a row is sampled with key
 * + e and kept if key - e is within the bound, and the last block takes the keys of what was kept from the fine kernel.
 */
#pragma once

#include "block_select.cuh"
#include "clock.cuh"
#include "job.h"
#include "launch.h"
#include "query.cuh"

#include <algorithm>

namespace vecgpu::cuda {

constexpr int kScanThreads = 1024, kScanWarps = kScanThreads / 32;
constexpr uint32_t kScanHeld = kScanCandidates / kScanWarps; /* keys that a warp holds until it knows the bound */
constexpr uint64_t kScanPatience = 20'000;                   /* ns */

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
    uint32_t groups;  /* of the warps of a block, each posts one word: a power of two */
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
 * By one warp: a bound of the k-th smallest of `count` words of device memory that other blocks write, kNanOrder - 1 if
 * they are fewer. `words` has room for them, rounded up to 128.
 */
__device__ __forceinline__ uint32_t posted_bound(const uint32_t *minima, uint32_t count, uint32_t k, uint32_t *words)
{
    const uint32_t lane = threadIdx.x & 31, padded = (count + 127) / 128 * 128;
    uint32_t low = kNanOrder, high = 0, valid = 0;
    __syncwarp();
    for (uint32_t i = lane; i < padded; i += 32) {
        const uint32_t word = i < count ? __ldcg(minima + i) : kNanOrder;
        words[i] = word;
        if (word != kNanOrder) {
            low = min(low, word);
            high = max(high, word);
            valid++;
        }
    }
    __syncwarp();
    warp_range(low, high);
    if (__reduce_add_sync(kFullWarp, valid) < k)
        return kNanOrder - 1;
    return bisect(low, high, k, k / 8, [&](const uint32_t(&middle)[3], uint32_t(&counts)[3]) {
        counts[0] = counts[1] = counts[2] = 0;
#pragma unroll 1
        for (uint32_t i = 4 * lane; i < padded; i += 128) {
            const uint4 four = *reinterpret_cast<const uint4 *>(words + i);
#pragma unroll
            for (int j = 0; j < 3; j++)
                counts[j] +=
                    (four.x <= middle[j]) + (four.y <= middle[j]) + (four.z <= middle[j]) + (four.w <= middle[j]);
        }
#pragma unroll
        for (int j = 0; j < 3; j++)
            counts[j] = __reduce_add_sync(kFullWarp, counts[j]);
    });
}

template <class Kernel>
__global__ void __launch_bounds__(kScanThreads, 1) flat_scan_kernel(const __grid_constant__ ScanArguments a)
{
    using Filter = typename ScanFilter<Kernel>::type;
    constexpr bool kCoarse = Filter::kCoarse;
    constexpr int kQueryVectors = Kernel::kVectors + (kCoarse ? kCoarseVectors : 0);
    extern __shared__ __align__(16) unsigned char dynamic[];
    Word *list = reinterpret_cast<Word *>(dynamic); /* kScanCandidates; at first what the warps hold */
    uint4 *query = reinterpret_cast<uint4 *>(list + kScanCandidates),
          *fine = query + (kCoarse ? kCoarseVectors : 0) * a.rows.pieces;
    __shared__ BlockBoundStorage storage;
    __shared__ BlockBins<kScanThreads> bins; /* and the words that the bound is found from */
    static_assert(kScanMinima <= BlockBins<kScanThreads>::kBins);
    __shared__ uint32_t least_of[kScanWarps]; /* groups */
    __shared__ uint32_t posted;
    __shared__ Word ended;    /* blocks before this one, and below them words in the list */
    __shared__ uint32_t told; /* the bound, 0 until it is known */

    constexpr uint32_t kChunk = kScanChunk<Filter>, kChunkMask = kChunk == 32 ? kFullWarp : (1u << kChunk % 32) - 1;
    const int lane = threadIdx.x & 31;
    const uint32_t warps = gridDim.x * kScanWarps, warp = blockIdx.x * kScanWarps + threadIdx.x / 32;
    /* This warp's chunks are warp + i * warps, i < mine; it begins with number `start`. */
    const uint32_t chunks = (a.nodes + kChunk - 1) / kChunk, mine = chunks > warp ? (chunks - warp - 1) / warps + 1 : 0;
    const uint32_t samples = min(a.samples, mine), start = __umulhi(warp * 0x9E3779B1u, mine);
    /* What does not fit into the room for keys is sampled first and looked at again at the end. */
    const uint32_t twice = max(samples, kScanHeld / kChunk / 2) - kScanHeld / kChunk / 2;
    if (mine && !a.bits) {
        const uint32_t first = (warp + start * warps) * kChunk;
        const size_t bytes = static_cast<size_t>(min(kChunk, a.nodes - first)) * a.rows.pitch * sizeof(uint4);
        const char *from = reinterpret_cast<const char *>(a.rows.data + static_cast<size_t>(first) * a.rows.pitch);
        for (size_t at = lane * 128; at < bytes; at += 32 * 128)
            asm volatile("prefetch.global.L2 [%0];" ::"l"(from + at));
    }
    if (threadIdx.x < kScanWarps)
        least_of[threadIdx.x] = kNanOrder;
    if (threadIdx.x == 0)
        posted = told = 0;

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
        const uint32_t slot = first + (lane < n ? nth_bit(mask, lane) : 0);
        float2 side;
        const float key = Filter::keys(a.rows, query, head, slot, n, side);
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

    auto append = [&](Word word, uint32_t bound) {
        const bool hit = static_cast<uint32_t>(word >> 32) <= bound;
        const uint32_t hits = __ballot_sync(kFullWarp, hit);
        if (hits) {
            uint32_t at = 0;
            if (lane == 0)
                at = static_cast<uint32_t>(atomicAdd(a.workspace.ends, static_cast<Word>(__popc(hits))));
            at = __shfl_sync(kFullWarp, at, 0) + __popc(hits & ((1u << lane) - 1));
            if (hit && at < kScanCandidates)
                __stcg(a.workspace.candidates + at, word);
        }
    };

    /* True for the warp that is the last of its block: it looks for the bound. */
    auto post = [&](uint32_t smallest) {
        smallest = __reduce_min_sync(kFullWarp, smallest);
        uint32_t before = 0;
        if (lane == 0) {
            atomicMin(&least_of[threadIdx.x / 32 & (a.groups - 1)], smallest);
            __threadfence_block();
            before = atomicAdd(&posted, 1u);
        }
        if (__shfl_sync(kFullWarp, before, 0) != kScanWarps - 1)
            return false;
        __threadfence_block();
        if (lane < a.groups)
            __stcg(a.workspace.minima + blockIdx.x * a.groups + lane, atomicOr(least_of + lane, 0u));
        __syncwarp();
        if (lane == 0) {
            __threadfence();
            atomicAdd(a.workspace.ends + 1, 1ull);
        }
        return true;
    };

    bool looks = false;
    /* The bound, or 0 as long as it is not known; not for longer than kScanPatience if it is needed. */
    auto ask = [&](bool needed) {
        if (looks) {
            bool all = false;
            if (lane == 0) {
                const uint64_t since = nanoseconds();
                do
                    all = atomicOr(a.workspace.ends + 1, 0ull) == gridDim.x;
                while (needed && !all && nanoseconds() - since < kScanPatience);
            }
            all = __shfl_sync(kFullWarp, all, 0);
            if (all || needed) {
                __threadfence();
                const uint32_t bound = posted_bound(a.workspace.minima, gridDim.x * a.groups, a.k, bins.ends);
                if (lane == 0)
                    atomicExch(&told, bound);
                return bound;
            }
            return 0u;
        }
        uint32_t bound = 0;
        do
            if (lane == 0)
                bound = atomicOr(&told, 0u);
        while (needed && __shfl_sync(kFullWarp, bound, 0) == 0);
        return __shfl_sync(kFullWarp, bound, 0);
    };

    uint32_t bound = a.samples ? 0 : kNanOrder - 1, smallest = kNanOrder, held = 0;
    Word *const mine_held = list + threadIdx.x / 32 * kScanHeld;
    auto release = [&] {
        __syncwarp();
        for (uint32_t i = 0; i < held; i += 32)
            append(i + lane < held ? mine_held[i + lane] : kNoWord, bound);
        __syncwarp();
        held = 0;
    };
    for (uint32_t t = 0, i = start; t < mine + twice; t++, i = i + 1 == mine ? 0 : i + 1) {
        uint32_t row, least = 0, most = kNanOrder;
        scan(i, row, least, most);
        const Word word = row == kNone ? kNoWord : static_cast<Word>(least) << 32 | row;
        if (bound) {
            append(word, bound);
            continue;
        }
        if (t < samples) {
            smallest = min(smallest, row == kNone ? kNanOrder : most);
            if (t + 1 == samples)
                looks = post(smallest);
            if (t < twice)
                continue;
        }
        if (lane < kChunk)
            mine_held[held + lane] = word;
        held += kChunk;
        if (t + 1 < samples)
            continue;
        bound = ask(held + kChunk > kScanHeld);
        if (bound)
            release();
    }
    if (bound == 0) {
        if (samples == 0)
            looks = post(kNanOrder);
        bound = ask(true);
        release();
    }

    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0)
        ended = atomicAdd(a.workspace.ends, 1ull << 32);
    __syncthreads();
    if (ended >> 32 != gridDim.x - 1)
        return;
    __threadfence();
    const uint32_t found = static_cast<uint32_t>(ended);
    if (threadIdx.x == 0)
        a.workspace.ends[0] = a.workspace.ends[1] = 0;
    if (a.samples)
        for (uint32_t i = threadIdx.x; i < gridDim.x * a.groups; i += kScanThreads)
            a.workspace.minima[i] = kNanOrder;
    if (found > kScanCandidates) {
        if (threadIdx.x == 0)
            *a.count = kOverflow;
        return;
    }
    if constexpr (kCoarse) {
        const uint32_t share = warp_share(found, kScanWarps);
        for (uint32_t first = threadIdx.x / 32 * share; first < found; first += kScanWarps * share) {
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
    block_emit_sorted<kScanThreads, kScanCandidates / kScanThreads>(
        list, found, a.k, storage, bins, [&](uint32_t rank, Word word) {
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
        const uint32_t warps = machine.sms * kScanWarps;
        if (shared + sizeof(BlockBins<kScanThreads>) + sizeof(BlockBoundStorage) + 1024 > machine.shared_per_block)
            return;
        allow_shared<flat_scan_kernel<Kernel>, cudaSharedmemCarveoutDefault>(shared, machine.ordinal);
        ScanArguments a = {};
        a.rows = job.rows;
        a.prepared =
            raw ? nullptr : job.prepared + static_cast<size_t>(query) * query_pieces(Kernel::storage, job.rows.pieces);
        if (raw)
            std::copy_n(raw, job.rows.dimensions, a.query.values);
        a.bits = job.bits;
        a.nodes = job.nodes;
        a.k = job.k;
        /*
         * A sample of s rows leaves about k n / s candidates. A quarter of the list is fine, a sixty-fourth better, as far
         * as warps can hold the keys of the sample.
         */
        auto chunks_for = [&](uint32_t candidates) {
            const uint64_t rows = static_cast<uint64_t>(job.k) * job.nodes / candidates;
            return static_cast<uint32_t>(rows / (static_cast<uint64_t>(warps) * kScanChunk<Filter>)+1);
        };
        if (job.nodes > kScanCandidates)
            a.samples = std::max(chunks_for(kScanCandidates / 4),
                                 std::min(chunks_for(kScanCandidates / 64), kScanHeld / kScanChunk<Filter> / 2));
        /* A few of the k best in one group hardly loosen the bound. */
        a.groups = 1;
        while (a.groups < kScanWarps && machine.sms * a.groups < 4 * job.k && machine.sms * a.groups * 2 <= kScanMinima)
            a.groups *= 2;
        a.workspace = workspace;
        a.hits = job.hits + static_cast<size_t>(query) * job.k;
        a.count = job.counts + query;
        flat_scan_kernel<Kernel><<<machine.sms, kScanThreads, shared, stream>>>(a);
        check_launch("flat_scan");
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
    with_kernel<kStorage, Precision::Fine, kFlight, 4>(job.rows.metric, job.rows.dimensions, launcher);
    return launcher.done;
}

template <Storage kStorage>
void launch_keys(const Machine &machine, const Job &job, uint32_t query, uint32_t *orders, cudaStream_t stream)
{
    with_kernel<kStorage, Precision::Fine, 8, 4>(job.rows.metric, job.rows.dimensions,
                                                 KeysLauncher{machine, job, query, orders, stream});
}

} // namespace vecgpu::cuda
