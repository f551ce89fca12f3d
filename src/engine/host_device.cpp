/*
 * host_device.cpp: see host_device.h. Checks of parameters, and the C boundary: no exception gets past it.
 */
#include "engine/host_device.h"

#include "engine/fault.h"
#include "engine/host_search.h"

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <new>
#include <sched.h>
#include <unistd.h>

namespace vecgpu {

struct Device {
    std::unique_ptr<FaultFile> faults; /* null: none, ever */
};

struct DeviceStream {
    Device *device;
    SearchArena arena;
};

struct DeviceMirror {
    HostMirror host;
};

namespace {

constexpr uint32_t kMaxStreams = 16;
constexpr uint32_t kMaxM = 1000; /* of the builder */

__attribute__((format(printf, 3, 4))) Status fail(Status status, char *error, const char *format, ...)
{
    if (error) {
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(error, kErrorBytes, format, arguments);
        va_end(arguments);
    }
    return status;
}

Status no_memory(char *error)
{
    return fail(Status::NoMemory, error, "out of memory");
}

/* Runs `work`, which returns a Status and may throw. */
template <class Work>
Status guarded(char *error, Work work) noexcept
{
    try {
        return work();
    } catch (const std::bad_alloc &) {
        return no_memory(error);
    } catch (const std::exception &e) {
        return fail(Status::DeviceError, error, "%s", e.what());
    } catch (...) {
        return fail(Status::DeviceError, error, "unknown exception");
    }
}

Status strike(Device *device, FaultOperation operation, char *error, bool *wrong = nullptr)
{
    return device->faults ? device->faults->strike(operation, error, wrong) : Status::Ok;
}

uint64_t now_nanoseconds()
{
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return uint64_t(now.tv_sec) * 1000000000 + uint64_t(now.tv_nsec);
}

uint32_t usable_cpus()
{
    cpu_set_t cpus;
    int n = sched_getaffinity(0, sizeof cpus, &cpus) == 0 ? CPU_COUNT(&cpus) : 1;
    return n < 1 ? 1 : n > int(kMaxStreams) ? kMaxStreams : uint32_t(n);
}

/* MemAvailable counts what the page cache would give back; sysconf() does not. */
uint64_t available_memory()
{
    uint64_t kilobytes = 0;
    FILE *file = fopen("/proc/meminfo", "re");
    if (file) {
        char line[256];
        unsigned long long value;
        while (kilobytes == 0 && fgets(line, sizeof line, file))
            if (sscanf(line, "MemAvailable: %llu kB", &value) == 1)
                kilobytes = value;
        fclose(file);
    }
    if (kilobytes > 0)
        return kilobytes * 1024;
    return uint64_t(sysconf(_SC_AVPHYS_PAGES)) * uint64_t(sysconf(_SC_PAGESIZE));
}

bool shape_is_good(const MirrorShape &shape)
{
    bool metric = shape.metric >= Metric::L2 && shape.metric <= Metric::Cosine;
    bool storage = shape.storage >= Storage::Float32 && shape.storage <= Storage::Int8;
    bool graph = shape.m >= 1 && shape.m <= kMaxM && shape.cell_width >= 2 && shape.cell_width <= 4;
    return metric && storage && shape.dimensions >= 1 && shape.dimensions <= kMaxDimensions && shape.nodes < kNone &&
           shape.upper < kNone && (shape.kind == IndexKind::Flat || (shape.kind == IndexKind::Hnsw && graph));
}

Status host_count(uint32_t *devices, char *)
{
    *devices = 1;
    return Status::Ok;
}

Status host_open(uint32_t number, Device **device, DeviceInfo *info, char *error)
{
    return guarded(error, [&] {
        if (number != 0)
            return fail(Status::NoDevice, error, "there is no host device %u", number);
        auto made = std::make_unique<Device>();
        const char *faults = getenv("VECGPU_FAULT_FILE");
        if (faults && *faults)
            made->faults = std::make_unique<FaultFile>(faults);
        *info = {};
        snprintf(info->name, sizeof info->name, "host");
        info->memory = uint64_t(sysconf(_SC_PHYS_PAGES)) * uint64_t(sysconf(_SC_PAGESIZE));
        info->memory_free = available_memory();
        info->streams = usable_cpus();
        info->max_batch = kHostMaxBatch;
        *device = made.release();
        return Status::Ok;
    });
}

void host_close(Device *device)
{
    delete device;
}

Status host_stream_open(Device *device, DeviceStream **stream, char *error)
{
    return guarded(error, [&] {
        auto made = std::make_unique<DeviceStream>();
        made->device = device;
        *stream = made.release();
        return Status::Ok;
    });
}

void host_stream_close(DeviceStream *stream)
{
    delete stream;
}

Status host_memory_register(Device *, void *, size_t, char *)
{
    return Status::Ok; /* all memory is as near as any other */
}

void host_memory_unregister(Device *, void *) {}

uint64_t host_mirror_bytes(Device *, const MirrorShape *shape)
{
    return shape_is_good(*shape) ? HostMirror::bytes(*shape) : 0;
}

Status host_mirror_create(Device *device, const MirrorShape *shape, DeviceMirror **mirror, char *error)
{
    return guarded(error, [&] {
        Status status = strike(device, FaultOperation::Create, error);
        if (status != Status::Ok)
            return status;
        if (!shape_is_good(*shape))
            return fail(Status::BadRequest, error, "the shape of the mirror is out of range");
        auto made = std::make_unique<DeviceMirror>();
        if (!made->host.create(*shape))
            return no_memory(error);
        *mirror = made.release();
        return Status::Ok;
    });
}

void host_mirror_drop(DeviceMirror *mirror)
{
    delete mirror;
}

Status host_mirror_write(DeviceStream *stream, DeviceMirror *mirror, Region region, uint32_t first, uint32_t count,
                         const void *records, char *error)
{
    return guarded(error, [&] {
        Status status = strike(stream->device, FaultOperation::Write, error);
        if (status != Status::Ok)
            return status;
        RecordArray *array = mirror->host.region(region);
        if (!array || first > array->records() || count > array->records() - first)
            return fail(Status::BadRequest, error, "records %u and the next %u of region %u are beyond the mirror",
                        first, count, unsigned(region));
        if (region == Region::Vectors)
            array->write_private(first, count, records);
        else
            array->write_shared(first, count, records);
        return Status::Ok;
    });
}

Status host_mirror_commit(DeviceStream *stream, DeviceMirror *mirror, const MirrorState *state, char *error)
{
    return guarded(error, [&] {
        Status status = strike(stream->device, FaultOperation::Commit, error);
        if (status != Status::Ok)
            return status;
        const MirrorShape &shape = mirror->host.shape;
        if (state->nodes > shape.nodes || state->upper > shape.upper)
            return fail(Status::BadRequest, error,
                        "%u nodes and %u upper records are more than the mirror has room for", state->nodes,
                        state->upper);
        mirror->host.state.write(*state);
        return Status::Ok;
    });
}

Status host_search_batch(DeviceStream *stream, DeviceMirror *mirror, const BatchParams *params,
                         const BatchQuery *queries, uint32_t count, BatchFinished finished, void *context,
                         BatchTimes *times, char *error)
{
    return guarded(error, [&] {
        uint64_t start = now_nanoseconds();
        bool wrong = false;
        if (times)
            *times = {};
        Status status = strike(stream->device, FaultOperation::Search, error, &wrong);
        if (status != Status::Ok)
            return status;
        if (params->form != SearchForm::Graph && params->form != SearchForm::Exact)
            return fail(Status::BadRequest, error, "unknown form of search %u", unsigned(params->form));
        if (params->k == 0 || params->k >= kNone / 4 || count > kHostMaxBatch)
            return fail(Status::BadRequest, error, "k %u or batch of %u out of range", params->k, count);
        if (params->dimensions != mirror->host.shape.dimensions)
            return fail(Status::BadRequest, error, "the query has %u dimensions, the mirror %u", params->dimensions,
                        mirror->host.shape.dimensions);
        auto spoil = [](void *nodes, const BatchQuery &query) {
            spoil_hits(query.hits, *query.count, *static_cast<uint32_t *>(nodes));
        };
        uint32_t nodes = wrong ? mirror->host.state.read().nodes : 0;
        host_search(stream->arena, mirror->host, *params, queries, count, wrong ? +spoil : nullptr, &nodes, finished,
                    context);
        if (times)
            times->kernel_ns = now_nanoseconds() - start;
        return Status::Ok;
    });
}

} // namespace

const DeviceApi *host_device_api()
{
    static const DeviceApi api = {
        kDeviceAbi,
        host_count,
        host_open,
        host_close,
        host_stream_open,
        host_stream_close,
        host_memory_register,
        host_memory_unregister,
        host_mirror_bytes,
        host_mirror_create,
        host_mirror_drop,
        host_mirror_write,
        host_mirror_commit,
        host_search_batch,
        nullptr,
        nullptr,
    };
    return &api;
}

} // namespace vecgpu
