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
#include <mutex>
#include <vector>

namespace vecgpu::cuda {

/* When a kernel leaves that nobody told to. Nanoseconds. */
struct Lease {
    uint64_t idle;  /* without a query */
    uint64_t whole; /* since its start */
};

constexpr Lease kLease = {500'000, 20'000'000};
constexpr Lease kNoLease = {0, 0}; /* one query */

/* What a kernel that serves mailboxes is started with. */
struct MailJob {
    Mailbox *boxes;
    uint32_t count;
    uint32_t first;      /* number of the first query, the same in all boxes */
    uint64_t generation; /* which start this is */
    Lease lease;
};

/* Mailboxes and their kernel. ask() by one thread at a time, dismiss() by any. */
class Resident {
public:
    /* `boxes`: how many queries can be asked at once. */
    explicit Resident(uint32_t boxes);
    Resident(const Resident &) = delete;
    Resident &operator=(const Resident &) = delete;
    ~Resident();

    /*
     * Puts `count` queries of `length` words each, query i at `words(i)`, starts the kernel unless it is there, and
     * waits for the answers. The first word of an answer says how many follow, at most `room`; `take(i, words)` gets
     * those as soon as all of them are there. To start it, `launch(const MailJob &, cudaStream_t)` is called, with the
     * lease that `lease()` says just before. Only a kernel without a lease serves more than one box.
     * False: launch() says that it cannot, and nothing was taken; or answers did not come within kPatience. In the
     * latter case this object is of no more use. What was not taken must be asked in another way.
     */
    template <class Words, class LeaseNow, class Launch, class Take>
    bool ask(uint32_t count, uint32_t length, uint32_t room, Words words, LeaseNow lease, Launch launch, Take take)
    {
        if (broken_)
            return false;
        if (++number_ == 0)
            number_ = 1; /* fresh memory is zero; a kernel that waits for 0 will leave and be started again */
        for (uint32_t i = 0; i < count; i++)
            mail_put(box_.data() + i, words(i), length, number_);
        if (!here() && !start(count, lease, launch))
            return false;
        answers_.assign(count, {0, 1});
        words_.resize(static_cast<size_t>(count) * room);
        uint64_t begin = 0;
        for (uint32_t open = count, looks = 1;; looks++) {
            for (uint32_t i = 0; i < count; i++)
                if (look(i, words_.data() + static_cast<size_t>(i) * room)) {
                    take(i, words_.data() + static_cast<size_t>(i) * room);
                    open--;
                }
            if (open == 0)
                break;
            mail_pause();
            if (looks % kLooks != 0)
                continue;
            if (!here_) {
                if (!start(count, lease, launch))
                    return false;
            } else if (stays_ && has_left()) {
                here_ = false; /* one more look: it may have answered before */
            }
            const uint64_t time = now();
            begin = begin ? begin : time;
            if (!patient(time - begin))
                return false;
        }
        if (!stays_)
            here_ = false;
        return true;
    }

    /* The next query is for a kernel that is started in another way. The one that is there takes no query any more. */
    void change()
    {
        if (!here_)
            return;
        dismiss();
        number_++; /* it waits for this one, which never comes */
        here_ = false;
    }

    /* Whether a kernel is there that takes more queries. */
    bool here() const { return here_.load(std::memory_order_relaxed) && !has_left(); }

    void dismiss();

    /* Returns once the kernel has ended. */
    void wait();

private:
    struct Answer {
        uint32_t have, wanted; /* words; all taken: wanted is 0 */
    };

    template <class LeaseNow, class Launch>
    bool start(uint32_t count, LeaseNow lease, Launch launch)
    {
        const uint64_t generation = generation_.load(std::memory_order_relaxed) + 1;
        generation_.store(generation); /* whoever dismisses from now on means this one, and lease() is asked later */
        const MailJob job = {box_.data(), count, number_, generation, lease()};
        stays_ = job.lease.whole > 0;
        const bool started = launch(job, stream_);
        here_ = started;
        return started;
    }

    /* Words of answer i go to `words`. True, once: all of them are there. */
    bool look(uint32_t i, uint32_t *words)
    {
        Answer &answer = answers_[i];
        uint32_t first;
        while (answer.have < answer.wanted &&
               mail_look(box_.data() + i, answer.have, number_, answer.have == 0 ? &first : words + answer.have - 1))
            if (answer.have++ == 0)
                answer.wanted = 1 + first;
        if (answer.have == 0 || answer.have < answer.wanted)
            return false;
        const bool fresh = answer.wanted != 0;
        answer.wanted = 0;
        return fresh;
    }

    static uint64_t now()
    {
        return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
            .count();
    }

    static constexpr uint32_t kLooks = 64; /* at the answer, before looking at anything else */

    bool has_left() const;
    bool patient(uint64_t waited);

    PinnedBuffer<Mailbox> box_;
    std::vector<Answer> answers_;
    std::vector<uint32_t> words_;
    cudaStream_t stream_ = nullptr;
    uint32_t number_ = 0;           /* of the last query */
    std::atomic<bool> here_{false}; /* started, and not known to have left */
    bool stays_ = false;            /* for more than one query */
    bool broken_ = false;
    std::atomic<uint64_t> generation_{0};
};

/* The resident kernels of a device. */
class Residents {
public:
    void add(Resident *resident);
    void remove(Resident *resident);

    /* While one of these lives no resident kernel is there for longer than a query takes, and those that are leave. */
    class Away {
    public:
        explicit Away(Residents &residents);
        ~Away() { residents_.away_--; }
        Away(const Away &) = delete;

    private:
        Residents &residents_;
    };

    /* Whether a kernel that is started now may stay: few do at a time, so that there is always room for others. */
    bool may_stay();

private:
    std::mutex changing_;
    std::vector<Resident *> all_;
    std::atomic<uint32_t> away_{0};
};

} // namespace vecgpu::cuda
