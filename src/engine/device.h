/*
 * device.h: what the engine asks of a device. C ABI, so that a device can be a shared object of its own.
 *
 * Two implementations: the host device (host_device.h: plain C++, the reference, always there) and cuda (vecgpu_cuda.so, opened
 * with dlopen). test/device/ runs every operation on both and compares.
 *
 * Rules for every call:
 * - It returns a Status (protocol/message.h). Anything but Ok leaves a sentence in *error (if not null), which has kErrorBytes.
 *   BadRequest: a shape, a parameter or a range that cannot be. NoMemory: it does not fit; the device is as before.
 *   DeviceLost means that the device is of no more use in this process: the engine ends and is started again.
 * - No exception leaves it. It blocks until its work is done.
 * - Any thread may call; calls with the same stream come one at a time. Searches of a mirror may run beside writes to it, and beside its commit:
 *   links are hints, vectors below the committed `nodes` never change, and a search works with the state that was committed
 *   when it began. Nothing runs beside mirror_drop.
 * - Regions are arrays of records as the pages hold them (page/layout.h), without page ends: record i at i * record_bytes.
 *   All sizes and offsets are 64-bit.
 * - Results depend on mirror and query alone, not on what else is in the batch; ties break by slot.
 */
#pragma once

#include "page/layout.h"
#include "protocol/message.h"

namespace vecgpu {

constexpr uint32_t kDeviceAbi = 1;
constexpr size_t kErrorBytes = sizeof(Response::message);

struct Device;       /* of the implementation */
struct DeviceStream;
struct DeviceMirror;

struct DeviceInfo {
    char name[64];
    uint64_t memory;      /* bytes; 0: unknown */
    uint64_t memory_free; /* at open */
    uint32_t streams;     /* how many threads should search at once */
    uint32_t max_batch;   /* queries that one search call takes */
};

/* Fixed for the life of a mirror. */
struct MirrorShape {
    IndexKind kind;
    Metric metric;
    Storage storage;     /* of the vectors as they are written: the engine converts before */
    uint8_t cell_width;
    uint32_t dimensions;
    uint32_t m;
    uint32_t nodes;      /* capacity in slots */
    uint32_t upper;      /* capacity in upper records */
};

/* What a commit makes visible. Records beyond it are not looked at, ids beyond it are skipped. */
struct MirrorState {
    uint32_t nodes;
    uint32_t upper;
    uint32_t entry_handle;
    int32_t entry_level;
    float max_norm;
    uint32_t unused;
};

struct BatchParams {
    SearchForm form;
    uint32_t k;
    uint32_t ef;
    uint32_t dimensions;
    const uint64_t *filter; /* bit s: slot s may be returned, for every committed node; null: all. Nodes whose rows are all dead are never returned. */
};

struct BatchQuery {
    const float *query; /* dimensions floats; may lie in registered memory */
    Hit *hits;          /* room for k; ascending by (key, slot) */
    uint32_t *count;    /* hits found: k, or all that the form can reach */
};

/* Called once per query as soon as its hits are complete, from within search(). */
typedef void (*BatchFinished)(void *context, uint32_t query);

struct BatchTimes {
    uint64_t copy_ns;
    uint64_t kernel_ns;
};

struct DeviceApi {
    uint32_t abi; /* kDeviceAbi */

    /* Devices that can be used; a sentence in *error when there are none. */
    Status (*count)(uint32_t *devices, char *error);
    Status (*open)(uint32_t number, Device **device, DeviceInfo *info, char *error);
    void (*close)(Device *device);

    Status (*stream_open)(Device *device, DeviceStream **stream, char *error);
    void (*stream_close)(DeviceStream *stream);

    /* Memory that queries, hits and written bytes lie in (slot area, staging); optional for the caller. */
    Status (*memory_register)(Device *device, void *memory, size_t bytes, char *error);
    void (*memory_unregister)(Device *device, void *memory);

    /* Bytes of device memory that a mirror of this shape takes. */
    uint64_t (*mirror_bytes)(Device *device, const MirrorShape *shape);
    Status (*mirror_create)(Device *device, const MirrorShape *shape, DeviceMirror **mirror, char *error);
    void (*mirror_drop)(DeviceMirror *mirror);
    /* `count` records of a region (Vectors, Links, Slots or Upper) from record `first` on; within the capacity. */
    Status (*mirror_write)(DeviceStream *stream, DeviceMirror *mirror, Region region, uint32_t first, uint32_t count,
                           const void *records, char *error);
    /* Returns once all earlier writes are in place and later searches see `state`. One thread at a time. */
    Status (*mirror_commit)(DeviceStream *stream, DeviceMirror *mirror, const MirrorState *state, char *error);

    Status (*search)(DeviceStream *stream, DeviceMirror *mirror, const BatchParams *params, const BatchQuery *queries,
                     uint32_t count, BatchFinished finished, void *context, BatchTimes *times, char *error);

    /*
     * IVF-PQ lists and steps of a build. Null in a device that does not have them; the engine then answers Unsupported.
     * Their parameters are laid down with the issues that bring them, which raises kDeviceAbi.
     */
    Status (*search_lists)(DeviceStream *stream, DeviceMirror *mirror, const void *params, char *error);
    Status (*build_step)(DeviceStream *stream, const void *params, char *error);
};

/* Exported by a device's shared object. */
constexpr char kDeviceEntry[] = "vecgpu_device_api";
typedef const DeviceApi *(*DeviceEntryPoint)(void);

} // namespace vecgpu
