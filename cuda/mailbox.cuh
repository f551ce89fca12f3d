/*
 * mailbox.cuh: the kernel's side of mailbox.h.
 */
#pragma once

#include "resident.h"

namespace vecgpu::cuda {

__device__ __forceinline__ Piece load_host(const uint64_t *p)
{
    uint64_t v;
    asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
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

__device__ __forceinline__ uint64_t nanoseconds()
{
    uint64_t t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
    return t;
}

__device__ __forceinline__ Piece piece_of(uint32_t word, uint32_t number)
{
    return static_cast<Piece>(number) << 32 | word;
}

/*
 * All threads of one block: waits for query `number`, whose words go to words[0 .. count) in shared memory. False: the
 * lease is over, or the kernel was told to leave; then the query was not taken and will not be. A query that is there is
 * taken before all else, as long as the whole lease lasts.
 */
__device__ __forceinline__ bool take_mail(const MailJob &job, uint32_t number, uint64_t begun, uint32_t *words,
                                          uint32_t count)
{
    const Mailbox *box = job.box;
    uint64_t waiting = 0;
    if (threadIdx.x == blockDim.x - 1)
        waiting = nanoseconds();
    for (;;) {
        bool complete = true, over = false, late = false;
        for (uint32_t i = threadIdx.x; i < count; i += blockDim.x) {
            const Piece piece = load_host(box->query + i);
            complete &= piece >> 32 == number;
            words[i] = static_cast<uint32_t>(piece);
        }
        if (threadIdx.x == blockDim.x - 1) {
            const uint64_t time = nanoseconds();
            late = time - begun > job.lease.whole && number != job.first;
            over = late || time - waiting > job.lease.idle || load_host(&box->leave) >= job.generation;
        }
        if (__syncthreads_and(complete && !late))
            return true;
        if (__syncthreads_or(over))
            return false;
    }
}

} // namespace vecgpu::cuda
