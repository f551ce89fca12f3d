/*
 * devices.h: the devices that are open in this process, and owners of what they hand out.
 */
#pragma once

#include <atomic>
#include <memory>
#include <span>
#include <vector>

#include "engine/device.h"

namespace vecgpu {

struct StreamCloser {
    const DeviceApi *api;
    void operator()(DeviceStream *stream) const { api->stream_close(stream); }
};
using Stream = std::unique_ptr<DeviceStream, StreamCloser>;

class OpenDevice {
public:
    OpenDevice(const DeviceApi *api, Device *device, const DeviceInfo &info, Lane lane, uint32_t number, uint64_t limit)
        : api(api), info(info), lane(lane), number(number), memory_limit(limit), device_(device)
    {
    }
    OpenDevice(const OpenDevice &) = delete;
    OpenDevice &operator=(const OpenDevice &) = delete;
    ~OpenDevice() { api->close(device_); }

    Device *handle() const { return device_; }
    Status open_stream(Stream *stream, char *error) const;

    const DeviceApi *const api;
    const DeviceInfo info;
    const Lane lane;
    const uint32_t number;       /* within the lane */
    const uint64_t memory_limit; /* for mirrors; UINT64_MAX: none */
    std::atomic<uint64_t> memory_used{0}; /* by mirrors; raised under the lock of Mirrors only */

private:
    Device *const device_;
};

/* Memory that all devices may read and write quickly, for as long as this lives. */
class RegisteredMemory {
public:
    RegisteredMemory() = default;
    RegisteredMemory(const RegisteredMemory &) = delete;
    RegisteredMemory &operator=(const RegisteredMemory &) = delete;
    ~RegisteredMemory();

    /* A device that declines works without. DeviceLost is the only failure. */
    Status add(std::span<const std::unique_ptr<OpenDevice>> devices, void *memory, size_t bytes);

private:
    void *memory_ = nullptr;
    std::vector<const OpenDevice *> devices_;
};

class Devices {
public:
    /* The host device, or nothing works: false, a sentence in *error. */
    bool open_host(uint64_t memory_limit, char *error);

    /* The devices of vecgpu_cuda.so beside this executable. 0: a sentence in *error. */
    uint32_t open_gpus(uint64_t memory_limit, char *error);

    /* Null: the lane has no such device. */
    OpenDevice *find(Lane lane, uint32_t number) const;
    uint32_t count(Lane lane) const;
    std::span<const std::unique_ptr<OpenDevice>> all() const { return devices_; }

private:
    Status open(const DeviceApi *api, Lane lane, uint32_t number, uint64_t memory_limit, char *error);

    std::vector<std::unique_ptr<OpenDevice>> devices_;
};

} // namespace vecgpu
