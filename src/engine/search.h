/*
 * search.h: what the threads of a search lane do: one call of the device for all requests of a class.
 */
#pragma once

#include <atomic>
#include <vector>

#include "engine/lane.h"
#include "engine/mirrors.h"

namespace vecgpu {

class SearchWork final : public LaneWork {
public:
    SearchWork(Area &area, Lane lane, Mirrors &mirrors) : area_(area), lane_(lane), mirrors_(mirrors) {}

    /* A thread of the lane that searches on this device. False: a sentence in *error. */
    bool add_worker(OpenDevice &device, char *error);
    uint32_t workers() const { return static_cast<uint32_t>(workers_.size()); }

    const char *refuse(const Request &request) const override;
    TaskQueue::SameClass same_class() const override;
    uint64_t class_hash(const Request &request) const override;
    uint32_t share(uint32_t queued, uint32_t idle) const override;
    void run(uint32_t worker, CallClock &clock, std::span<const Task> batch) noexcept override;

private:
    /* Of one thread; kept from batch to batch. */
    struct Worker {
        OpenDevice *device;
        Stream stream;
        std::vector<Task> tasks; /* those that go to the device */
        std::vector<BatchQuery> queries;
        std::vector<uint32_t> counts;
        std::vector<uint8_t> finished;
    };
    struct Batch; /* what the device's callback needs */

    void search(Worker &worker, CallClock &clock, const Pin &pin);
    static void finish_one(void *context, uint32_t query);
    void learn(uint64_t ns, uint32_t queries);

    Area &area_;
    const Lane lane_;
    Mirrors &mirrors_;
    std::vector<Worker> workers_;
    uint32_t max_batch_ = UINT32_MAX;
    std::atomic<uint64_t> query_ns_{100000}; /* moving mean of what a query takes */
};

} // namespace vecgpu
