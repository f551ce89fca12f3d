/*
 * devices.cpp: see devices.h.
 */
#include "engine/devices.h"

#include <climits>
#include <cstdio>
#include <cstring>
#include <string>

#include <dlfcn.h>
#include <unistd.h>

#include "engine/host_device.h"
#include "engine/log.h"

namespace vecgpu {

Status OpenDevice::open_stream(Stream *stream, char *error) const
{
    DeviceStream *opened = nullptr;
    Status status = api->stream_open(device_, &opened, error);
    if (status == Status::Ok)
        *stream = Stream(opened, StreamCloser{api});
    return status;
}

RegisteredMemory::~RegisteredMemory()
{
    for (const OpenDevice *device : devices_)
        device->api->memory_unregister(device->handle(), memory_);
}

Status RegisteredMemory::add(std::span<const std::unique_ptr<OpenDevice>> devices, void *memory, size_t bytes)
{
    memory_ = memory;
    devices_.reserve(devices.size());
    for (const std::unique_ptr<OpenDevice> &device : devices) {
        char error[kErrorBytes] = "";
        Status status = device->api->memory_register(device->handle(), memory, bytes, error);
        if (status == Status::Ok)
            devices_.push_back(device.get());
        else if (status == Status::DeviceLost)
            return status;
        else
            log_line(LogLevel::Log, "%s: memory of %zu bytes is not registered: %s", device->info.name, bytes, error);
    }
    return Status::Ok;
}

Status Devices::open(const DeviceApi *api, Lane lane, uint32_t number, uint64_t memory_limit, char *error)
{
    Device *device = nullptr;
    DeviceInfo info = {};
    Status status = api->open(number, &device, &info, error);
    if (status != Status::Ok)
        return status;
    info.name[sizeof info.name - 1] = 0;
    if (info.streams == 0)
        info.streams = 1;
    if (info.max_batch == 0)
        info.max_batch = 1;
    uint64_t limit = memory_limit;
    if (limit == 0) {
        uint64_t there = info.memory_free != 0 ? info.memory_free : info.memory;
        limit = there != 0 ? there / 10 * 9 : UINT64_MAX;
    }
    devices_.push_back(std::make_unique<OpenDevice>(api, device, info, lane, number, limit));
    return Status::Ok;
}

bool Devices::open_host(uint64_t memory_limit, char *error)
{
    return open(host_device_api(), Lane::Host, 0, memory_limit, error) == Status::Ok;
}

uint32_t Devices::open_gpus(uint64_t memory_limit, char *error)
{
    char path[PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
    if (length <= 0) {
        snprintf(error, kErrorBytes, "the engine cannot find its own executable");
        return 0;
    }
    std::string library(path, static_cast<size_t>(length));
    library.replace(library.rfind('/') + 1, std::string::npos, "vecgpu_cuda.so");
    if (access(library.c_str(), F_OK) != 0) {
        snprintf(error, kErrorBytes, "this build has no GPU support (no vecgpu_cuda.so)");
        return 0;
    }
    /* Never closed: the CUDA runtime does not like to leave a process that stays. */
    void *handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) {
        snprintf(error, kErrorBytes, "%s", dlerror());
        return 0;
    }
    DeviceEntryPoint entry = reinterpret_cast<DeviceEntryPoint>(dlsym(handle, kDeviceEntry));
    const DeviceApi *api = entry != nullptr ? entry() : nullptr;
    if (api == nullptr || api->abi != kDeviceAbi) {
        snprintf(error, kErrorBytes, "vecgpu_cuda.so is of another version");
        return 0;
    }
    uint32_t there = 0;
    if (api->count(&there, error) != Status::Ok)
        return 0;
    if (there == 0) {
        snprintf(error, kErrorBytes, "no GPU found");
        return 0;
    }
    /* The first one: mirrors are not spread over several. */
    if (open(api, Lane::Gpu, 0, memory_limit, error) != Status::Ok)
        return 0;
    return 1;
}

OpenDevice *Devices::find(Lane lane, uint32_t number) const
{
    for (const std::unique_ptr<OpenDevice> &device : devices_)
        if (device->lane == lane && device->number == number)
            return device.get();
    return nullptr;
}

uint32_t Devices::count(Lane lane) const
{
    uint32_t count = 0;
    for (const std::unique_ptr<OpenDevice> &device : devices_)
        count += device->lane == lane;
    return count;
}

} // namespace vecgpu
