/*
 * state.h: devices, streams and mirrors: the objects behind the handles of engine/device.h.
 */
#pragma once

#include "buffer.h"
#include "convert.h"
#include "entry.h"
#include "flat_batch.h"
#include "resident.h"
#include "walk_image.h"

#include "engine/device.h"

#include <memory>
#include <mutex>
#include <vector>

namespace vecgpu {

/* A GPU that was opened. */
struct Device {
    cuda::Machine machine;
    uint32_t max_batch;
    cuda::Residents residents;
    std::atomic<uint32_t> batches{0};        /* searches that run now, but for those of one query of a graph */
    std::atomic<uint64_t> last_single_ns{0}; /* when the last of those ended */
};

} // namespace vecgpu

namespace vecgpu::cuda {

/*
 * What a commit made visible. A search holds on to the version that it began with; none of it changes.
 */
struct Version {
    const uint64_t number = next_number(); /* of no other version of any mirror */
    MirrorState state{};
    uint32_t live = 0;                            /* nodes that may be returned */
    std::shared_ptr<DeviceBuffer<uint32_t>> bits; /* bit s: node s may be returned; null: all may */
    std::shared_ptr<const Pivots> pivots;
    uint32_t upper_seen = 0, pivot_nodes = 0; /* records and nodes when the pivots were chosen */
    FlatImage::Bounds bounds{};
    bool walks_on_image = false; /* see walk_image.h; decided with the pivots */

private:
    static uint64_t next_number()
    {
        static std::atomic<uint64_t> last{0};
        return ++last;
    }
};

/* Few queries need no copies: they and their hits go through pinned memory. */
constexpr uint32_t kMappedQueries = 16;

struct UpperNode {
    uint32_t slot;
    uint8_t level;
};

} // namespace vecgpu::cuda

namespace vecgpu {

/* All that a resident kernel knows but the query. */
struct ResidentJob {
    uint64_t version;
    uint32_t k, ef;
    uint32_t most_blocks; /* of a cluster */
    bool operator==(const ResidentJob &) const = default;
};

struct DeviceStream {
    Device *device;
    cudaStream_t stream = nullptr;
    cudaEvent_t begun = nullptr, ended = nullptr; /* of the kernels of a search */

    /* Workspace. Grows to the largest search so far, then no search allocates. */
    cuda::PinnedBuffer<float> host_queries;
    cuda::PinnedBuffer<Hit> host_hits;
    cuda::PinnedBuffer<uint32_t> host_counts;
    cuda::DeviceBuffer<float> queries, nearest;
    cuda::DeviceBuffer<uint4> prepared, walk_prepared;
    cuda::DeviceBuffer<uint32_t> entries, turns, counts, walk_counts, ticket, minima, orders, bits;
    cuda::DeviceBuffer<Hit> hits, walk_hits;
    cuda::DeviceBuffer<cuda::Word> candidates, scan_ends;
    cuda::DeviceBuffer<cuda::RadixState> radix;
    cuda::DeviceBuffer<unsigned char> staging;
    cuda::FlatWorkspace flat;

    cuda::Resident resident{1};                /* for one query of a graph */
    cuda::Resident mail{cuda::kMappedQueries}; /* for a few, without a kernel that stays */
    ResidentJob serving{};                     /* what the resident kernel was started for */

    explicit DeviceStream(Device *device);
    ~DeviceStream();
};

struct DeviceMirror {
    Device *device;
    MirrorShape shape;
    uint32_t record_bytes[kRegions];
    uint32_t pitch; /* pieces from one row to the next */
    cuda::DeviceBuffer<uint4> rows;
    cuda::DeviceBuffer<float2> side;
    cuda::DeviceBuffer<uint32_t> links;
    cuda::FlatImage image;
    cuda::WalkImage walk_image;

    std::mutex writing;              /* of the host's side below */
    std::vector<uint32_t> live_bits; /* bit s: slot record s says that node s may be returned */
    std::vector<cuda::UpperNode> upper;

    cuda::Rows view() const;
    std::shared_ptr<const cuda::Version> current() const;
    void publish(std::shared_ptr<const cuda::Version> next);

private:
    mutable std::mutex publishing_;
    std::shared_ptr<const cuda::Version> version_;
};

} // namespace vecgpu

namespace vecgpu::cuda {

uint64_t mirror_bytes(const Device &device, const MirrorShape &shape);
DeviceMirror *create_mirror(Device *device, const MirrorShape &shape);
void write_mirror(DeviceStream &stream, DeviceMirror &mirror, Region region, uint32_t first, uint32_t count,
                  const void *records);
void commit_mirror(DeviceStream &stream, DeviceMirror &mirror, const MirrorState &state);
void search_mirror(DeviceStream &stream, DeviceMirror &mirror, const BatchParams &params, const BatchQuery *queries,
                   uint32_t count, BatchFinished finished, void *context, BatchTimes *times);

} // namespace vecgpu::cuda
