/*
 * control.h: what the threads of the control lane do: loads, evictions, lists.
 */
#pragma once

#include <vector>

#include "engine/lane.h"
#include "engine/loader.h"

namespace vecgpu {

class ControlWork final : public LaneWork {
public:
    ControlWork(Area &area, const Devices &devices, Mirrors &mirrors, StagingTable &staging, uint32_t workers)
        : area_(area), devices_(devices), mirrors_(mirrors), loader_(devices, mirrors, staging), workers_(workers)
    {
    }

    uint32_t workers() const { return static_cast<uint32_t>(workers_.size()); }

    /* For ListDevices; before threads start. */
    void set_threads(Lane lane, uint32_t threads) { threads_[static_cast<uint32_t>(lane)] = threads; }

    const char *refuse(const Request &request) const override;
    TaskQueue::SameClass same_class() const override;
    uint64_t class_hash(const Request &request) const override;
    uint32_t share(uint32_t queued, uint32_t idle) const override;
    void run(uint32_t worker, CallClock &clock, std::span<const Task> batch) noexcept override;

private:
    Status execute(Loader::Worker &worker, CallClock &clock, const Task &task, Slot &slot, Response *response);
    uint32_t list_devices(uint32_t first, DeviceEntry *out, uint32_t room, uint32_t *total);

    Area &area_;
    const Devices &devices_;
    Mirrors &mirrors_;
    Loader loader_;
    std::vector<Loader::Worker> workers_;
    uint32_t threads_[kLanes] = {};
};

} // namespace vecgpu
