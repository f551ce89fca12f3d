/*
 * lane.h: the threads of a lane, and how they share its doorbell.
 *
 * Leader and followers: whoever is free and finds nothing to do watches the bell, one of them with its eyes open (a bounded
 * spin), the others asleep on it. Who finds requests takes a batch and runs it itself, so a lone client pays for no hand-off
 * between threads; before it goes it arms the bell for those who sleep, so the next ring wakes one, and it wakes one itself only if
 * it leaves something behind.
 *
 * Lock: one mutex for queue and roles. Nothing is called under it but take and finish of slots.
 */
#pragma once

#include <atomic>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "engine/call_clock.h"
#include "engine/queue.h"

namespace vecgpu {

/* What a lane's threads do. */
class LaneWork {
public:
    virtual ~LaneWork() = default;

    /* Null, or why the request cannot be meant for this lane. Must be quick. */
    virtual const char *refuse(const Request &request) const = 0;

    virtual TaskQueue::SameClass same_class() const = 0;
    virtual uint64_t class_hash(const Request &request) const = 0;

    /* How many of `queued` requests of one class a worker takes while `idle` others have nothing to do. */
    virtual uint32_t share(uint32_t queued, uint32_t idle) const = 0;

    /* Finishes every task, on the thread of this worker. */
    virtual void run(uint32_t worker, CallClock &clock, std::span<const Task> batch) noexcept = 0;
};

class LaneThreads {
public:
    LaneThreads(Area &area, uint32_t slots, Lane lane, LaneWork &work, uint32_t workers);
    ~LaneThreads() { stop(); }

    void start();

    /* Returns when all threads have ended, each after what it was running. Requests that waited get DeviceLost. */
    void stop();

    /*
     * Makes somebody look at the bell. A session that was killed between its ring and the wake that belongs to it leaves sleepers
     * behind whom the next ring will not wake.
     */
    void poke();

    /* The longest time that a worker has been inside a device call. */
    uint64_t longest_call_ns(uint64_t now) const;

private:
    struct Worker {
        CallClock clock;
        std::thread thread;
    };

    void work(uint32_t number);
    bool next_batch(std::vector<Task> *batch);
    void collect();
    void forward(const Task &task);
    bool spin(uint64_t from_ns, uint64_t budget_ns) const;
    void note_queued() { queued_.store(queue_.size(), std::memory_order_relaxed); }
    uint64_t spin_budget() const;
    uint32_t arm();
    void wake_one();

    Area &area_;
    SharedBell &bell_;
    const uint32_t slots_;
    const Lane lane_;
    LaneWork &work_;
    std::vector<Worker> workers_;

    std::mutex mutex_;
    TaskQueue queue_;
    bool stopping_ = false;
    bool leading_ = false;      /* one watches the bell with its eyes open */
    uint32_t idle_ = 0;         /* asleep on the bell, or about to be, or about to return */
    uint32_t waking_ = 0;       /* of them: those who were told to get up */
    uint32_t in_flight_ = 0;    /* taken and not known to be finished */
    uint64_t quiet_since_ = 0;  /* when the last worker found nothing; 0: there is something */
    uint64_t gap_ns_;           /* moving mean: how long it stays quiet */

    /*
     * Values of the bell's `sleeping`, never the same for two sleeps: several sleep on that word, and with a plain 1 one that is
     * about to could miss that it was cleared and set again in between.
     */
    std::atomic<uint32_t> arms_{0};

    /* Size of the queue, for the one who leads: another worker may leave something behind. */
    alignas(64) std::atomic<uint32_t> queued_{0};
};

} // namespace vecgpu
