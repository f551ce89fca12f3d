/*
 * resident.h: a kernel that stays for a while to answer single queries from its mailbox (mailbox.h), without a launch.
 *
 * Nothing ever depends on such a kernel being there, or on its going. It has a lease: it leaves by itself when it has
 * waited for a query for kLease.idle, and after kLease.whole in any case, so whatever waits for all kernels to end (a
 * cooperative launch, cudaFree) waits that long at most. Who is about to need the whole device tells it to leave
 * (dismiss()), which takes a few microseconds. The caller looks at the answer and at `left`: a kernel that left without
 * an answer is started again, with the query in its mailbox. So a query costs a launch at worst.
 */
#pragma once

#include "mailbox.h"
#include "buffer.h"
#include "status.h"

#include <atomic>
#include <chrono>

namespace vecgpu::cuda {

/* When a kernel leaves that nobody told to. Nanoseconds. */
struct Lease {
    uint64_t idle;  /* without a query */
    uint64_t whole; /* since its start */
};

constexpr Lease kLease = {500'000, 20'000'000};
constexpr Lease kNoLease = {0, 0}; /* one query */

/* What a kernel that serves a mailbox is started with. */
struct MailJob {
    Mailbox *box;
    uint64_t generation; /* which start this is */
    uint32_t first;      /* number of the first query */
    Lease lease;
};

/* One mailbox and its kernel. ask() by one thread at a time, dismiss() by any. */
class Resident {
public:
    Resident();
    Resident(const Resident &) = delete;
    Resident &operator=(const Resident &) = delete;
    ~Resident();

    /*
     * Puts a query of `count` words, starts the kernel unless it is there (`launch(const MailJob &, cudaStream_t)`),
     * and waits for the answer, whose first word says how many follow; these go to `answer`. False: no answer within
     * kPatience; this object is of no more use then, so ask in another way.
     */
    template <class Launch>
    bool ask(const uint32_t *words, uint32_t count, const Lease &lease, uint32_t *answer, Launch launch)
    {
        if (broken_)
            return false;
        if (++number_ == 0)
            number_ = 1; /* fresh memory is zero; a kernel that waits for 0 will leave and be started again */
        mail_put(box_.data(), words, count, number_);
        if (!here())
            start(lease, launch);
        uint32_t first = 0, have = 0, wanted = 1; /* words */
        uint64_t begin = 0;
        for (uint32_t looks = 1;; looks++) {
            while (have < wanted && mail_look(box_.data(), have, number_, have == 0 ? &first : answer + have - 1))
                if (have++ == 0)
                    wanted = 1 + first;
            if (have == wanted)
                return true;
            mail_pause();
            if (looks % kLooks != 0)
                continue;
            if (here_ && has_left()) {
                here_ = false; /* one more look: it may have answered before */
                continue;
            }
            if (!here_)
                start(lease, launch);
            const uint64_t time = now();
            begin = begin ? begin : time;
            if (!patient(time - begin))
                return false;
        }
    }

    /* Whether the kernel is there, as far as the thread that asks knows. */
    bool here() const
    {
        return here_ && !has_left();
    }

    void dismiss();

    /* Returns once the kernel has ended. */
    void wait();

private:
    template <class Launch>
    void start(const Lease &lease, Launch launch)
    {
        const uint64_t generation = generation_.load(std::memory_order_relaxed) + 1;
        generation_.store(generation); /* whoever dismisses from now on means this one */
        launch(MailJob{box_.data(), generation, number_, lease}, stream_);
        here_ = true;
    }

    static uint64_t now()
    {
        return std::chrono::duration_cast<std::chrono::nanoseconds>(
                   std::chrono::steady_clock::now().time_since_epoch())
            .count();
    }

    static constexpr uint32_t kLooks = 64; /* at the answer, before looking at anything else */

    bool has_left() const;
    bool patient(uint64_t waited);

    PinnedBuffer<Mailbox> box_;
    cudaStream_t stream_ = nullptr;
    uint32_t number_ = 0; /* of the last query */
    bool here_ = false, broken_ = false;
    std::atomic<uint64_t> generation_{0};
};

} // namespace vecgpu::cuda
