/*
 * graph_warp.cuh: search of layer 0, one warp a query: the form for many queries.
 *
 * Best-first search with a list of ef nodes in registers. A round expands the best nodes of the list that are not
 * expanded yet, as many as round_width() says; all forms of the graph search share that rule, so they return the same
 * rows: a list after a round is the ef best of all keys computed so far, whatever the order within the round. Warps
 * take queries from a ticket, each at its own pace.
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

constexpr int kGraphBucketBits = 8;
constexpr uint32_t kMaxParents = 32;

struct GraphArguments {
    Rows rows;
    const uint4 *prepared;
    const uint32_t *links;
    const uint32_t *entries;
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

/* Words of shared memory that a warp needs, a multiple of 4. */
template <class Kernel>
__host__ __device__ constexpr uint32_t graph_warp_words(uint32_t pieces, uint32_t k, bool bits)
{
    uint32_t words = VisitedSet<kGraphBucketBits>::kWords + Kernel::kVectors * pieces * 4 + 32 + kMaxParents;
    return words + (bits ? (2 * k + 3) / 4 * 4 : 0);
}

/* A list word is (order, slot << 1 | expanded): slots are below 2^31. */
template <class Kernel, int kRegisters>
__global__ void __launch_bounds__(128, kRegisters <= 4 ? 9 : 4) graph_warp_kernel(const GraphArguments a)
{
    extern __shared__ __align__(16) uint32_t dynamic[];
    using Visited = VisitedSet<kGraphBucketBits>;
    const int lane = threadIdx.x & 31;
    const uint32_t before = (1u << lane) - 1;
    uint32_t *table = dynamic + (threadIdx.x / 32) * graph_warp_words<Kernel>(a.rows.pieces, a.k, a.bits != nullptr);
    uint4 *query = reinterpret_cast<uint4 *>(table + Visited::kWords);
    uint32_t *ids = reinterpret_cast<uint32_t *>(query + Kernel::kVectors * a.rows.pieces);
    uint32_t *parents = ids + 32;
    Word *valid = reinterpret_cast<Word *>(parents + kMaxParents); /* only with bits */
    const bool narrow = Visited::narrow(a.nodes);

    for (;;) {
        uint32_t q = 0;
        if (lane == 0)
            q = atomicAdd(a.ticket, 1u);
        q = __shfl_sync(kFullWarp, q, 0);
        if (q >= a.count)
            return;
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

        auto enter = [&](Word word, bool untracked) {
            bool enters = word < worst;
            /* Ids that the visited set had no room for may be in the list already. */
            for (uint32_t m = __ballot_sync(kFullWarp, enters && untracked); m; m &= m - 1) {
                const int s = __ffs(m) - 1;
                const Word x = __shfl_sync(kFullWarp, word, s);
                bool there = false;
#pragma unroll
                for (int r = 0; r < kRegisters; r++)
                    there |= (list.v[r] | 1) == (x | 1);
                if (__any_sync(kFullWarp, there) && lane == s)
                    enters = false;
            }
            uint32_t m = __ballot_sync(kFullWarp, enters);
            if (!m)
                return;
            if (__popc(m) <= 4) {
                do {
                    list.insert(__shfl_sync(kFullWarp, word, __ffs(m) - 1));
                    m &= m - 1;
                } while (m);
            } else {
                list.merge(enters ? word : kNoWord);
            }
            worst = list.element(a.ef - 1);
            if (a.ef < WarpList<kRegisters>::kCapacity)
                list.truncate(a.ef);
        };

        auto visit = [&](uint32_t id, bool exists) {
            const Put put = exists ? Visited::put(table, id, narrow) : Put::Seen;
            const uint32_t m = __ballot_sync(kFullWarp, put != Put::Seen);
            const int n = __popc(m);
            if (n == 0)
                return;
            if (put != Put::Seen)
                ids[__popc(m & before)] = id | (put == Put::Full ? 0x80000000u : 0);
            __syncwarp();
            uint32_t slot = lane < n ? ids[lane] : 0;
            __syncwarp();
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
        };

        /* Ids come in groups of up to 32: the entries, then the links of one parent after the other. */
        uint32_t group = __ldg(a.entries + static_cast<size_t>(q) * kEntries + lane), next = kNone;
        uint32_t chosen = 0, parent = 0, cell = 0, round = 0;
        auto links_of = [&](uint32_t i, uint32_t first) {
            return first + lane < a.degree ? __ldg(a.links + static_cast<size_t>(parents[i]) * a.degree + first + lane)
                                           : kNone;
        };
        for (;;) {
            visit(group, group < a.nodes);
            if (parent < chosen && cell + 32 < a.degree) {
                cell += 32;
                group = links_of(parent, cell);
                continue;
            }
            cell = 0;
            if (++parent < chosen) {
                group = next;
                if (parent + 1 < chosen)
                    next = links_of(parent + 1, 0); /* arrives while this parent's links are worked on */
                continue;
            }
            __syncwarp();
            chosen = 0;
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
            parent = 0;
            group = links_of(0, 0);
            next = chosen > 1 ? links_of(1, 0) : kNone;
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
    return {job.rows, job.prepared, job.links,         job.entries, job.bits,       job.nodes, job.degree, job.count,
            job.k,    job.ef,       job.first_parents, job.parents, job.ramp_shift, ticket,    job.hits,   job.counts};
}

struct WarpLauncher {
    const Machine &machine;
    const Job &job;
    uint32_t *ticket;
    cudaStream_t stream;

    template <class Kernel>
    void run()
    {
        if (job.ef <= 128)
            go<Kernel, 4>();
        else if (job.ef <= 256)
            go<Kernel, 8>();
        else
            go<Kernel, 16>();
    }

    template <class Kernel, int kRegisters>
    void go()
    {
        const size_t bytes = graph_warp_words<Kernel>(job.rows.pieces, job.k, job.bits != nullptr) * sizeof(uint32_t);
        /* Few queries: one warp a block, so that each has an SM for itself. Long rows: what fits. */
        uint32_t warps = job.count <= static_cast<uint32_t>(machine.sms) * 2 ? 1 : 4;
        while (warps > 1 && warps * bytes > machine.shared_per_block)
            warps /= 2;
        const uint32_t resident = static_cast<uint32_t>(machine.sms) * 36 / warps;
        const uint32_t blocks = std::min((job.count + warps - 1) / warps, resident);
        allow_shared<graph_warp_kernel<Kernel, kRegisters>>(warps * bytes, machine.ordinal);
        const GraphArguments a = graph_arguments(job, ticket);
        graph_warp_kernel<Kernel, kRegisters><<<blocks, warps * 32, warps * bytes, stream>>>(a);
        check_launch("graph_warp");
    }
};

} // namespace vecgpu::cuda
