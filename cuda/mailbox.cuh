/*
 * mailbox.cuh: the kernel's side of mailbox.h.
 */
#pragma once

#include "clock.cuh"
#include "cluster.cuh"
#include "resident.h"

namespace vecgpu::cuda {

struct PiecePair {
    Piece first, second;
};

/* p is a multiple of 16 bytes. Each of the two is read whole. */
__device__ __forceinline__ PiecePair load_host(const uint64_t *p)
{
    PiecePair v;
    asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];" : "=l"(v.first), "=l"(v.second) : "l"(p) : "memory");
    return v;
}

__device__ __forceinline__ void store_host(uint64_t *p, uint64_t v)
{
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}

/* Two pieces at once: p is a multiple of 16 bytes. Each of them is written whole. */
__device__ __forceinline__ void store_host(uint64_t *p, uint64_t first, uint64_t second)
{
    asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};" ::"l"(p), "l"(first), "l"(second) : "memory");
}

__device__ __forceinline__ Piece piece_of(uint32_t word, uint32_t number)
{
    return static_cast<Piece>(number) << 32 | word;
}

/* Of each block of a cluster, in shared memory. */
struct MailDesk {
    uint64_t arrived[2]; /* count the bytes of a query, in turn */
    uint32_t stop;       /* threads that look are to give up */
    uint32_t gone;       /* number of a query that was not taken */
};

/* Words of one of the two places of a query. In front of it is room for what lies in front of it in the mailbox. */
constexpr uint32_t kMailFront = 4;
__host__ __device__ constexpr uint32_t mail_place(uint32_t count)
{
    return kMailFront + (count + 3) / 4 * 4;
}

/* All threads of a cluster, before the first query. */
__device__ __forceinline__ void open_desk(MailDesk &desk, uint32_t blocks)
{
    if (threadIdx.x == 0) {
        desk.stop = desk.gone = 0;
        for (uint64_t &arrived : desk.arrived)
            count_init(&arrived);
    }
    cluster_barrier(blocks); /* all blocks are there, and may be written to */
}

/*
 * All threads of a cluster: waits for query `number` of `count` words and returns where it lies in this block's shared
 * memory. Null: the lease is over, or the kernel was told to leave; then the query was not taken and will not be. The
 * first query is there before the kernel is, and is taken in any case. `places` is 2 * mail_place(count) words, 16-byte
 * aligned, at the same address in all blocks. A block may be one query behind when the next is handed out, so there are
 * two places in turn; between two calls there has to be a barrier of the cluster.
 *
 * The first block looks. Every thread of it looks at its own pair until this has come: there is no barrier between
 * looks, whose price would be that of the slowest look of all. For the same reason the pairs are dealt out to all warps,
 * as the lanes of a warp look together. A thread sends what it has seen to all blocks, where it is counted as it
 * arrives; a barrier of the cluster instead would first wait until all of that has been acknowledged. A thread that
 * gives up says so to all blocks before it sends what it has: so nobody waits for it, and whoever has counted all pairs
 * knows.
 */
__device__ __forceinline__ const uint32_t *receive_mail(const MailJob &job, const Mailbox *box, uint32_t number,
                                                        uint64_t begun, uint32_t count, MailDesk &desk,
                                                        uint32_t *places, uint32_t blocks)
{
    constexpr uint64_t kFirst = 1'000'000'000; /* to be sure */
    constexpr uint32_t kLooks = 16;            /* between two looks at the clock */
    const uint32_t turn = number - job.first, pairs = 1 + (count + 1) / 2;
    uint32_t *words = places + (turn & 1) * mail_place(count) + kMailFront;
    uint64_t *arrived = &desk.arrived[turn & 1];
    if (block_of_cluster(blocks) == 0) {
        volatile uint32_t *stop = &desk.stop;
        const bool first = turn == 0;
        const uint64_t time = nanoseconds();
        const uint64_t end = first ? time + kFirst : min(time + job.lease.idle, begun + job.lease.whole);
        const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x / 32, warps = blockDim.x / 32;
        const uint32_t each = min(32u, max(8u, (pairs + warps - 1) / warps)); /* a warp; 8 are a line of 128 bytes */
        bool late = false;
        auto give_up = [&] {
            late = true;
            *stop = 1;
            for (uint32_t b = 0; b < blocks; b++)
                store_to(&desk.gone, b, number, blocks);
            cluster_fence(blocks);
        };
        for (uint32_t i = lane < each ? warp * each + lane : pairs; i < pairs; i += warps * each) {
            PiecePair pair = {};
            if (!first && time >= end)
                give_up();
            for (uint32_t looks = 1; !late; looks++) {
                pair = load_host(&box->leave + 2 * i);
                if (i == 0 ? pair.second == number : pair.first >> 32 == number && pair.second >> 32 == number)
                    break;
                if (i == 0 && pair.first >= job.generation && !first)
                    *stop = 1;
                if (*stop || (looks % kLooks == 0 && nanoseconds() >= end))
                    give_up();
            }
            for (uint32_t b = 0; b < blocks; b++)
                send_to(words + 2 * i - 2, b, static_cast<uint32_t>(pair.first), static_cast<uint32_t>(pair.second),
                        arrived, blocks);
        }
    }
    count_wait(arrived, pairs * 2 * sizeof(uint32_t), turn >> 1 & 1, blocks);
    return desk.gone == number ? nullptr : words;
}

} // namespace vecgpu::cuda
