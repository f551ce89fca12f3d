/*
 * call_clock.h: how the watchdog knows that a thread hangs in a device.
 */
#pragma once

#include <atomic>
#include <cstdint>

namespace vecgpu {

/* Since when a thread is inside a call of a device; 0: it is not. On a cache line of its own. */
struct alignas(64) CallClock {
    std::atomic<uint64_t> since_ns{0};
};

class DeviceCall {
public:
    DeviceCall(CallClock &clock, uint64_t now) : clock_(clock) { clock_.since_ns.store(now, std::memory_order_relaxed); }
    ~DeviceCall() { clock_.since_ns.store(0, std::memory_order_relaxed); }
    DeviceCall(const DeviceCall &) = delete;
    DeviceCall &operator=(const DeviceCall &) = delete;

private:
    CallClock &clock_;
};

} // namespace vecgpu
