/*
 * mailbox.h: how one query gets to a kernel that already runs, and its answer back: pinned memory that the kernel
 * looks at, and that the caller looks at.
 *
 * Every payload word (32 bits) lies beside the number of the query that it belongs to, in one aligned piece of 64 bits,
 * which processors and bus write and read whole. So a reader needs no flag and no fence: it reads all pieces until all
 * carry the number that it waits for, one trip over the bus instead of two.
 *
 * A kernel leaves by itself, see resident.h; it then writes `left`. Its caller looks at that too while it waits.
 */
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace vecgpu::cuda {

constexpr uint32_t kMailQueryWords = 2048;
constexpr uint32_t kMailAnswerWords = 2048;

using Piece = uint64_t; /* the word below, the query's number above */

struct Mailbox {
    /* Written by the host. One look of 16 bytes sees two of these. */
    alignas(128) uint64_t leave; /* kernels of a generation up to this are to leave */
    uint64_t asked;              /* number of the query */
    Piece query[kMailQueryWords];
    /* Written by the kernel. */
    alignas(128) Piece answer[kMailAnswerWords];
    alignas(128) uint64_t left; /* the kernel of this generation has left, or takes no query any more */
};

static_assert(kMailQueryWords % 2 == 0 && offsetof(Mailbox, query) % 16 == 0);

/* The caller's side. Pieces come in pairs. */
inline void mail_put(Mailbox *box, const uint32_t *words, uint32_t count, uint32_t number)
{
    const Piece above = static_cast<Piece>(number) << 32;
    box->asked = number; /* first, as what is written last may have to fetch its line again */
    for (uint32_t i = 0; i < count; i++)
        box->query[i] = above | words[i];
    if (count % 2 != 0)
        box->query[count] = above;
    std::atomic_signal_fence(std::memory_order_seq_cst);
}

/* Whether word `i` of the answer to query `number` is there. */
inline bool mail_look(const Mailbox *box, uint32_t i, uint32_t number, uint32_t *word)
{
    const Piece piece = *static_cast<const volatile Piece *>(box->answer + i);
    *word = static_cast<uint32_t>(piece);
    return piece >> 32 == number;
}

inline void mail_pause()
{
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

} // namespace vecgpu::cuda
