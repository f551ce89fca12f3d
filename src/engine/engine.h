/*
 * engine.h: everything that lives as long as the engine, in the order in which it must come and go.
 */
#pragma once

#include <memory>

#include "engine/control.h"
#include "engine/handle.h"
#include "engine/janitor.h"
#include "engine/options.h"
#include "engine/search.h"

namespace vecgpu {

class Engine {
public:
    explicit Engine(const Options &options) : options_(options), slots_(options.slots), janitor_(mirrors_) {}
    ~Engine() { stop(); }

    /* Slot area, devices, threads. False: said why in the log. */
    bool start();
    void stop();

    Area &area() { return *static_cast<Area *>(mapping_.memory()); }
    uint32_t slots() const { return slots_; }
    int area_fd() const { return area_fd_.get(); }
    const Devices &devices() const { return devices_; }
    StagingTable &staging() { return staging_; }
    Janitor &janitor() { return janitor_; }

    /* The session is gone, or never was: nothing of it stays. */
    void drop_session(uint32_t session);

    /* See LaneThreads. */
    void poke();
    uint64_t longest_call_ns(uint64_t now) const;

private:
    bool make_area();
    bool open_devices();
    bool start_lanes();

    const Options &options_;
    const uint32_t slots_;
    FileHandle area_fd_;
    Mapping mapping_;
    Devices devices_;
    RegisteredMemory registered_;
    StagingTable staging_;
    Mirrors mirrors_;
    Janitor janitor_;
    std::unique_ptr<SearchWork> searches_[2]; /* Lane::Host, Lane::Gpu */
    std::unique_ptr<ControlWork> control_;
    std::unique_ptr<LaneThreads> lanes_[kLanes];
};

} // namespace vecgpu
