/*
 * graph_block.cuh: search of layer 0, a thread block or a cluster of blocks a query: the forms for few queries.
 *
 * The rule of the rounds is that of graph_warp.cuh, so are the rows that come out. A node belongs to one block of the
 * cluster, by a hash of its id: that block has it in its part of the visited set and computes its key. Words that may
 * enter the list are stored into a box in the shared memory of every block; after one cluster barrier every block goes
 * on for itself, all with the same data:
 *   1. New words and the best open nodes of the list so far are ranked, by all threads: by counting, or many words by
 *      bins; the first of them are the parents of the round. This does not wait for the list.
 *   2. The links of the parents are read. While they are on their way all threads merge the new words into the block's
 *      copy of the list: every word finds its place by a binary search.
 *   3. Ids that belong to the block and are new to it are collected, then their keys are computed by all warps in equal
 *      shares: what a hash leaves uneven between warps would cost a second memory latency.
 * Words that may be doubles (ids that the visited set had no room for) take a slower way, by one warp.
 * A search prepares its query and finds its entries itself, unless they are given. If the walk's keys are coarse (int8
 * rows, or an image of the rows), the first block computes the best of the list again from the rows.
 */
#pragma once

#include "block_list.cuh"
#include "block_round.cuh"
#include "cluster.cuh"
#include "entry.cuh"
#include "graph_warp.cuh"
#include "query.cuh"

#include <algorithm>

namespace vecgpu::cuda {

/* Many small blocks an SM have room for smaller visited sets only; wide lists meet more nodes. */
__host__ __device__ constexpr int block_bucket_bits(uint32_t threads, uint32_t capacity)
{
    return threads <= 128 ? 9 : capacity <= 256 ? 10 : 11;
}

constexpr uint32_t kMaxBlocks = 8;          /* of a cluster */
constexpr uint32_t kStaticShared = 7 << 10; /* bytes, beside the dynamic shared memory: a bound */

struct BlockArguments {
    GraphArguments graph; /* the walk; its k is how many hits are computed again if its keys are coarse */
    const float *raw;     /* count x dimensions; null: they came with the launch */
    PivotView pivots;
    Rows rows; /* what hits are computed again from, if the walk's keys are coarse */
    Storage storage;
    uint32_t k; /* hits wanted */
};

/* `job` is what is asked for, `walk` what is walked on. */
inline BlockArguments block_arguments(const Job &job, const Job &walk, Storage storage)
{
    BlockArguments arguments = {
        graph_arguments(walk, nullptr), job.inline_raw ? nullptr : job.raw, job.pivots, job.rows, storage, job.k};
    arguments.graph.hits = job.hits;
    arguments.graph.counts = job.counts;
    return arguments;
}

/*
 * 16-byte pieces of a query in shared memory: for int8 the bytes of components, for the walk and for the scan of the
 * pivots, and fine components for hits that are computed again; for other storages the latter, then bytes for the pivots.
 */
__host__ __device__ constexpr uint32_t block_query_pieces(Storage storage, uint32_t pieces)
{
    const uint32_t own = query_pieces(storage, pieces) - 1;
    return storage == Storage::Int8      ? own
           : storage == Storage::Float32 ? own + (pieces + 3) / 4 * kCoarseVectors
                                         : own + (pieces + 1) / 2 * kCoarseVectors;
}

__host__ __device__ constexpr uint32_t graph_block_words(Storage storage, uint32_t pieces, uint32_t k, bool bits,
                                                         uint32_t parents, uint32_t degree, uint32_t blocks,
                                                         uint32_t capacity, uint32_t threads)
{
    return (4u << block_bucket_bits(threads, capacity)) + block_query_pieces(storage, pieces) * 4 +
           2 * box_words(parents, degree, blocks) + 2 * 2 * capacity + round_cells(parents, degree) +
           (bits ? (2 * k + 3) / 4 * 4 : 0);
}

__device__ __forceinline__ uint32_t mix_id(uint32_t x)
{
    x ^= x >> 16;
    x *= 0x85EBCA6Bu;
    x ^= x >> 13;
    return x;
}

/*
 * Query number q, whose floats are at `raw`, by a whole cluster of `blocks` blocks (a power of two, at most kMaxBlocks)
 * of kBlockThreads threads; `dynamic` has graph_block_words(). Every thread of the cluster calls, again and again if it
 * likes.
 */
template <class Kernel, int kRegisters, int kBlockThreads>
__device__ void graph_block_search(const BlockArguments &arguments, uint32_t q, const float *raw, uint32_t blocks,
                                   uint32_t *dynamic)
{
    const GraphArguments &a = arguments.graph;
    constexpr uint32_t kCapacity = WarpList<kRegisters>::kCapacity, kWarps = kBlockThreads / 32;
    constexpr bool kByBins = kCapacity > 128 || kBlockThreads == 128; /* else a round has few words */
    using Visited = VisitedSet<block_bucket_bits(kBlockThreads, kCapacity)>;
    const uint32_t places = box_places(a.parents, a.degree, blocks), all = round_cells(a.parents, a.degree),
                   pieces = a.rows.pieces;
    uint32_t *table = dynamic;
    uint4 *query = reinterpret_cast<uint4 *>(table + Visited::kWords);
    Word *boxes = reinterpret_cast<Word *>(query + block_query_pieces(Kernel::storage, pieces));
    Word *members = boxes + box_words(a.parents, a.degree, blocks),
         *merged = members + kCapacity;                     /* the list; the next one */
    Word *sorted = members - all, *gathered = sorted - all; /* the latter for clusters */
    uint32_t *claimed = reinterpret_cast<uint32_t *>(merged + kCapacity);
    Word *valid = reinterpret_cast<Word *>(claimed + all);   /* only with bits */
    __shared__ __align__(16) Word open[kMaxParents];         /* the best of the list that are not expanded */
    __shared__ uint32_t open_places[kMaxParents];            /* where they are in it */
    __shared__ uint8_t expands[kCapacity];                   /* 1: this round expands this one of the list */
    __shared__ uint32_t parents[kMaxParents];                /* kNone behind the last one */
    __shared__ __align__(16) uint32_t filled[3][kMaxBlocks]; /* words in a box, by sender */
    __shared__ uint32_t untracked[3];                        /* a word of the box may be a double */
    __shared__ uint32_t found_entries[kEntries];
    __shared__ RoundRoom<kBlockThreads> room;
    static_assert(sizeof room.bins == kPivots * sizeof(int));
    int *const dots = reinterpret_cast<int *>(room.bins); /* with the pivots that this block looks at */
    __shared__ uint32_t open_count, claimed_count;
    __shared__ Word valid_worst;

    const uint32_t me = block_of_cluster(blocks), tid = threadIdx.x, warp = tid / 32;
    const int lane = tid & 31;
    const uint32_t before = (1u << lane) - 1;
    const bool narrow = Visited::narrow(a.nodes);
    Hit *hits = a.hits + static_cast<size_t>(q) * arguments.k;
    auto owns = [&](uint32_t id) { return (mix_id(id) & (blocks - 1)) == me; };

    for (uint32_t i = tid; i < Visited::kWords / 4; i += kBlockThreads)
        reinterpret_cast<uint4 *>(table)[i] = make_uint4(0, 0, 0, 0);
    for (uint32_t i = tid; i < kCapacity; i += kBlockThreads) {
        members[i] = merged[i] = kNoWord;
        expands[i] = 0;
    }
    if (a.bits)
        for (uint32_t i = tid; i < a.k; i += kBlockThreads)
            valid[i] = kNoWord;
    if (tid < kMaxParents)
        parents[tid] = kNone;
    if (tid < 3 * kMaxBlocks)
        filled[tid / kMaxBlocks][tid % kMaxBlocks] = 0;
    if (tid < 3)
        untracked[tid] = 0;
    if (tid == 0) {
        open_count = claimed_count = 0;
        valid_worst = kNoWord;
        room.clear_range(0);
    }
    cluster_arrive(blocks); /* others may write here from now on */
    const QueryHead head =
        query_head([&](uint32_t d) { return raw[d]; }, a.rows.dimensions, a.rows.metric == Metric::Cosine);
    uint4 *const fine = query + fine_offset(Kernel::storage, pieces), *bytes = query;
    if (Kernel::storage != Storage::Int8)
        bytes += query_pieces(Kernel::storage, pieces) - 1;
    coarse_components(raw, a.rows.dimensions, arguments.pivots.pieces, head.step, bytes, tid, kBlockThreads);
    if (Kernel::kCoarse)
        fine_components(arguments.storage, raw, a.rows.dimensions, arguments.rows.pieces, fine, tid, kBlockThreads);
    else
        fine_components(Kernel::storage, raw, a.rows.dimensions, pieces, fine, tid, kBlockThreads);
    room.clear();
    __syncthreads();

    /* Words to all blocks, into the box of the coming round. */
    auto send = [&](Word word, bool enters, uint32_t turn, uint32_t phase) {
        const uint32_t some = __ballot_sync(kFullWarp, enters);
        if (!some)
            return;
        uint32_t at = 0;
        if (lane == 0)
            at = atomicAdd(&filled[phase][me], __popc(some));
        at = __shfl_sync(kFullWarp, at, 0) + __popc(some & before);
        Word *place = boxes + (turn * blocks + me) * places + at;
        if (blocks == 1) {
            if (enters) {
                *place = word;
                if (word & 1)
                    untracked[phase] = 1;
            }
            return;
        }
        if (static_cast<uint32_t>(lane) < blocks && static_cast<uint32_t>(lane) != me)
            add_remote(&filled[phase][me], lane, __popc(some));
        if (enters)
            for (uint32_t b = 0; b < blocks; b++)
                store_remote(place, b, word);
    };

    /* Entries: every block finds those of its classes. */
    const uint32_t classes = kEntries / blocks;
    if (a.entries) {
        if (tid < classes)
            found_entries[tid] = __ldg(a.entries + static_cast<size_t>(q) * kEntries + me * classes + tid);
    } else {
        /* Threads for parts of a pivot, as far as there are threads. */
        const PivotView &pivots = arguments.pivots;
        const uint32_t per = kPivots / blocks, parts = per < kBlockThreads ? kBlockThreads / per : 1;
        for (uint32_t i = tid; i < per * parts; i += kBlockThreads) {
            int dot = 0;
#pragma unroll 4
            for (uint32_t piece = i / per; piece < pivots.pieces; piece += parts)
                dot = pivot_add(dot, __ldg(pivots.columns + static_cast<size_t>(piece) * kPivots + me * per + i % per),
                                bytes[piece]);
            atomicAdd(&dots[i % per], dot);
        }
        __syncthreads();
        for (uint32_t i = tid; i < per; i += kBlockThreads) {
            uint32_t least;
            const uint32_t slot = class_entry(pivots, me * per + i, dots[i], head.step, least);
            if (lane == 0)
                found_entries[i / kClassPivots] = slot;
        }
    }
    __syncthreads();
    room.clear();
    cluster_wait(blocks);
    if (warp == 0) {
        uint32_t slot = lane < classes ? found_entries[lane] : kNone;
        const bool real = slot < a.nodes;
        const uint32_t m = __ballot_sync(kFullWarp, real);
        const int n = __popc(m);
        __syncwarp();
        if (real)
            found_entries[__popc(m & before)] = slot;
        __syncwarp();
        slot = found_entries[min(lane, max(n - 1, 0))];
        if (n > 0) {
            const uint32_t order = order_of(Kernel::template keys<true>(a.rows, query, head, slot, n));
            send(static_cast<Word>(order) << 32 | slot << 1, lane < n, 0, 0);
        }
    }

    /* One warp: the best of the list that are open, for the next round. */
    auto publish_open = [&](uint32_t most) {
        uint32_t n = 0;
        for (uint32_t first = 0; first < kCapacity && n < most; first += 32) {
            const Word x = members[first + lane];
            const bool is_open = !(static_cast<uint32_t>(x) & 1);
            const uint32_t m = __ballot_sync(kFullWarp, is_open), rank = n + __popc(m & before);
            if (is_open && rank < most) {
                open[rank] = x;
                open_places[rank] = first + lane;
            }
            n += __popc(m);
        }
        if (lane == 0)
            open_count = min(n, most);
    };

    /* All threads: the list, and `count` words in sorted, to the next list. Its tail is empty: lists do not shrink. */
    auto merge = [&](uint32_t count) {
        for (uint32_t i = tid; i < a.ef + count; i += kBlockThreads) {
            const bool is_new = i >= a.ef;
            const uint32_t at = is_new ? i - a.ef : i;
            Word x = (is_new ? sorted : members)[at];
            if (x == kNoWord)
                continue;
            if (!is_new) {
                x |= expands[at];
                expands[at] = 0;
            }
            const uint32_t place = at + words_before(is_new ? members : sorted, is_new ? a.ef : count, x);
            if (place < a.ef)
                merged[place] = x;
        }
        Word *const last = members;
        members = merged;
        merged = last;
    };

    /* One warp: those that may be returned into their list. */
    auto merge_valid = [&](const Word *words, uint32_t count) {
        for (uint32_t first = 0; first < count; first += 32) {
            const Word word = first + lane < count ? words[first + lane] : kNoWord;
            const uint32_t slot = static_cast<uint32_t>(word) >> 1;
            const Word hit = (word >> 32) << 32 | slot;
            const bool good = word != kNoWord && hit < valid[a.k - 1] && (__ldg(a.bits + slot / 32) >> (slot & 31) & 1);
            for (uint32_t g = __ballot_sync(kFullWarp, good); g; g &= g - 1)
                warp_insert_shared(valid, a.k, __shfl_sync(kFullWarp, hit, __ffs(g) - 1));
        }
        if (lane == 0)
            valid_worst = valid[a.k - 1];
    };

    /* The first cell of a round that this thread looks at. */
    const int log_blocks = __ffs(static_cast<int>(blocks)) - 1;
    const uint32_t sender = warp & (blocks - 1); /* whose words this warp gathers */
    const uint32_t half_degree = a.degree / 2;
    constexpr uint32_t kPairs = kCapacity <= 256 ? 1 : 2; /* pairs of links that a thread reads ahead */
    uint32_t link_parent[kPairs], link_cell[kPairs];
#pragma unroll
    for (uint32_t i = 0; i < kPairs; i++) {
        link_parent[i] = (tid + i * kBlockThreads) / half_degree;
        link_cell[i] = (tid + i * kBlockThreads) % half_degree;
    }
    bool lost = false; /* a box was too small */
    uint32_t turn = 0, phase = 0;
    for (uint32_t round = 0;; round++) {
        cluster_arrive(blocks);
        cluster_wait(blocks);
        const uint32_t width = round_width(a, round);
        const Word *box = boxes + turn * blocks * places, *words = box;
        uint32_t count = filled[phase][0];
        if (blocks > 1) {
            uint32_t offset = 0, part[kMaxBlocks];
            *reinterpret_cast<uint4 *>(part) = *reinterpret_cast<const uint4 *>(filled[phase]);
            *reinterpret_cast<uint4 *>(part + 4) = *reinterpret_cast<const uint4 *>(filled[phase] + 4);
            count = 0;
            uint32_t held = 0;
#pragma unroll
            for (uint32_t b = 0; b < kMaxBlocks; b++) {
                offset = b == sender ? count : offset;
                held = b == sender ? part[b] : held;
                count += part[b];
            }
            if (count >= kTooMany)
                held = 0;
            uint32_t least = kNanOrder, most = 0;
            for (uint32_t i = (warp >> log_blocks) * 32 + lane; i < held; i += kBlockThreads >> log_blocks) {
                const Word word = box[sender * places + i];
                gathered[offset + i] = word;
                least = min(least, static_cast<uint32_t>(word >> 32));
                most = max(most, static_cast<uint32_t>(word >> 32));
                if (word & 1)
                    untracked[phase] = 1;
            }
            words = gathered;
            if (kByBins && count > kFewWords)
                room.add_range(least, most, round & 1);
        }
        if (tid == 0)
            claimed_count = 0;
        if (tid < kMaxBlocks)
            filled[(phase + 2) % 3][tid] = 0; /* for the box after the coming one */
        if (tid == kMaxBlocks)
            untracked[(phase + 2) % 3] = 0;
        if (kByBins && tid == kMaxBlocks + 1)
            room.clear_range(~round & 1);
        if (blocks > 1)
            __syncthreads();
        lost = blocks > 1 && count >= kTooMany;
        if (lost)
            break;
        const bool doubles = untracked[phase];
        const bool many = kByBins && !doubles && count > kFewWords;
        bool in_order = false;
        const RoundWords fresh = {words,   count, sorted, open,    open_places, open_count,
                                  members, a.ef,  width,  parents, expands};
        if (many) {
            if (blocks == 1) {
                uint32_t least = kNanOrder, most = 0;
                for (uint32_t i = tid; i < count; i += kBlockThreads) {
                    least = min(least, static_cast<uint32_t>(words[i] >> 32));
                    most = max(most, static_cast<uint32_t>(words[i] >> 32));
                }
                room.add_range(least, most, round & 1);
                __syncthreads();
            }
            in_order = fresh.sort(room, round & 1);
            if (in_order)
                fresh.choose();
        }
        if (!doubles && !in_order) {
            fresh.rank<kBlockThreads>();
        } else if (doubles && warp == 0) {
            merge_doubles<kRegisters>(members, a.ef, words, count, width, parents);
        }
        if (round == 0) /* the entries were met by whoever found them */
            for (uint32_t i = tid; i < count; i += kBlockThreads) {
                const uint32_t id = static_cast<uint32_t>(words[i]) >> 1;
                if (owns(id))
                    Visited::put(table, id, narrow);
            }
        __syncthreads();

        if (a.bits && warp == 1)
            merge_valid(words, count);
        if (parents[0] == kNone)
            break;
        /* Links two a thread. */
        const uint32_t cells = width * half_degree;
        auto links_of = [&](uint32_t parent, uint32_t cell) {
            const uint32_t node = parents[parent];
            return node == kNone
                       ? make_uint2(kNone, kNone)
                       : __ldg(reinterpret_cast<const uint2 *>(a.links + static_cast<size_t>(node) * a.degree) + cell);
        };
        uint2 id[kPairs];
#pragma unroll
        for (uint32_t i = 0; i < kPairs; i++)
            id[i] = tid + i * kBlockThreads < cells ? links_of(link_parent[i], link_cell[i]) : make_uint2(kNone, kNone);
        if (!doubles)
            merge(count);
        for (uint32_t c = tid; (c & ~31u) < cells;) {
            uint32_t mine[2 * kPairs];
#pragma unroll
            for (uint32_t i = 0; i < kPairs; i++) {
                mine[2 * i] = owns(id[i].x) ? id[i].x : kNone;
                mine[2 * i + 1] = owns(id[i].y) ? id[i].y : kNone;
            }
            Put put[2 * kPairs];
            Visited::put_ids(table, mine, a.nodes, narrow, put);
            __syncwarp();
            uint32_t met[2 * kPairs], total = 0;
#pragma unroll
            for (uint32_t i = 0; i < 2 * kPairs; i++) {
                met[i] = __ballot_sync(kFullWarp, put[i] != Put::Seen);
                total += __popc(met[i]);
            }
            if (total) {
                uint32_t at = 0;
                if (lane == 0)
                    at = atomicAdd(&claimed_count, total);
                at = __shfl_sync(kFullWarp, at, 0);
#pragma unroll
                for (uint32_t i = 0; i < 2 * kPairs; i++) {
                    if (put[i] != Put::Seen) {
                        Kernel::prefetch(a.rows, mine[i]);
                        claimed[at + __popc(met[i] & before)] = mine[i] | (put[i] == Put::Full ? 0x80000000u : 0);
                    }
                    at += __popc(met[i]);
                }
            }
            c += kPairs * kBlockThreads;
#pragma unroll
            for (uint32_t i = 0; i < kPairs; i++) {
                const uint32_t next = c + i * kBlockThreads;
                id[i] = next < cells ? links_of(next / half_degree, next % half_degree) : make_uint2(kNone, kNone);
            }
        }
        __syncthreads();

        turn ^= blocks > 1;
        phase = (phase + 1) % 3;
        const Word bound = members[a.ef - 1], valid_bound = a.bits ? valid_worst : 0;
        uint32_t rows = claimed_count;
        if (rows > places) { /* all blocks get to know it, so all give up */
            if (tid < blocks)
                add_remote(&filled[phase][me], tid, kTooMany);
            rows = 0;
        }
        if (tid < kMaxParents)
            parents[tid] = kNone;
        if (many)
            room.clear();
        if (warp == kWarps - 1) /* which has the fewest rows to look at */
            publish_open(round_width(a, round + 1));
        const uint32_t share = warp_share(rows, kWarps);
        for (uint32_t first = warp * share; first < rows; first += kWarps * share) {
            const uint32_t n = min(share, rows - first);
            uint32_t slot = claimed[first + min(static_cast<uint32_t>(lane), n - 1)];
            const uint32_t suspect = slot >> 31;
            slot &= 0x7fffffff;
            const float key = Kernel::template keys<true>(a.rows, query, head, slot, static_cast<int>(n));
            const uint32_t order = order_of(key);
            const Word word = static_cast<Word>(order) << 32 | slot << 1;
            bool enters = word < bound;
            if (a.bits)
                enters |= (static_cast<Word>(order) << 32 | slot) < valid_bound;
            /* The lowest bit, free until the node is expanded, says that its double may be in the list. */
            send(word | suspect, enters && lane < static_cast<int>(n), turn, phase);
        }
    }

    __syncthreads();

    /* All blocks have the answer; the first one hands it out. */
    if (me == 0) {
        if (warp == 0) {
            const bool full = !lost && members[a.ef - 1] != kNoWord;
            uint32_t found = 0;
            __syncwarp(); /* coarse hits are written over the list */
            for (uint32_t first = 0; first < a.k; first += 32) {
                const uint32_t at = first + lane;
                Word x = at >= a.k ? kNoWord : a.bits ? valid[at] : members[at];
                if (!a.bits && x != kNoWord)
                    x = (x >> 32) << 32 | static_cast<uint32_t>(x) >> 1;
                if (Kernel::kCoarse && at < a.k)
                    members[at] = x;
                else if (x != kNoWord)
                    hits[at] = {slot_of_word(x), key_of_word(x)};
                found += __popc(__ballot_sync(kFullWarp, x != kNoWord));
            }
            /* Fewer nodes met than the list holds: the graph is torn, the answer must come from elsewhere. */
            if (lane == 0) {
                a.counts[q] = full ? min(found, arguments.k) : kOverflow;
                claimed_count = found;
            }
        }
        if (Kernel::kCoarse) {
            __syncthreads();
            const uint32_t found = claimed_count;
            for (uint32_t first = warp * kTeams; first < found; first += kWarps * kTeams) {
                const uint32_t n = min(kTeams, found - first);
                const uint32_t slot = slot_of_word(members[first + min(static_cast<uint32_t>(lane), n - 1)]);
                const float key =
                    FineKeys<Kernel>::get(arguments.storage, arguments.rows, fine, head, slot, static_cast<int>(n));
                __syncwarp(); /* lanes behind the last one have read its place too */
                if (lane < static_cast<int>(n))
                    members[first + lane] = word_of(key, slot);
            }
            __syncthreads();
            for (uint32_t i = tid; i < found; i += kBlockThreads) {
                const Word mine = members[i];
                uint32_t rank = 0;
                for (uint32_t j = 0; j < found; j++)
                    rank += members[j] < mine;
                if (rank < arguments.k)
                    hits[rank] = {slot_of_word(mine), key_of_word(mine)};
            }
        }
    }
    __syncthreads();
}

template <class Kernel, int kRegisters, int kBlockThreads>
__global__ void __launch_bounds__(kBlockThreads, kBlockThreads == 128 ? 6 : 512 / kBlockThreads)
    graph_block_kernel(const __grid_constant__ BlockArguments a, const __grid_constant__ InlineQueries inline_queries,
                       uint32_t blocks)
{
    extern __shared__ __align__(16) uint32_t dynamic[];
    const float *raw = a.raw ? a.raw : inline_queries.values;
    for (uint32_t i = blockIdx.x / blocks; i < a.graph.count; i += gridDim.x / blocks) {
        const uint32_t q = a.graph.turns ? __ldg(a.graph.turns + i) : i;
        graph_block_search<Kernel, kRegisters, kBlockThreads>(
            a, q, raw + static_cast<size_t>(q) * a.graph.rows.dimensions, blocks, dynamic);
    }
}

/* kLarge: blocks of more than 128 threads. */
template <bool kLarge>
struct BlockLauncher {
    const Machine &machine;
    const Job &job, &walk;
    Storage storage; /* of job.rows */
    BlockShape shape;
    cudaStream_t stream;
    bool *fits;

    template <class Kernel>
    void run()
    {
        if constexpr (!kLarge)
            go<Kernel, 4, 128>();
        else if (job.ef > 256)
            shape.threads == 512 ? go<Kernel, 16, 512>() : go<Kernel, 16, 256>();
        else if (shape.threads == 512)
            job.ef <= 128 ? go<Kernel, 4, 512>() : go<Kernel, 8, 512>();
        else
            job.ef <= 128 ? go<Kernel, 4, 256>() : go<Kernel, 8, 256>();
    }

    template <class Kernel, int kRegisters, int kThreads>
    void go()
    {
        const size_t bytes =
            graph_block_words(Kernel::storage, walk.rows.pieces, walk.k, job.bits != nullptr, job.parents, job.degree,
                              shape.blocks, WarpList<kRegisters>::kCapacity, kThreads) *
            sizeof(uint32_t);
        constexpr auto kernel = graph_block_kernel<Kernel, kRegisters, kThreads>;
        *fits = bytes + kStaticShared <= machine.shared_per_block;
        if (!*fits)
            return;
        allow_shared<kernel>(bytes, machine.ordinal);
        InlineQueries queries;
        if (job.inline_raw)
            std::copy_n(job.inline_raw, static_cast<size_t>(job.count) * job.rows.dimensions, queries.values);
        launch_clusters(kernel, job.count, shape.blocks, kThreads, bytes, stream, "graph_block",
                        block_arguments(job, walk, storage), queries, shape.blocks);
    }
};

} // namespace vecgpu::cuda
