/*
 * budget.cpp: the part of Mirrors that decides what makes room for what.
 *
 * The budget counts mirror_bytes() of everything that lives, retired mirrors included: their memory is free only when it is
 * free. Who needs room: first what is retired already, then the least recently used mirrors that nobody holds and nobody searched within
 * the last second (two indexes that do not fit together must not throw each other out with every query), then the
 * predecessors of the very index. If all that is not enough, nothing is evicted.
 */
#include <algorithm>
#include <ctime>

#include "engine/mirrors.h"
#include "protocol/system.h"

namespace vecgpu {

namespace {

bool predecessor(const IndexKey &old, const IndexKey &now)
{
    return old.database == now.database && old.tablespace == now.tablespace && old.file == now.file;
}

} // namespace

Storage narrower(Storage storage)
{
    switch (storage) {
        case Storage::Float32:
            return Storage::Float16;
        case Storage::Float16: /* no smaller, but with the range of float32 */
            return Storage::BFloat16;
        case Storage::BFloat16:
        case Storage::Int8:
            break;
    }
    return Storage::Int8;
}

/* The victims that make room, or false. Under the lock. */
bool Mirrors::pick_victims(const OpenDevice &device, const IndexKey &key, uint64_t bytes, std::vector<Key> *victims)
{
    struct Candidate {
        Key key;
        uint64_t used_ns, bytes;
        bool own;
    };
    uint64_t now = now_ns();
    uint64_t used = device.memory_used.load();
    uint64_t promised = 0;
    for (const std::shared_ptr<Mirror> &mirror : retired_)
        if (&mirror->device == &device)
            promised += mirror->bytes;
    std::vector<Candidate> candidates;
    for (const auto &[at, entry] : table_) {
        if (at.device != &device || entry.ready == nullptr)
            continue;
        bool own = predecessor(at.index, key);
        uint64_t idle_since = entry.ready->used_ns;
        bool idle = entry.ready.use_count() == 1 && idle_since + kInUseNs <= now;
        if (own || idle)
            candidates.push_back({at, idle_since, entry.ready->bytes, own && !idle});
    }
    std::sort(candidates.begin(), candidates.end(), [](const Candidate &a, const Candidate &b) {
        return a.own != b.own ? b.own : a.used_ns < b.used_ns;
    });
    auto enough = [&] { return used - std::min(used, promised) <= device.memory_limit - bytes; };
    if (bytes > device.memory_limit)
        return false;
    for (const Candidate &candidate : candidates) {
        if (enough())
            break;
        promised += candidate.bytes;
        victims->push_back(candidate.key);
    }
    return enough();
}

bool Mirrors::reserve(OpenDevice &device, const IndexKey &key, uint64_t bytes, Reservation *reservation)
{
    constexpr uint64_t kPatienceNs = 1000000000; /* for searches to let go of what was retired */
    uint64_t deadline = now_ns() + kPatienceNs;
    for (bool picked = false;;) {
        {
            std::lock_guard lock(mutex_);
            uint64_t used = device.memory_used.load();
            if (bytes <= device.memory_limit && used <= device.memory_limit - bytes) {
                device.memory_used.fetch_add(bytes);
                *reservation = Reservation(&device, bytes);
                return true;
            }
            if (!picked) {
                std::vector<Key> victims;
                if (!pick_victims(device, key, bytes, &victims))
                    return false;
                for (const Key &victim : victims) {
                    auto found = table_.find(victim);
                    retire(found->second.ready);
                    erase_if_empty(victim);
                }
                picked = true;
            } else if (now_ns() > deadline) {
                return false;
            }
        }
        uint64_t before = device.memory_used.load();
        sweep();
        if (device.memory_used.load() == before) {
            timespec pause = {0, 1000000};
            nanosleep(&pause, nullptr);
        }
    }
}

bool Mirrors::evict_one(const OpenDevice &device, const IndexKey &except)
{
    uint64_t now = now_ns();
    {
        std::lock_guard lock(mutex_);
        auto oldest = table_.end();
        for (auto at = table_.begin(); at != table_.end(); ++at) {
            const std::shared_ptr<Mirror> &ready = at->second.ready;
            if (at->first.device != &device || ready == nullptr || ready.use_count() != 1 || at->first.index == except ||
                ready->used_ns + kInUseNs > now)
                continue;
            if (oldest == table_.end() || ready->used_ns < oldest->second.ready->used_ns)
                oldest = at;
        }
        if (oldest == table_.end())
            return false;
        Key key = oldest->first;
        retire(oldest->second.ready);
        erase_if_empty(key);
    }
    sweep();
    return true;
}

} // namespace vecgpu
