/*
 * device.cu: the C face of the shared object: handles, devices, streams. Everything else throws, nothing leaves here.
 */
#include "state.h"

#include <algorithm>

namespace vecgpu {

using namespace cuda;

DeviceStream::DeviceStream(Device *owner) : device(owner)
{
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
    check(cudaEventCreate(&begun), "event");
    check(cudaEventCreate(&ended), "event");
    counts.allocate(1);
    ticket.allocate(1);
    minima.allocate(kScanMinima);
    scan_ends.allocate(2);
    candidates.allocate(kScanCandidates);
    radix.allocate(1);
    check(cudaMemsetAsync(scan_ends.data(), 0, 2 * sizeof(Word), stream), "stream workspace");
    check(cudaMemsetAsync(minima.data(), 0xff, kScanMinima * sizeof(uint32_t), stream), "stream workspace");
    check(cudaStreamSynchronize(stream), "stream workspace");
    device->residents.add(&resident);
}

DeviceStream::~DeviceStream()
{
    device->residents.remove(&resident);
    if (stream) {
        cudaStreamSynchronize(stream);
        cudaStreamDestroy(stream);
    }
    if (begun)
        cudaEventDestroy(begun);
    if (ended)
        cudaEventDestroy(ended);
}

namespace {

/* Older chips lack shared memory and instructions that the kernels use. */
constexpr int kLeastMajor = 8;
constexpr uint32_t kStreams = 4;
constexpr uint32_t kMaxBatch = 16384;

void select(const Device *device)
{
    check(cudaSetDevice(device->machine.ordinal), "cudaSetDevice");
}

__global__ void probe_kernel() {}

/*
 * The chip that kernels are to be written for: that of the device, or the older one that they were compiled for
 * (cuda/Makefile, FEATURES), which lacks clusters.
 */
int major_of(const cudaDeviceProp &properties)
{
    cudaFuncAttributes attributes;
    check(cudaFuncGetAttributes(&attributes, probe_kernel), "kernel attributes");
    return attributes.ptxVersion < 90 ? attributes.ptxVersion / 10 : properties.major;
}

/* Ordinals of CUDA that the kernels can run on. CUDA_VISIBLE_DEVICES and MIG have had their say before us. */
std::vector<int> usable_devices(char *error)
{
    std::vector<int> usable;
    int count = 0;
    cudaError_t code = cudaGetDeviceCount(&count);
    if (code != cudaSuccess || count == 0) {
        cudaGetLastError();
        put_error(error, code == cudaErrorInsufficientDriver ? "no NVIDIA driver, or one that is too old for this build"
                         : code == cudaSuccess               ? "no CUDA device"
                                                             : cudaGetErrorString(code));
        return usable;
    }
    for (int i = 0; i < count; i++) {
        int major = 0;
        if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, i) == cudaSuccess && major >= kLeastMajor)
            usable.push_back(i);
    }
    cudaGetLastError();
    if (usable.empty())
        put_error(error, "no CUDA device of compute capability 8.0 or newer");
    return usable;
}

Status api_count(uint32_t *devices, char *error)
{
    return guarded(error, [&] { *devices = static_cast<uint32_t>(usable_devices(error).size()); });
}

Status api_open(uint32_t number, Device **device, DeviceInfo *info, char *error)
{
    return guarded(error, [&] {
        char reason[sizeof(Response::message)] = "";
        std::vector<int> usable = usable_devices(reason);
        if (number >= usable.size())
            fail(Status::NoDevice, "no CUDA device %u%s%s", number, reason[0] ? ": " : "", reason);
        auto made = std::make_unique<Device>();
        Machine &machine = made->machine;
        machine.ordinal = usable[number];
        check(cudaSetDevice(machine.ordinal), "cudaSetDevice");
        cudaDeviceProp properties;
        check(cudaGetDeviceProperties(&properties, machine.ordinal), "device properties");
        machine.sms = properties.multiProcessorCount;
        machine.major = major_of(properties);
        machine.shared_per_block = properties.sharedMemPerBlockOptin;
        made->max_batch = kMaxBatch;
        size_t free_bytes = 0, total_bytes = 0;
        check(cudaMemGetInfo(&free_bytes, &total_bytes), "memory of the device");
        if (info) {
            *info = {};
            snprintf(info->name, sizeof info->name, "%.63s", properties.name);
            info->memory = total_bytes;
            info->memory_free = free_bytes;
            info->streams = kStreams;
            info->max_batch = kMaxBatch;
        }
        *device = made.release();
    });
}

void api_close(Device *device)
{
    delete device;
}

Status api_stream_open(Device *device, DeviceStream **stream, char *error)
{
    return guarded(error, [&] {
        select(device);
        const Residents::Away away(device->residents);
        *stream = new DeviceStream(device);
    });
}

void api_stream_close(DeviceStream *stream)
{
    guarded(nullptr, [&] {
        select(stream->device);
        const Residents::Away away(stream->device->residents);
        delete stream;
    });
}

Status api_memory_register(Device *device, void *memory, size_t bytes, char *error)
{
    return guarded(error, [&] {
        select(device);
        check(cudaHostRegister(memory, bytes, cudaHostRegisterPortable | cudaHostRegisterMapped), "pinning of memory");
    });
}

void api_memory_unregister(Device *device, void *memory)
{
    guarded(nullptr, [&] {
        select(device);
        check(cudaHostUnregister(memory), "unpinning of memory");
    });
}

uint64_t api_mirror_bytes(Device *device, const MirrorShape *shape)
{
    return mirror_bytes(*device, *shape);
}

Status api_mirror_create(Device *device, const MirrorShape *shape, DeviceMirror **mirror, char *error)
{
    return guarded(error, [&] {
        select(device);
        const Residents::Away away(device->residents);
        *mirror = create_mirror(device, *shape);
    });
}

void api_mirror_drop(DeviceMirror *mirror)
{
    guarded(nullptr, [&] {
        select(mirror->device);
        const Residents::Away away(mirror->device->residents);
        delete mirror;
    });
}

Status api_mirror_write(DeviceStream *stream, DeviceMirror *mirror, Region region, uint32_t first, uint32_t count,
                        const void *records, char *error)
{
    return guarded(error, [&] {
        select(mirror->device);
        write_mirror(*stream, *mirror, region, first, count, records);
    });
}

Status api_mirror_commit(DeviceStream *stream, DeviceMirror *mirror, const MirrorState *state, char *error)
{
    return guarded(error, [&] {
        select(mirror->device);
        const Residents::Away away(mirror->device->residents);
        commit_mirror(*stream, *mirror, *state);
    });
}

Status api_search(DeviceStream *stream, DeviceMirror *mirror, const BatchParams *params, const BatchQuery *queries,
                  uint32_t count, BatchFinished finished, void *context, BatchTimes *times, char *error)
{
    return guarded(error, [&] {
        select(mirror->device);
        search_mirror(*stream, *mirror, *params, queries, count, finished, context, times);
    });
}

constexpr DeviceApi kApi = {
    kDeviceAbi,
    api_count,
    api_open,
    api_close,
    api_stream_open,
    api_stream_close,
    api_memory_register,
    api_memory_unregister,
    api_mirror_bytes,
    api_mirror_create,
    api_mirror_drop,
    api_mirror_write,
    api_mirror_commit,
    api_search,
    nullptr,
    nullptr,
};

} // namespace

} // namespace vecgpu

extern "C" __attribute__((visibility("default"))) const vecgpu::DeviceApi *vecgpu_device_api(void)
{
    return &vecgpu::kApi;
}
