/*
 * lane.cpp: see lane.h.
 */
#include "engine/lane.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

#include <sched.h>

#include "engine/ending.h"
#include "engine/log.h"
#include "engine/respond.h"
#include "protocol/system.h"

namespace vecgpu {

namespace {

/* A wake costs the session a system call and both sides a few microseconds; a longer spin than this costs more than it saves. */
constexpr uint64_t kSpinNs = 50000;
constexpr uint64_t kGraceNs = 2000;
constexpr uint64_t kLongGapNs = 4 * kSpinNs; /* longer gaps count as this: one pause must not be remembered for long */

constexpr int64_t kForeverNs = int64_t(1) << 62;

} // namespace

LaneThreads::LaneThreads(Area &area, uint32_t slots, Lane lane, LaneWork &work, uint32_t workers)
    : area_(area), bell_(area.bells[static_cast<uint32_t>(lane)]), slots_(slots), lane_(lane), work_(work),
      workers_(workers), queue_(slots, work.same_class()), gap_ns_(kLongGapNs)
{
}

void LaneThreads::start()
{
    for (uint32_t i = 0; i < workers_.size(); i++)
        workers_[i].thread = std::thread([this, i] { work(i); });
}

void LaneThreads::stop()
{
    {
        std::lock_guard lock(mutex_);
        stopping_ = true;
    }
    for (size_t i = 0; i < workers_.size(); i++)
        wake_one();
    for (Worker &worker : workers_)
        if (worker.thread.joinable())
            worker.thread.join();
    std::lock_guard lock(mutex_);
    collect();
    std::vector<Task> left;
    while (!queue_.empty())
        queue_.take(queue_.size(), &left);
    for (const Task &task : left)
        respond(area_.slot[task.slot], task.claim, Status::DeviceLost, "the engine ends");
}

void LaneThreads::poke()
{
    {
        std::lock_guard lock(mutex_);
        if (idle_ == 0 || (bell_.words.load() == 0 && queue_.empty()))
            return;
        waking_ = std::min(waking_ + 1, idle_);
    }
    wake_one();
}

uint64_t LaneThreads::longest_call_ns(uint64_t now) const
{
    uint64_t longest = 0;
    for (const Worker &worker : workers_) {
        uint64_t since = worker.clock.since_ns.load(std::memory_order_relaxed);
        if (since != 0 && now > since)
            longest = std::max(longest, now - since);
    }
    return longest;
}

void LaneThreads::work(uint32_t number)
{
    try {
        std::vector<Task> batch;
        batch.reserve(slots_);
        while (next_batch(&batch))
            work_.run(number, workers_[number].clock, batch);
    } catch (const std::exception &problem) {
        log_line(LogLevel::Warning, "a thread of the engine failed: %s", problem.what());
        end_now(Ending::Broken);
    }
}

/* The next ring will wake a sleeper. Returns what the word is then: who means to sleep on it sleeps on this value only. */
uint32_t LaneThreads::arm()
{
    uint32_t value;
    do
        value = arms_.fetch_add(1, std::memory_order_relaxed) + 1;
    while (value == 0); /* 0: nobody sleeps */
    bell_.sleeping.store(value);
    return value;
}

/* Who is only about to sleep finds a new value in the word and does not. */
void LaneThreads::wake_one()
{
    arm();
    SharedFutex::wake(bell_.sleeping);
}

/* *batch holds what this worker ran last, and then what it is to run next. False: the lane stops. */
bool LaneThreads::next_batch(std::vector<Task> *batch)
{
    std::unique_lock lock(mutex_);
    in_flight_ -= static_cast<uint32_t>(batch->size());
    area_.in_flight[static_cast<uint32_t>(lane_)].store(in_flight_, std::memory_order_relaxed);
    batch->clear();
    for (;;) {
        if (stopping_)
            return false;
        collect();
        if (!queue_.empty())
            break;

        uint64_t now = now_ns();
        if (quiet_since_ == 0)
            quiet_since_ = now;
        if (!leading_) {
            uint64_t budget = spin_budget();
            if (budget > 0 && now < quiet_since_ + budget) {
                leading_ = true;
                bell_.sleeping.store(0); /* no ring needs to wake anybody */
                lock.unlock();
                bool rung = spin(now, budget);
                lock.lock();
                leading_ = false;
                if (rung)
                    continue;
            }
        }
        /* While another one leads it will arm the bell when it goes. */
        uint32_t seen = leading_ ? bell_.sleeping.load() : arm();
        if (bell_.words.load() != 0 || !queue_.empty() || stopping_)
            continue;
        idle_++;
        lock.unlock();
        SharedFutex::wait(bell_.sleeping, seen, kForeverNs);
        lock.lock();
        idle_--;
        if (waking_ > 0)
            waking_--;
    }

    uint32_t count = queue_.next_count();
    queue_.take(std::max<uint32_t>(work_.share(count, idle_), 1), batch);
    note_queued();

    bool wake = false;
    if (!leading_ && idle_ > 0) {
        /* Somebody has to hear the bell while this one is away. A ring before this store woke nobody. */
        arm();
        wake = bell_.words.load() != 0;
    }
    wake = (wake || !queue_.empty()) && idle_ > waking_ && !leading_;
    if (wake)
        waking_++;
    lock.unlock();
    if (wake)
        wake_one();
    return true;
}

/* Everything that was rung since the last time. Under the lock. */
void LaneThreads::collect()
{
    if (bell_.words.load() == 0)
        return;
    uint32_t before = queue_.size();
    bell_collect(bell_, [&](uint32_t number) {
        Task task;
        if (number >= slots_)
            return;
        Slot &slot = area_.slot[number];
        if (!slot_take(slot.control, &task.claim))
            return; /* given up, or the ring was for nothing */
        task.slot = number;
        memcpy(&task.request, &slot.request, sizeof task.request);
        /* Nothing below may read the slot's copy: a session that misbehaves could have changed it. */
        asm volatile("" ::: "memory");
        if (task.request.lane != lane_ && static_cast<uint32_t>(task.request.lane) < kLanes) {
            forward(task);
            return;
        }
        const char *fault = task.request.lane == lane_ ? work_.refuse(task.request) : "unknown lane";
        if (fault != nullptr)
            respond(slot, task.claim, Status::BadRequest, fault);
        else
            queue_.push(task, work_.class_hash(task.request));
    });
    if (queue_.size() == before)
        return;
    in_flight_ += queue_.size() - before;
    area_.in_flight[static_cast<uint32_t>(lane_)].store(in_flight_, std::memory_order_relaxed);
    if (quiet_since_ != 0) {
        uint64_t gap = std::min(now_ns() - quiet_since_, kLongGapNs);
        gap_ns_ = gap_ns_ - gap_ns_ / 4 + gap / 4;
        quiet_since_ = 0;
    }
}

/* Somebody rang here for a slot of another lane, maybe for nothing, but the slot is taken now: it goes to where it belongs. */
void LaneThreads::forward(const Task &task)
{
    Slot &slot = area_.slot[task.slot];
    SlotWord word = task.claim;
    if (slot.control.word.compare_exchange_strong(word, with_state(task.claim, SlotState::Filled)))
        bell_ring<SharedFutex>(area_.bells[static_cast<uint32_t>(task.request.lane)], task.slot);
    else
        slot_finish<SharedFutex>(slot.control, task.claim);
}

uint64_t LaneThreads::spin_budget() const
{
    return gap_ns_ < kSpinNs ? std::min(2 * gap_ns_ + kGraceNs, kSpinNs) : 0;
}

bool LaneThreads::spin(uint64_t from_ns, uint64_t budget_ns) const
{
    do {
        for (int i = 0; i < 32; i++) {
            if (bell_.words.load(std::memory_order_relaxed) != 0 || queued_.load(std::memory_order_relaxed) != 0)
                return true;
            cpu_pause();
        }
        sched_yield(); /* to a session that is about to ring, where cores are short */
    } while (now_ns() - from_ns < budget_ns);
    return false;
}

} // namespace vecgpu
