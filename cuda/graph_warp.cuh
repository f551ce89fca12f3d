/*
 * graph_warp.cuh: search of layer 0, one warp a query: the form for many queries.
 *
 * Best-first search with a list of ef nodes in registers. A round expands the best nodes of the list that are not
 * expanded yet, as many as round_width() says; all forms of the graph search share that rule, so they return the same
 * rows: a list after a round is the ef best of all keys computed so far, whatever the order within the round. Warps
 * take queries from a ticket, each at its own pace.
 *
 * Nothing in a round waits for one node alone: links of several parents are read at once, ids that are new collect until
 * 32 rows can be computed together, and words that enter the list until a merge is worth it.
 *
 * Rows that may not be returned (dead, or outside of the filter) lead on like all others; a list of its own, in shared
 * memory, collects the k best of all rows met that may be returned.
 */
#pragma once

#include "job.h"
#include "launch.h"
#include "visited.cuh"
#include "warp_list.cuh"

namespace vecgpu::cuda {

constexpr uint32_t kMaxParents = 64;
static_assert(most_parents(kMaxGraphEf) <= kMaxParents);

/* Of the visited set of a warp, by the registers of its list: wide lists meet more nodes. */
template <int kRegisters>
constexpr int kWarpBucketBits = kRegisters <= 4 ? 8 : 9;

struct GraphArguments {
    Rows rows;
    const uint4 *prepared;
    const uint32_t *links;
    const uint32_t *entries, *turns;
    const uint32_t *bits;
    uint32_t nodes, degree, count, k, ef, first_parents, parents, ramp_shift;
    uint32_t *ticket;
    Hit *hits;
    uint32_t *counts;
};

/* Nodes to expand in round `round`, see job.h. */
__device__ __forceinline__ uint32_t round_width(const GraphArguments &a, uint32_t round)
{
    return min(a.parents, a.first_parents << min(round >> a.ramp_shift, 8u));
}

constexpr uint32_t kCells = 128;         /* links that a warp looks at together, four a lane */
constexpr uint32_t kQueue = kCells + 32; /* ids that wait: fewer than 32 before four more a lane */

constexpr uint32_t kPending = 64; /* words that wait: fewer than 32 before 32 more */

/* Words of shared memory that a warp needs, a multiple of 4. */
template <class Kernel, int kRegisters>
__host__ __device__ constexpr uint32_t graph_warp_words(uint32_t pieces, uint32_t k, bool bits)
{
    uint32_t words = VisitedSet<kWarpBucketBits<kRegisters>>::kWords + Kernel::kVectors * pieces * 4 + 2 * kPending +
                     kQueue + kMaxParents;
    return words + (bits ? (2 * k + 3) / 4 * 4 : 0);
}

/* A list word is (order, slot << 1 | expanded): slots are below 2^31. */
template <class Kernel, int kRegisters>
__global__ void __launch_bounds__(128, kRegisters <= 4 ? 8 : 4) graph_warp_kernel(const GraphArguments a)
{
    extern __shared__ __align__(16) uint32_t dynamic[];
    using Visited = VisitedSet<kWarpBucketBits<kRegisters>>;
    const int lane = threadIdx.x & 31;
    const uint32_t before = (1u << lane) - 1;
    uint32_t *table =
        dynamic + (threadIdx.x / 32) * graph_warp_words<Kernel, kRegisters>(a.rows.pieces, a.k, a.bits != nullptr);
    uint4 *query = reinterpret_cast<uint4 *>(table + Visited::kWords);
    Word *pending = reinterpret_cast<Word *>(query + Kernel::kVectors * a.rows.pieces);
    uint32_t *queue = reinterpret_cast<uint32_t *>(pending + kPending);
    uint32_t *parents = queue + kQueue;
    Word *valid = reinterpret_cast<Word *>(parents + kMaxParents); /* only with bits */
    const bool narrow = Visited::narrow(a.nodes), quads = a.degree % 4 == 0;

    for (;;) {
        uint32_t q = 0;
        if (lane == 0)
            q = atomicAdd(a.ticket, 1u);
        q = __shfl_sync(kFullWarp, q, 0);
        if (q >= a.count)
            return;
        if (a.turns)
            q = __ldg(a.turns + q);
        const uint4 *prepared = a.prepared + static_cast<size_t>(q) * query_pieces(Kernel::storage, a.rows.pieces);
        QueryHead head;
        {
            uint4 first = __ldg(prepared);
            memcpy(&head, &first, sizeof head);
        }
        for (uint32_t i = lane; i < Kernel::kVectors * a.rows.pieces; i += 32)
            query[i] = __ldg(prepared + Kernel::query_offset(a.rows.pieces) + i);
        for (uint32_t i = lane; i < Visited::kWords / 4; i += 32)
            reinterpret_cast<uint4 *>(table)[i] = make_uint4(0, 0, 0, 0);
        if (a.bits)
            for (uint32_t i = lane; i < a.k; i += 32)
                valid[i] = kNoWord;
        __syncwarp();

        WarpList<kRegisters> list;
        list.clear();
        Word worst = kNoWord;
        uint32_t queued = 0, waiting = 0; /* ids in `queue`, words in `pending` */

        /* The last 32 words that wait go into the list. */
        auto settle = [&] {
            const uint32_t n = min(waiting, 32u);
            waiting -= n;
            __syncwarp();
            if (n <= 3)
                for (uint32_t i = 0; i < n; i++)
                    list.insert(pending[waiting + i]);
            else
                list.merge(static_cast<uint32_t>(lane) < n ? pending[waiting + lane] : kNoWord);
            __syncwarp();
            worst = list.element(a.ef - 1);
            if (a.ef < WarpList<kRegisters>::kCapacity)
                list.truncate(a.ef);
        };

        /* Words that enter the list wait until they are many: a merge costs the same for one as for 32. */
        auto enter = [&](Word word, bool untracked) {
            const bool enters = word < worst;
            const uint32_t all = __ballot_sync(kFullWarp, enters);
            if (!all)
                return;
            const uint32_t m = __ballot_sync(kFullWarp, enters && !untracked);
            if (enters && !untracked)
                pending[waiting + __popc(m & before)] = word;
            waiting += __popc(m);
            /* Ids that the visited set had no room for, one by one: their word may be there already. */
            for (uint32_t u = all & ~m; u; u &= u - 1) {
                const Word x = __shfl_sync(kFullWarp, word, __ffs(u) - 1);
                __syncwarp();
                bool there = static_cast<uint32_t>(lane) < waiting && pending[lane] == x;
                there |= lane + 32u < waiting && pending[lane + 32] == x;
#pragma unroll
                for (int r = 0; r < kRegisters; r++)
                    there |= (list.v[r] | 1) == (x | 1);
                if (__any_sync(kFullWarp, there))
                    continue;
                if (lane == 0)
                    pending[waiting] = x;
                waiting++;
            }
        };

        /* The last n <= 32 ids of the queue: their keys. */
        auto compute = [&](int n) {
            queued -= n;
            __syncwarp();
            uint32_t slot = lane < n ? queue[queued + lane] : 0;
            const bool untracked = slot >> 31;
            slot &= 0x7fffffff;
            const uint32_t order = order_of(Kernel::keys(a.rows, query, head, slot, n));
            const Word word = lane < n ? static_cast<Word>(order) << 32 | slot << 1 : kNoWord;
            enter(word, untracked);
            if (a.bits) {
                const Word hit = static_cast<Word>(order) << 32 | slot;
                bool good = lane < n && hit < valid[a.k - 1] && (__ldg(a.bits + slot / 32) >> (slot & 31) & 1);
                for (uint32_t g = __ballot_sync(kFullWarp, good); g; g &= g - 1)
                    warp_insert_shared(valid, a.k, __shfl_sync(kFullWarp, hit, __ffs(g) - 1));
            }
            __syncwarp();
        };

        /* Ids that are met for the first time go to the queue; their rows are on the way to L2. */
        auto visit = [&](const uint32_t(&id)[4]) {
            Put put[4];
            Visited::put_ids(table, id, a.nodes, narrow, put);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const uint32_t m = __ballot_sync(kFullWarp, put[i] != Put::Seen);
                if (put[i] != Put::Seen) {
                    queue[queued + __popc(m & before)] = id[i] | (put[i] == Put::Full ? 0x80000000u : 0);
                    Kernel::prefetch(a.rows, id[i]);
                }
                queued += __popc(m);
            }
        };

        uint32_t cells = 1, first = 0, round = 0;
        /* Links first + 4 * lane .. + 3 of all links of the chosen nodes. */
        auto read_links = [&](uint32_t(&id)[4]) {
            const uint32_t cell = first + 4 * lane;
            if (quads) {
                uint4 four = make_uint4(kNone, kNone, kNone, kNone);
                if (cell < cells) {
                    const uint32_t parent = cell / a.degree;
                    four = __ldg(reinterpret_cast<const uint4 *>(
                        a.links + static_cast<size_t>(parents[parent]) * a.degree + (cell - parent * a.degree)));
                }
                id[0] = four.x, id[1] = four.y, id[2] = four.z, id[3] = four.w;
            } else {
#pragma unroll
                for (uint32_t i = 0; i < 4; i++) {
                    const uint32_t parent = (cell + i) / a.degree;
                    id[i] = cell + i < cells ? __ldg(a.links + static_cast<size_t>(parents[parent]) * a.degree +
                                                     (cell + i - parent * a.degree))
                                             : kNone;
                }
            }
        };

        uint32_t id[4] = {__ldg(a.entries + static_cast<size_t>(q) * kEntries + lane), kNone, kNone, kNone};
        for (;;) {
            const bool reads = queued < 32 && first < cells;
            if (waiting >= 32 || (waiting > 0 && queued == 0 && !reads)) {
                settle();
                continue;
            }
            if (reads) {
                visit(id);
                first += kCells;
                if (first < cells)
                    read_links(id); /* they arrive while rows are worked on */
                continue;
            }
            if (queued > 0) {
                compute(static_cast<int>(min(queued, 32u)));
                continue;
            }
            uint32_t chosen = 0;
            const uint32_t width = round_width(a, round++);
#pragma unroll
            for (int r = 0; r < kRegisters; r++)
                if (chosen < width) {
                    const uint32_t open = __ballot_sync(kFullWarp, !(static_cast<uint32_t>(list.v[r]) & 1));
                    const uint32_t rank = chosen + __popc(open & before);
                    if ((open >> lane & 1) && rank < width) {
                        parents[rank] = static_cast<uint32_t>(list.v[r]) >> 1;
                        list.v[r] |= 1;
                    }
                    chosen = min(chosen + __popc(open), width);
                }
            if (chosen == 0)
                break;
            __syncwarp();
            cells = chosen * a.degree;
            first = 0;
            read_links(id);
        }

        Hit *hits = a.hits + static_cast<size_t>(q) * a.k;
        uint32_t found = 0;
        if (a.bits) {
            __syncwarp();
            for (uint32_t first = 0; first < a.k; first += 32) {
                const Word x = first + lane < a.k ? valid[first + lane] : kNoWord;
                if (x != kNoWord)
                    hits[first + lane] = {slot_of_word(x), key_of_word(x)};
                found += __popc(__ballot_sync(kFullWarp, x != kNoWord));
            }
        } else {
#pragma unroll
            for (int r = 0; r < kRegisters; r++) {
                const Word x = list.v[r];
                const uint32_t at = r * 32 + lane;
                const bool good = x != kNoWord && at < a.k;
                if (good)
                    hits[at] = {slot_of_word(x) >> 1, key_of_word(x)};
                found += __popc(__ballot_sync(kFullWarp, good));
            }
        }
        /* Fewer nodes met than the list holds: the graph is torn, the answer must come from elsewhere. */
        if (lane == 0)
            a.counts[q] = worst == kNoWord ? kOverflow : found;
        __syncwarp();
    }
}

inline GraphArguments graph_arguments(const Job &job, uint32_t *ticket)
{
    return {job.rows,    job.prepared,   job.links, job.entries, job.turns, job.bits,
            job.nodes,   job.degree,     job.count, job.k,       job.ef,    job.first_parents,
            job.parents, job.ramp_shift, ticket,    job.hits,    job.counts};
}

/* Up to this ef lists are short enough for 32 warps an SM; wider ones have half as many, with more loads in flight. */
constexpr uint32_t kNarrowEf = 128;

template <bool kWide>
struct WarpLauncher {
    const Machine &machine;
    const Job &job;
    uint32_t *ticket;
    cudaStream_t stream;

    template <class Kernel>
    void run()
    {
        if constexpr (kWide)
            job.ef <= 256 ? go<Kernel, 8>() : go<Kernel, 16>();
        else
            go<Kernel, 4>();
    }

    template <class Kernel, int kRegisters>
    void go()
    {
        const size_t bytes =
            graph_warp_words<Kernel, kRegisters>(job.rows.pieces, job.k, job.bits != nullptr) * sizeof(uint32_t);
        /* Few queries: one warp a block, so that each has an SM for itself. Long rows: what fits. */
        uint32_t warps = job.count <= static_cast<uint32_t>(machine.sms) * 2 ? 1 : 4;
        while (warps > 1 && warps * bytes > machine.shared_per_block)
            warps /= 2;
        const uint32_t resident = static_cast<uint32_t>(machine.sms) * 32 / warps;
        const uint32_t blocks = std::min((job.count + warps - 1) / warps, resident);
        allow_shared<graph_warp_kernel<Kernel, kRegisters>>(warps * bytes, machine.ordinal);
        const GraphArguments a = graph_arguments(job, ticket);
        graph_warp_kernel<Kernel, kRegisters><<<blocks, warps * 32, warps * bytes, stream>>>(a);
        check_launch("graph_warp");
    }
};

} // namespace vecgpu::cuda
