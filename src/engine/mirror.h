/*
 * mirror.h: one mirror of an index on a device, and the load that writes it.
 *
 * Both are shared: a search, a load or an eviction that still holds one keeps it alive, so memory is freed when nobody
 * looks at it any more and never earlier. New holders come from Mirrors only, under its lock.
 */
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "engine/cost_model.h"
#include "engine/devices.h"

namespace vecgpu {

/* A share of a device's budget. */
class Reservation {
public:
    Reservation() = default;
    Reservation(OpenDevice *device, uint64_t bytes) : device_(device), bytes_(bytes) {}
    Reservation(Reservation &&other) noexcept : device_(other.device_), bytes_(other.bytes_) { other.device_ = nullptr; }
    Reservation &operator=(Reservation &&other) noexcept
    {
        std::swap(device_, other.device_);
        std::swap(bytes_, other.bytes_);
        return *this;
    }
    ~Reservation()
    {
        if (device_ != nullptr)
            device_->memory_used.fetch_sub(bytes_);
    }

private:
    OpenDevice *device_ = nullptr;
    uint64_t bytes_ = 0;
};

class Mirror {
public:
    Mirror(OpenDevice &device, const IndexKey &key, const MirrorShape &shape, uint64_t bytes, Reservation &&reservation,
           DeviceMirror *handle)
        : device(device), key(key), shape(shape), bytes(bytes), reservation_(std::move(reservation)), handle_(handle)
    {
    }
    Mirror(const Mirror &) = delete;
    Mirror &operator=(const Mirror &) = delete;
    ~Mirror() { device.api->mirror_drop(handle_); } /* then the reservation goes back */

    DeviceMirror *handle() const { return handle_; }

    OpenDevice &device;
    const IndexKey key;
    const MirrorShape shape;
    const uint64_t bytes;

    /* Of the last commit. Under the lock of Mirrors. */
    uint64_t epoch = 0;
    uint32_t nodes = 0;
    uint32_t twins = 0;
    uint32_t index_oid = 0;
    std::string path; /* of the relation's first segment; empty: not known */
    std::shared_ptr<const FormModel> form;

    std::atomic<uint64_t> used_ns{0}; /* of the last search, or of the first commit */

private:
    Reservation reservation_;
    DeviceMirror *const handle_;
};

/* From LoadBegin to LoadEnd. */
struct Load {
    uint64_t id = 0;
    uint32_t session = 0;
    IndexKey key = {};
    OpenDevice *device = nullptr;
    Storage source = Storage::Float32; /* of the index: what the session writes */
    bool fresh = false;                /* a new mirror, not one that lags */
    uint32_t base_nodes = 0;           /* whose vectors are in place, and in use */
    uint64_t epoch = 0;                /* after the commit */
    uint32_t twins = 0;                /* likewise */
    MirrorState state = {};            /* likewise */
    uint32_t index_oid = 0;
    std::string path;

    std::shared_ptr<Mirror> mirror; /* set before anybody else can find the load */

    /* Evicted, or the session is gone: nothing of it will be committed. */
    std::atomic<bool> cancelled{false};

    std::atomic<uint64_t> active_ns{0}; /* of the last write */

    std::mutex writing; /* one write or commit at a time */
    bool ended = false; /* under `writing`, as the next ones */
    Status failed = Status::Ok; /* why LoadEnd must not commit */
    char reason[kErrorBytes] = "";

    /* Rows that were written, decoded: the queries by which the forms of a search are compared. Under `writing`. */
    std::vector<float> samples;
    std::shared_ptr<const FormModel> form; /* after the commit */
};

} // namespace vecgpu
