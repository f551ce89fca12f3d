/*
 * mirror.cu: the records of an index in device memory, and the states that commits publish.
 *
 * Vectors and links are converted as they are written. Slots and upper records stay on the host: all that searches need
 * of them is one bit a node and the choice of pivots.
 */
#include "state.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace vecgpu {

cuda::Rows DeviceMirror::view() const
{
    cuda::Rows view;
    view.data = this->rows.data();
    view.side = side.data();
    view.pitch = pitch;
    view.pieces = cuda::row_pieces(shape.storage, shape.dimensions);
    view.dimensions = shape.dimensions;
    view.metric = shape.metric;
    return view;
}

std::shared_ptr<const cuda::Version> DeviceMirror::current() const
{
    std::lock_guard<std::mutex> lock(publishing_);
    return version_;
}

void DeviceMirror::publish(std::shared_ptr<const cuda::Version> next)
{
    std::lock_guard<std::mutex> lock(publishing_);
    version_.swap(next); /* the old one is let go after the lock */
}

namespace cuda {

namespace {

constexpr size_t kStagingBytes = 32 << 20;

/* Rows begin on sectors (32 bytes) of memory. */
uint32_t pitch_of(Storage storage, uint32_t dimensions)
{
    return (row_pieces(storage, dimensions) + 1) / 2 * 2;
}

bool needs_side(const MirrorShape &shape)
{
    return shape.storage == Storage::Int8 || shape.metric == Metric::Cosine;
}

bool has_links(const MirrorShape &shape)
{
    return shape.kind == IndexKind::Hnsw;
}

void require(bool condition, const char *what)
{
    if (!condition)
        fail(Status::BadRequest, "%s", what);
}

/*
 * The nodes of the highest layers, then nodes spread over the table if these are few: at most kPivots, all different.
 */
std::vector<uint32_t> choose_pivots(const DeviceMirror &mirror, const MirrorState &state)
{
    std::vector<UpperNode> upper;
    for (uint32_t i = 0; i < state.upper; i++)
        if (mirror.upper[i].slot < state.nodes && mirror.upper[i].level > 0)
            upper.push_back(mirror.upper[i]);
    std::sort(upper.begin(), upper.end(), [](const UpperNode &a, const UpperNode &b) {
        return a.level != b.level ? a.level > b.level : a.slot < b.slot;
    });
    std::vector<uint32_t> slots;
    std::vector<bool> taken(state.nodes);
    auto take = [&](uint32_t slot) {
        if (slot < state.nodes && !taken[slot] && slots.size() < kPivots) {
            taken[slot] = true;
            slots.push_back(slot);
        }
    };
    if (state.entry_level == 0)
        take(state.entry_handle);
    for (const UpperNode &node : upper)
        take(node.slot);
    for (uint64_t i = 0; slots.size() < kPivots / 4 && i < kPivots / 4; i++)
        take(static_cast<uint32_t>(i * state.nodes / (kPivots / 4)));
    return slots;
}

} // namespace

uint64_t mirror_bytes(const Device &device, const MirrorShape &shape)
{
    uint64_t nodes = shape.nodes;
    uint64_t bytes = nodes * pitch_of(shape.storage, shape.dimensions) * sizeof(uint4);
    if (needs_side(shape))
        bytes += nodes * sizeof(float2);
    if (has_links(shape))
        bytes +=
            nodes * 2 * shape.m * sizeof(uint32_t) +
            kPivots * (row_pieces(Storage::Int8, shape.dimensions) * sizeof(uint4) + sizeof(float2) + sizeof(uint32_t));
    bytes += 2 * (nodes / 8 + 64); /* live bits of two versions */
    return bytes + flat_image_bytes(device.machine, shape.dimensions, shape.nodes) + walk_image_bytes(shape);
}

DeviceMirror *create_mirror(Device *device, const MirrorShape &shape)
{
    require(shape.dimensions > 0 && shape.dimensions <= kMaxDimensions, "dimensions of a mirror out of range");
    require(shape.storage >= Storage::Float32 && shape.storage <= Storage::Int8, "unknown storage of a mirror");
    require(shape.kind == IndexKind::Hnsw || shape.kind == IndexKind::Flat, "unknown kind of a mirror");
    require(shape.metric >= Metric::L2 && shape.metric <= Metric::Cosine, "unknown metric of a mirror");
    require(shape.cell_width >= 2 && shape.cell_width <= 4, "bad cell width of a mirror");
    require(!has_links(shape) || (shape.m > 0 && shape.m <= 4096), "bad m of a mirror");
    require(shape.nodes < kNone, "too many nodes for a mirror");
    size_t free_bytes = 0, total_bytes = 0;
    check(cudaMemGetInfo(&free_bytes, &total_bytes), "memory of the device");
    if (mirror_bytes(*device, shape) > free_bytes)
        fail(Status::NoMemory, "a mirror of %llu MB, %llu MB are free",
             static_cast<unsigned long long>(mirror_bytes(*device, shape) >> 20),
             static_cast<unsigned long long>(free_bytes >> 20));
    if (shape.nodes >= 1u << 31)
        fail(Status::Unsupported, "a mirror of 2^31 nodes or more");
    auto mirror = std::make_unique<DeviceMirror>();
    mirror->device = device;
    mirror->shape = shape;
    for (int region = 0; region < kRegions; region++)
        mirror->record_bytes[region] = region_shape(static_cast<Region>(region), shape.storage, shape.dimensions,
                                                    has_links(shape) ? shape.m : 1, shape.cell_width)
                                           .record_bytes;
    const size_t nodes = shape.nodes;
    mirror->pitch = pitch_of(shape.storage, shape.dimensions);
    mirror->rows.allocate(nodes * mirror->pitch);
    /* Never written, as after an aborted load, is zero: a row like any other. */
    check(cudaMemset(mirror->rows.data(), 0, nodes * mirror->pitch * sizeof(uint4)), "mirror");
    if (needs_side(shape)) {
        mirror->side.allocate(nodes);
        check(cudaMemset(mirror->side.data(), 0, nodes * sizeof(float2)), "mirror");
    }
    if (has_links(shape)) {
        mirror->links.allocate(nodes * 2 * shape.m);
        check(cudaMemset(mirror->links.data(), 0xff, nodes * 2 * shape.m * sizeof(uint32_t)), "mirror");
        mirror->upper.resize(shape.upper);
    }
    walk_image_create(&mirror->walk_image, shape, nullptr);
    flat_image_create(&mirror->image, device->machine, shape.dimensions, shape.nodes, nullptr);
    check(cudaStreamSynchronize(nullptr), "mirror");
    mirror->live_bits.resize(nodes / 32 + 1);
    mirror->publish(std::make_shared<Version>());
    return mirror.release();
}

void write_mirror(DeviceStream &stream, DeviceMirror &mirror, Region region, uint32_t first, uint32_t count,
                  const void *records)
{
    const MirrorShape &shape = mirror.shape;
    const uint32_t capacity = region == Region::Upper ? shape.upper : shape.nodes;
    require(first <= capacity && count <= capacity - first, "records beyond the capacity of a mirror");
    const uint32_t bytes = mirror.record_bytes[static_cast<int>(region)];
    const unsigned char *from = static_cast<const unsigned char *>(records);

    switch (region) {
    case Region::Slots: {
        std::lock_guard<std::mutex> lock(mirror.writing);
        for (uint32_t i = 0; i < count; i++) {
            SlotRecord record;
            memcpy(&record, from + static_cast<size_t>(i) * bytes, sizeof record);
            /* With twins a node may live on although its own row is dead. */
            bool live = (record.meta & kRowStateMask) == kRowLive || (record.meta & kRowHasTwins);
            uint32_t slot = first + i, bit = 1u << slot % 32;
            mirror.live_bits[slot / 32] = live ? mirror.live_bits[slot / 32] | bit : mirror.live_bits[slot / 32] & ~bit;
        }
        return;
    }
    case Region::Upper: {
        require(has_links(shape), "upper records of an index without a graph");
        std::lock_guard<std::mutex> lock(mirror.writing);
        for (uint32_t i = 0; i < count; i++) {
            UpperRecord record;
            memcpy(&record, from + static_cast<size_t>(i) * bytes, sizeof record);
            mirror.upper[first + i] = {record.slot, record.level};
        }
        return;
    }
    case Region::Vectors:
    case Region::Links:
        break;
    default:
        fail(Status::BadRequest, "a region that mirrors do not have");
    }
    require(region == Region::Vectors || has_links(shape), "links of an index without a graph");

    stream.staging.reserve(kStagingBytes);
    const uint32_t most = static_cast<uint32_t>(kStagingBytes / bytes);
    for (uint32_t done = 0; done < count;) {
        const uint32_t part = std::min(most, count - done);
        check(cudaMemcpyAsync(stream.staging.data(), from + static_cast<size_t>(done) * bytes,
                              static_cast<size_t>(part) * bytes, cudaMemcpyHostToDevice, stream.stream),
              "upload");
        if (region == Region::Vectors) {
            launch_place_rows(
                {mirror.rows.data(), mirror.side.data(), mirror.pitch, bytes, shape.storage, shape.metric},
                stream.staging.data(), first + done, part, stream.stream);
            if (mirror.walk_image.enabled)
                walk_image_rows(mirror.walk_image, shape.storage, mirror.view(), first + done, part, stream.stream);
        } else {
            launch_place_links({mirror.links.data(), 2u * shape.m, bytes, shape.cell_width}, stream.staging.data(),
                               first + done, part, stream.stream);
        }
        done += part;
    }
    check(cudaStreamSynchronize(stream.stream), "upload");
}

void commit_mirror(DeviceStream &stream, DeviceMirror &mirror, const MirrorState &state)
{
    require(state.nodes <= mirror.shape.nodes && state.upper <= mirror.shape.upper,
            "a state beyond the capacity of a mirror");
    const std::shared_ptr<const Version> old = mirror.current();
    auto next = std::make_shared<Version>();
    next->state = state;
    std::lock_guard<std::mutex> lock(mirror.writing);

    const uint32_t words = (state.nodes + 31) / 32;
    std::vector<uint32_t> bits(mirror.live_bits.begin(), mirror.live_bits.begin() + words);
    if (state.nodes % 32)
        bits.back() &= (1u << state.nodes % 32) - 1;
    for (uint32_t word : bits)
        next->live += std::popcount(word);
    if (next->live < state.nodes) {
        next->bits = std::make_shared<DeviceBuffer<uint32_t>>(words + 1);
        check(cudaMemcpyAsync(next->bits->data(), bits.data(), words * sizeof(uint32_t), cudaMemcpyHostToDevice,
                              stream.stream),
              "live bits");
    }
    if (state.nodes > 0) {
        if (mirror.image.enabled)
            next->bounds =
                flat_image_extend(&mirror.image, mirror.shape.storage, mirror.view(), state.nodes, stream.stream);
        if (has_links(mirror.shape)) {
            /* Pivots are a sample: a few nodes more or less do not matter to it. */
            const uint32_t seen = old->upper_seen;
            if (old->pivots && old->state.nodes <= state.nodes && state.upper >= seen &&
                state.upper - seen <= seen / 8 && state.nodes - old->pivot_nodes <= old->pivot_nodes / 8) {
                next->pivots = old->pivots;
                next->upper_seen = seen;
                next->pivot_nodes = old->pivot_nodes;
                next->walks_on_image = old->walks_on_image;
            } else {
                auto pivots = std::make_shared<Pivots>();
                make_pivots(pivots.get(), mirror.shape.storage, mirror.view(), choose_pivots(mirror, state),
                            stream.stream);
                next->pivots = pivots;
                next->upper_seen = state.upper;
                next->pivot_nodes = state.nodes;
                if (mirror.walk_image.enabled)
                    next->walks_on_image = walk_image_serves(mirror.walk_image, mirror.shape.storage, mirror.view(),
                                                             mirror.links.data(), 2 * mirror.shape.m, state.nodes,
                                                             pivots->slots.data(), kPivots, stream.stream);
            }
        }
    }
    check(cudaStreamSynchronize(stream.stream), "commit");
    mirror.publish(next);
}

} // namespace cuda

} // namespace vecgpu
