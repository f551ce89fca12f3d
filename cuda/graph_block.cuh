/*
 * graph_block.cuh: search of layer 0, a thread block or a cluster of blocks a query: the forms for few queries.
 *
 * The rule of the rounds is that of graph_warp.cuh, so are the rows that come out. A node belongs to one block of the
 * cluster, by a hash of its id: that block has it in its part of the visited set and computes its key. Words that may
 * enter the list are stored into a box in the shared memory of every block; after one cluster barrier every block for
 * itself sorts them (by counting, all threads) and merges them into its copy of the list, which is in the registers of
 * its first warp; that warp picks the next parents. Boxes are filled from the front by each block and hold kNoWord
 * elsewhere, so no counts travel; there are two in turn, which makes one barrier a round enough.
 */
#pragma once

#include "graph_warp.cuh"

namespace vecgpu::cuda {

/* Many small blocks an SM have room for smaller visited sets only. */
__host__ __device__ constexpr int block_bucket_bits(uint32_t threads)
{
    return threads <= 128 ? 9 : 10;
}

/* Places of one block in a box: all links of a round may belong to it. */
__host__ __device__ constexpr uint32_t box_places(uint32_t parents, uint32_t degree)
{
    return parents * degree > kEntries ? parents * degree : kEntries;
}

template <class Kernel>
__host__ __device__ constexpr uint32_t graph_block_words(uint32_t pieces, uint32_t k, bool bits, uint32_t parents,
                                                         uint32_t degree, uint32_t blocks, uint32_t threads)
{
    return (4u << block_bucket_bits(threads)) + Kernel::kVectors * pieces * 4 +
           2 * 2 * blocks * box_places(parents, degree) + 2 * 2 * box_places(parents, degree) + threads + kMaxParents +
           (bits ? (2 * k + 3) / 4 * 4 : 0);
}

__device__ __forceinline__ uint32_t mix_id(uint32_t x)
{
    x ^= x >> 16;
    x *= 0x85EBCA6Bu;
    x ^= x >> 13;
    return x;
}

/* The shared memory of one's own block, seen from another block of the cluster. */
__device__ __forceinline__ void store_remote(Word *own, uint32_t block, Word word)
{
#if __CUDA_ARCH__ >= 900
    uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(own)), remote;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(block));
    asm volatile("st.shared::cluster.u64 [%0], %1;" ::"r"(remote), "l"(word) : "memory");
#endif
}

__device__ __forceinline__ void cluster_barrier(uint32_t blocks)
{
#if __CUDA_ARCH__ >= 900
    if (blocks > 1) {
        asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
        return;
    }
#endif
    __syncthreads();
}

template <class Kernel, int kRegisters, int kBlockThreads>
__global__ void __launch_bounds__(kBlockThreads, kBlockThreads == 128 ? 8 : 512 / kBlockThreads)
    graph_block_kernel(const GraphArguments a, uint32_t blocks)
{
    extern __shared__ __align__(16) uint32_t dynamic[];
    using Visited = VisitedSet<block_bucket_bits(kBlockThreads)>;
    constexpr uint32_t kWarps = kBlockThreads / 32;
    const uint32_t places = box_places(a.parents, a.degree);
    uint32_t *table = dynamic;
    uint4 *query = reinterpret_cast<uint4 *>(table + Visited::kWords);
    Word *boxes = reinterpret_cast<Word *>(query + Kernel::kVectors * a.rows.pieces); /* [2][places][blocks] */
    Word *fresh = boxes + 2 * places * blocks;                                        /* what a box held */
    Word *sorted = fresh + places;
    uint32_t *all_ids = reinterpret_cast<uint32_t *>(sorted + places);
    uint32_t *parents = all_ids + kBlockThreads;
    Word *valid = reinterpret_cast<Word *>(parents + kMaxParents); /* only with bits */
    __shared__ uint32_t filled[2], chosen_shared, fresh_count, untracked_some;
    __shared__ Word worst_shared, valid_shared;

    uint32_t me = 0;
#if __CUDA_ARCH__ >= 900
    if (blocks > 1)
        asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(me));
#endif
    const int lane = threadIdx.x & 31;
    const uint32_t warp = threadIdx.x / 32, before = (1u << lane) - 1;
    uint32_t *ids = all_ids + warp * 32;
    const bool narrow = Visited::narrow(a.nodes);

    for (uint32_t q = blockIdx.x / blocks; q < a.count; q += gridDim.x / blocks) {
        const uint4 *prepared = a.prepared + static_cast<size_t>(q) * query_pieces(Kernel::storage, a.rows.pieces);
        QueryHead head;
        {
            uint4 first = __ldg(prepared);
            memcpy(&head, &first, sizeof head);
        }
        for (uint32_t i = threadIdx.x; i < Kernel::kVectors * a.rows.pieces; i += kBlockThreads)
            query[i] = __ldg(prepared + Kernel::query_offset(a.rows.pieces) + i);
        for (uint32_t i = threadIdx.x; i < Visited::kWords / 4; i += kBlockThreads)
            reinterpret_cast<uint4 *>(table)[i] = make_uint4(0, 0, 0, 0);
        for (uint32_t i = threadIdx.x; i < 2 * places * blocks; i += kBlockThreads)
            boxes[i] = kNoWord;
        if (a.bits)
            for (uint32_t i = threadIdx.x; i < a.k; i += kBlockThreads)
                valid[i] = kNoWord;
        if (threadIdx.x < 2)
            filled[threadIdx.x] = 0;
        if (threadIdx.x == 0)
            fresh_count = untracked_some = 0;
        cluster_barrier(blocks);

        WarpList<kRegisters> list; /* of the first warp */
        list.clear();
        Word worst = kNoWord, valid_worst = kNoWord;
        uint32_t chosen = 0, turn = 0, round = 0;

        /* Ids of a group that this warp is to look at: those of its block, divided further among `shares` warps. */
        auto visit = [&](uint32_t id, uint32_t share, uint32_t shares) {
            const uint32_t hash = mix_id(id);
            const bool mine = id < a.nodes && (hash & (blocks - 1)) == me && (hash >> 8 & (shares - 1)) == share;
            const Put put = mine ? Visited::put(table, id, narrow) : Put::Seen;
            __syncwarp();
            const uint32_t m = __ballot_sync(kFullWarp, put != Put::Seen);
            const int n = __popc(m);
            if (n == 0)
                return;
            if (put != Put::Seen)
                ids[__popc(m & before)] = id | (put == Put::Full ? 0x80000000u : 0);
            __syncwarp();
            uint32_t slot = lane < n ? ids[lane] : 0;
            __syncwarp();
            const uint32_t untracked = slot >> 31;
            slot &= 0x7fffffff;
            const uint32_t order = order_of(Kernel::keys(a.rows, query, head, slot, n));
            const Word word = static_cast<Word>(order) << 32 | slot << 1;
            bool enters = lane < n && word < worst;
            if (a.bits)
                enters |= lane < n && (static_cast<Word>(order) << 32 | slot) < valid_worst;
            const uint32_t some = __ballot_sync(kFullWarp, enters);
            if (!some)
                return;
            uint32_t at = 0;
            if (lane == 0)
                at = atomicAdd(filled + turn, __popc(some));
            at = __shfl_sync(kFullWarp, at, 0) + __popc(some & before);
            if (enters) {
                Word *place = boxes + (turn * places + at) * blocks + me;
                /* The lowest bit, free until the node is expanded, says that its double may be in the list. */
                if (blocks == 1)
                    *place = word | untracked;
                else
                    for (uint32_t b = 0; b < blocks; b++)
                        store_remote(place, b, word | untracked);
            }
        };

        auto enter = [&](Word word) {
            const bool enters = word < worst;
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

        /* All threads: what the box of this turn holds, sorted; the box is emptied. Returns how many words. */
        auto gather = [&] {
            Word *box = boxes + turn * places * blocks;
            for (uint32_t first = 0; first < places * blocks; first += kBlockThreads) {
                const Word word = first + threadIdx.x < places * blocks ? box[first + threadIdx.x] : kNoWord;
                const bool real = word != kNoWord;
                if (real)
                    box[first + threadIdx.x] = kNoWord;
                const uint32_t some = __ballot_sync(kFullWarp, real);
                if (some) {
                    uint32_t at = 0;
                    if (lane == 0)
                        at = atomicAdd(&fresh_count, __popc(some));
                    at = __shfl_sync(kFullWarp, at, 0) + __popc(some & before);
                    if (real) {
                        fresh[at] = word;
                        if (word & 1)
                            untracked_some = 1;
                    }
                }
                /* A block that has filled more has filled the last places of this stretch. */
                if (!__syncthreads_or(real && warp == kWarps - 1))
                    break;
            }
            const uint32_t count = fresh_count;
            for (uint32_t i = threadIdx.x; i < count; i += kBlockThreads) {
                const Word mine = fresh[i];
                uint32_t rank = 0;
#pragma unroll 4
                for (uint32_t j = 0; j < count; j++) {
                    const Word other = fresh[j];
                    rank += other < mine || (other == mine && j < i); /* two of the untracked may be equal */
                }
                sorted[rank] = mine;
            }
            __syncthreads();
            return count;
        };

        /* The first warp: sorted words into the list. */
        auto merge = [&](uint32_t count) {
            if (count == 0)
                return;
            if (!untracked_some) {
                list.merge_sorted(sorted, static_cast<int>(count));
                worst = list.element(a.ef - 1);
                if (a.ef < WarpList<kRegisters>::kCapacity)
                    list.truncate(a.ef);
                return;
            }
            for (uint32_t first = 0; first < count; first += 32) {
                const Word word = first + lane < count ? sorted[first + lane] : kNoWord;
                const bool untracked = word != kNoWord && (word & 1);
                enter(untracked ? kNoWord : word);
                /* One by one: they may be in the list, or twice among these. */
                for (uint32_t m = __ballot_sync(kFullWarp, untracked); m; m &= m - 1) {
                    const Word x = __shfl_sync(kFullWarp, word, __ffs(m) - 1) & ~1ull;
                    bool there = false;
#pragma unroll
                    for (int r = 0; r < kRegisters; r++)
                        there |= (list.v[r] | 1) == (x | 1);
                    if (!__any_sync(kFullWarp, there))
                        enter(lane == 0 ? x : kNoWord);
                }
            }
        };

        /* Another warp meanwhile: those that may be returned into their list. */
        auto merge_valid = [&](uint32_t count) {
            for (uint32_t first = 0; first < count; first += 32) {
                const Word word = first + lane < count ? sorted[first + lane] : kNoWord;
                const uint32_t slot = static_cast<uint32_t>(word) >> 1;
                const Word hit = (word >> 32) << 32 | slot;
                const bool good =
                    word != kNoWord && hit < valid[a.k - 1] && (__ldg(a.bits + slot / 32) >> (slot & 31) & 1);
                for (uint32_t g = __ballot_sync(kFullWarp, good); g; g &= g - 1)
                    warp_insert_shared(valid, a.k, __shfl_sync(kFullWarp, hit, __ffs(g) - 1));
            }
            if (lane == 0)
                valid_shared = valid[a.k - 1];
        };

        auto choose = [&] {
            const uint32_t width = round_width(a, round);
            uint32_t n = 0;
#pragma unroll
            for (int r = 0; r < kRegisters; r++)
                if (n < width) {
                    const uint32_t open = __ballot_sync(kFullWarp, !(static_cast<uint32_t>(list.v[r]) & 1));
                    const uint32_t rank = n + __popc(open & before);
                    if ((open >> lane & 1) && rank < width) {
                        parents[rank] = static_cast<uint32_t>(list.v[r]) >> 1;
                        list.v[r] |= 1;
                    }
                    n = min(n + __popc(open), width);
                }
            __syncwarp(); /* all lanes have read what is written now */
            if (lane == 0) {
                chosen_shared = n;
                worst_shared = worst;
                filled[turn] = 0;
                fresh_count = untracked_some = 0;
            }
        };

        if (warp == 0)
            visit(__ldg(a.entries + static_cast<size_t>(q) * kEntries + lane), 0, 1);
        for (;;) {
            cluster_barrier(blocks);
            const uint32_t count = gather();
            if (warp == 0) {
                merge(count);
                choose();
            } else if (warp == 1 && a.bits) {
                merge_valid(count);
            }
            round++;
            __syncthreads();
            chosen = chosen_shared;
            if (chosen == 0)
                break;
            worst = worst_shared;
            if (a.bits)
                valid_worst = valid_shared;
            turn ^= 1;
            const uint32_t per_parent = (a.degree + 31) / 32, groups = chosen * per_parent;
            uint32_t shares = 1;
            while (shares * 2 * groups <= kWarps)
                shares *= 2;
            for (uint32_t task = warp; task < groups * shares; task += kWarps) {
                const uint32_t group = task / shares, cell = group % per_parent * 32 + lane;
                const uint32_t id =
                    cell < a.degree
                        ? __ldg(a.links + static_cast<size_t>(parents[group / per_parent]) * a.degree + cell)
                        : kNone;
                visit(id, task % shares, shares);
            }
        }

        if (me == 0 && warp == 0) {
            Hit *hits = a.hits + static_cast<size_t>(q) * a.k;
            uint32_t found = 0;
            if (a.bits) {
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
            if (lane == 0)
                a.counts[q] = worst == kNoWord ? kOverflow : found;
        }
        __syncthreads();
    }
}

struct BlockLauncher {
    const Machine &machine;
    const Job &job;
    BlockShape shape;
    cudaStream_t stream;
    bool *fits;

    template <class Kernel>
    void run()
    {
        if (job.ef > 256)
            go<Kernel, 16, 512>();
        else if (shape.threads == 512)
            job.ef <= 128 ? go<Kernel, 4, 512>() : go<Kernel, 8, 512>();
        else if (shape.threads == 256)
            job.ef <= 128 ? go<Kernel, 4, 256>() : go<Kernel, 8, 256>();
        else
            job.ef <= 128 ? go<Kernel, 4, 128>() : go<Kernel, 8, 128>();
    }

    template <class Kernel, int kRegisters, int kThreads>
    void go()
    {
        const size_t bytes = graph_block_words<Kernel>(job.rows.pieces, job.k, job.bits != nullptr, job.parents,
                                                       job.degree, shape.blocks, kThreads) *
                             sizeof(uint32_t);
        *fits = bytes + 1024 <= machine.shared_per_block;
        if (!*fits)
            return;
        constexpr auto kernel = graph_block_kernel<Kernel, kRegisters, kThreads>;
        allow_shared<kernel>(bytes, machine.ordinal);
        cudaLaunchConfig_t config = {};
        config.gridDim = dim3(job.count * shape.blocks);
        config.blockDim = dim3(kThreads);
        config.dynamicSmemBytes = bytes;
        config.stream = stream;
        cudaLaunchAttribute attribute = {};
        attribute.id = cudaLaunchAttributeClusterDimension;
        attribute.val.clusterDim.x = shape.blocks;
        attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
        config.attrs = &attribute;
        config.numAttrs = shape.blocks > 1 ? 1 : 0;
        check(cudaLaunchKernelEx(&config, kernel, graph_arguments(job, nullptr), shape.blocks), "graph_block");
    }
};

} // namespace vecgpu::cuda
