/*
 * sessions.h: who is connected. For the control thread only.
 */
#pragma once

#include <cstdint>
#include <unordered_map>
#include <unordered_set>

#include "engine/handle.h"
#include "protocol/slot.h"

namespace vecgpu {

struct Session {
    FileHandle socket;
    uint32_t id = 0; /* 0: has not said hello yet */
    uint64_t connected_ns = 0;
};

class Sessions {
public:
    explicit Sessions(uint32_t most) : most_(most) {}

    Session &add(FileHandle &&socket, uint64_t now)
    {
        int fd = socket.get();
        Session &session = table_[fd];
        session.socket = std::move(socket);
        session.id = 0;
        session.connected_ns = now;
        return session;
    }

    Session *find(int fd)
    {
        auto found = table_.find(fd);
        return found != table_.end() ? &found->second : nullptr;
    }

    void remove(int fd)
    {
        auto found = table_.find(fd);
        if (found == table_.end())
            return;
        ids_.erase(found->second.id);
        table_.erase(found);
    }

    /* False: there are as many as may be. A number comes back only after all others have been used. */
    bool name(Session &session)
    {
        if (ids_.size() >= most_)
            return false;
        do
            last_id_ = last_id_ < kMaxSession ? last_id_ + 1 : 1;
        while (ids_.contains(last_id_));
        session.id = last_id_;
        ids_.insert(session.id);
        return true;
    }

    bool lives(uint32_t id) const { return ids_.contains(id); }
    size_t size() const { return table_.size(); }
    const std::unordered_map<int, Session> &all() const { return table_; }

private:
    const uint32_t most_;
    std::unordered_map<int, Session> table_; /* by descriptor */
    std::unordered_set<uint32_t> ids_;
    uint32_t last_id_ = 0;
};

} // namespace vecgpu
