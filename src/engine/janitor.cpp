/*
 * janitor.cpp: see janitor.h.
 */
#include "engine/janitor.h"

#include <chrono>

#include "engine/ending.h"
#include "engine/log.h"
#include "protocol/system.h"

namespace vecgpu {

namespace {

constexpr uint64_t kRoundNs = 1000000000;

} // namespace

void Janitor::start()
{
    thread_ = std::thread([this] {
        try {
            work();
        } catch (const std::exception &problem) {
            log_line(LogLevel::Warning, "the janitor of the engine failed: %s", problem.what());
            end_now(Ending::Broken);
        }
    });
}

void Janitor::stop()
{
    {
        std::lock_guard lock(mutex_);
        stopping_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable())
        thread_.join();
}

void Janitor::hurry()
{
    {
        std::lock_guard lock(mutex_);
        hurry_ = true;
    }
    changed_.notify_all();
}

void Janitor::bury(std::shared_ptr<void> thing)
{
    {
        std::lock_guard lock(mutex_);
        buried_.push_back(std::move(thing));
        hurry_ = true;
    }
    changed_.notify_all();
}

void Janitor::work()
{
    uint64_t looked_ns = now_ns();
    std::unique_lock lock(mutex_);
    while (!stopping_) {
        changed_.wait_for(lock, std::chrono::nanoseconds(kRoundNs), [this] { return stopping_ || hurry_; });
        hurry_ = false;
        std::vector<std::shared_ptr<void>> buried;
        buried.swap(buried_);
        lock.unlock();
        buried.clear();
        mirrors_.sweep();
        if (now_ns() - looked_ns >= kRoundNs) {
            mirrors_.cancel_forgotten();
            mirrors_.evict_vanished();
            looked_ns = now_ns();
        }
        lock.lock();
    }
}

} // namespace vecgpu
