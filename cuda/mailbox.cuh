/*
 * mailbox.cuh: the kernel's side of mailbox.h.
 */
#pragma once

#include "clock.cuh"
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

/*
 * All threads of one block: waits for query `number` of `count` words; each word goes to put(i, word) as it comes. False:
 * the lease is over, or the kernel was told to leave; then the query was not taken and will not be. The first query is
 * there before the kernel is, and is taken in any case. *stop is in shared memory, 0 before and after.
 *
 * Every thread looks at its own pieces until these have come: there is no barrier between looks, whose price would be
 * that of the slowest look of all.
 */
template <class Put>
__device__ __forceinline__ bool take_mail(const MailJob &job, const Mailbox *box, uint32_t number, uint64_t begun,
                                          uint32_t count, volatile uint32_t *stop, Put put)
{
    constexpr uint64_t kFirst = 1'000'000'000; /* to be sure */
    constexpr uint32_t kLooks = 16;            /* between two looks at the clock */
    const bool first = number == job.first;
    const uint64_t time = nanoseconds();
    const uint64_t end = first ? time + kFirst : min(time + job.lease.idle, begun + job.lease.whole);
    bool complete = first || time < end;
    if (complete)
        for (uint32_t i = threadIdx.x; i * 2 < count + 1; i += blockDim.x)
            for (uint32_t looks = 1;; looks++) {
                const PiecePair pair = load_host(&box->leave + 2 * i);
                if ((i == 0 || pair.first >> 32 == number) && (2 * i == count || pair.second >> 32 == number)) {
                    if (i > 0)
                        put(2 * i - 1, static_cast<uint32_t>(pair.first));
                    if (2 * i < count)
                        put(2 * i, static_cast<uint32_t>(pair.second));
                    break;
                }
                if (i == 0 && pair.first >= job.generation && !first)
                    *stop = 1;
                if ((looks % kLooks == 0 && nanoseconds() >= end) || *stop) {
                    *stop = 1;
                    complete = false;
                    break;
                }
            }
    complete = __syncthreads_and(complete);
    if (threadIdx.x == 0)
        *stop = 0;
    return complete;
}

} // namespace vecgpu::cuda
