/*
 * staging.h: the memory through which sessions hand over bulk data.
 */
#pragma once

#include <memory>
#include <mutex>
#include <unordered_map>

#include "engine/devices.h"
#include "engine/handle.h"

namespace vecgpu {

/* Written by the session, read here. Lives until its session has gone or brought another, and the last load let go of it. */
class Staging {
public:
    explicit Staging(Mapping &&mapping) : mapping_(std::move(mapping)) {}

    Status register_with(const Devices &devices) { return registered_.add(devices.all(), mapping_.memory(), mapping_.bytes()); }
    const uint8_t *bytes() const { return static_cast<const uint8_t *>(mapping_.memory()); }
    uint64_t size() const { return mapping_.bytes(); }

private:
    Mapping mapping_;
    RegisteredMemory registered_; /* unregistered before the mapping goes */
};

/* By session. */
class StagingTable {
public:
    void put(uint32_t session, std::shared_ptr<Staging> staging)
    {
        std::lock_guard lock(mutex_);
        table_[session].swap(staging);
    } /* what was there dies here, after the lock */

    std::shared_ptr<Staging> find(uint32_t session)
    {
        std::lock_guard lock(mutex_);
        auto found = table_.find(session);
        return found != table_.end() ? found->second : nullptr;
    }

    /* The caller lets it die where that does no harm. */
    std::shared_ptr<Staging> remove(uint32_t session)
    {
        std::lock_guard lock(mutex_);
        auto found = table_.find(session);
        if (found == table_.end())
            return nullptr;
        std::shared_ptr<Staging> staging = std::move(found->second);
        table_.erase(found);
        return staging;
    }

private:
    std::mutex mutex_;
    std::unordered_map<uint32_t, std::shared_ptr<Staging>> table_;
};

} // namespace vecgpu
