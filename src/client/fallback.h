/*
 * fallback.h: why a search, or a part of one, ran without the device.
 */
#pragma once

#include <cstdint>

namespace vecgpu {

/* Numbers are positions in the statistics file (stats.h): to change one is to raise kStatsLayout. */
enum class VgFallback : uint32_t {
    None = 0,
    NoEngine = 1,     /* it does not run and cannot be started, or cannot be reached */
    Starting = 2,     /* it has been asked for and is not there yet */
    Version = 3,      /* it speaks another version: it is older or newer than the module */
    NoDevice = 4,     /* the engine has no device of the wanted kind */
    NoSlot = 5,       /* as many requests as there are slots are under way */
    Cold = 6,         /* no mirror */
    Loading = 7,      /* the mirror is being loaded */
    Behind = 8,       /* the mirror lags behind the index */
    Memory = 9,       /* neither the budget nor the device has room */
    DeviceError = 10, /* the request failed on the device, or the device is gone */
    Timeout = 11,     /* no answer within vecgpu.engine_timeout */
    Hung = 12,        /* the engine gives no sign of life */
    Lost = 13,        /* the engine ended during the request */
    WrongAnswer = 14, /* the answer contradicts the pages, or itself */
    Unsupported = 15, /* the device cannot do what was asked for */
};
constexpr uint32_t kFallbacks = 16;

/* As users see it, in views and in the log. */
constexpr const char *VgFallbackName(VgFallback reason)
{
    constexpr const char *names[kFallbacks] = {
        "none",   "no_engine", "starting",     "version", "no_device", "no_slot", "cold",         "loading",
        "behind", "memory",    "device_error", "timeout", "hung",      "lost",    "wrong_answer", "unsupported"};
    return static_cast<uint32_t>(reason) < kFallbacks ? names[static_cast<uint32_t>(reason)] : "unknown";
}

} // namespace vecgpu
