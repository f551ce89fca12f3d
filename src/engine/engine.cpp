/*
 * engine.cpp: see engine.h.
 */
#include "engine/engine.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <new>

#include <sched.h>

#include "engine/log.h"
#include "protocol/socket.h"

namespace vecgpu {

namespace {

constexpr uint32_t kControlThreads = 3;
constexpr uint32_t kMostHostThreads = 16;

uint32_t usable_cores()
{
    cpu_set_t set;
    CPU_ZERO(&set);
    int cores = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    return cores > 0 ? static_cast<uint32_t>(cores) : 1;
}

} // namespace

bool Engine::start()
{
    if (!make_area() || !open_devices() || !start_lanes())
        return false;
    janitor_.start();
    return true;
}

void Engine::stop()
{
    for (std::unique_ptr<LaneThreads> &lane : lanes_)
        if (lane != nullptr)
            lane->stop();
    janitor_.stop();
}

bool Engine::make_area()
{
    size_t bytes = area_bytes(slots_);
    int fd = -1;
    if (int error = memory_create("vecgpu slots", bytes, &fd)) {
        log_line(LogLevel::Warning, "could not create the slot area: %s", strerror(error));
        return false;
    }
    area_fd_ = FileHandle(fd);
    void *memory = nullptr;
    if (int error = memory_map(fd, bytes, &memory)) {
        log_line(LogLevel::Warning, "could not map the slot area of %zu bytes: %s", bytes, strerror(error));
        return false;
    }
    mapping_ = Mapping(memory, bytes);
    /* The memory is zero, and zero is a free slot, a silent bell. */
    Area *area = static_cast<Area *>(memory);
    area->magic = kProtocolMagic;
    area->version = kProtocolVersion;
    area->generation = options_.generation;
    area->slots = slots_;
    area->heartbeat_ns.store(now_ns());
    return true;
}

bool Engine::open_devices()
{
    char error[kErrorBytes] = "";
    if (!devices_.open_host(options_.memory_limit, error)) {
        log_line(LogLevel::Warning, "could not open the host device: %s", error);
        return false;
    }
    if (options_.host_only)
        snprintf(error, sizeof error, "the engine was started with --device host");
    else
        devices_.open_gpus(options_.memory_limit, error);
    Area &area = this->area();
    area.gpus = devices_.count(Lane::Gpu);
    if (area.gpus == 0) {
        snprintf(area.gpu_reason, sizeof area.gpu_reason, "%s", error);
        log_line(LogLevel::Log, "no GPU: %s", error);
    }
    for (const std::unique_ptr<OpenDevice> &device : devices_.all())
        log_line(LogLevel::Debug, "device %s, %llu bytes for mirrors", device->info.name,
                 static_cast<unsigned long long>(device->memory_limit));
    if (registered_.add(devices_.all(), mapping_.memory(), mapping_.bytes()) == Status::DeviceLost) {
        log_line(LogLevel::Warning, "a device was lost while it was opened");
        return false;
    }
    return true;
}

bool Engine::start_lanes()
{
    Area &area = this->area();
    for (Lane lane : {Lane::Host, Lane::Gpu}) {
        uint32_t at = static_cast<uint32_t>(lane);
        searches_[at] = std::make_unique<SearchWork>(area, lane, mirrors_);
        OpenDevice *device = devices_.find(lane, 0);
        if (device == nullptr)
            continue;
        uint32_t threads = device->info.streams;
        if (lane == Lane::Host)
            threads = options_.threads != 0 ? options_.threads : std::min(usable_cores(), kMostHostThreads);
        for (uint32_t i = 0; i < threads; i++) {
            char error[kErrorBytes] = "";
            if (!searches_[at]->add_worker(*device, error)) {
                log_line(LogLevel::Warning, "%s: %s", device->info.name, error);
                return false;
            }
        }
    }
    control_ = std::make_unique<ControlWork>(area, devices_, mirrors_, staging_, kControlThreads);
    for (uint32_t lane = 0; lane < kLanes; lane++) {
        bool searches = lane < std::size(searches_);
        LaneWork *work = searches ? static_cast<LaneWork *>(searches_[lane].get()) : control_.get();
        uint32_t threads = searches ? searches_[lane]->workers() : control_->workers();
        control_->set_threads(static_cast<Lane>(lane), threads);
        /* A lane without devices has one thread all the same, which says so. */
        lanes_[lane] = std::make_unique<LaneThreads>(area, slots_, static_cast<Lane>(lane), *work, std::max(threads, 1u));
        lanes_[lane]->start();
    }
    return true;
}

void Engine::drop_session(uint32_t session)
{
    Area &area = this->area();
    for (uint32_t i = 0; i < slots_; i++)
        slot_reclaim(area.slot[i].control, session);
    mirrors_.drop_session(session);
    if (std::shared_ptr<Staging> staging = staging_.remove(session))
        janitor_.bury(std::move(staging));
    else
        janitor_.hurry();
    poke();
}

void Engine::poke()
{
    for (std::unique_ptr<LaneThreads> &lane : lanes_)
        lane->poke();
}

uint64_t Engine::longest_call_ns(uint64_t now) const
{
    uint64_t longest = 0;
    for (const std::unique_ptr<LaneThreads> &lane : lanes_)
        longest = std::max(longest, lane->longest_call_ns(now));
    return longest;
}

} // namespace vecgpu
