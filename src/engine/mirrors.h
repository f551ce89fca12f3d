/*
 * mirrors.h: which mirrors there are, who may use them, and what must go when memory is short.
 *
 * Lock: one mutex, held for look-ups and bookkeeping only, never across a call of a device. A mirror that leaves the table is
 * retired: it dies with its last holder, or at the next sweep(), in a thread that can afford to free device memory.
 */
#pragma once

#include <memory>
#include <mutex>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/call_clock.h"
#include "engine/mirror.h"

namespace vecgpu {

/* One mirror, held for a search: it stays as long as this does. */
struct Pin {
    std::shared_ptr<Mirror> mirror;
    uint32_t nodes = 0; /* committed when it was pinned: a search sees these at least */
    uint32_t twins = 0;
    uint64_t epoch = 0;
    std::shared_ptr<const FormModel> form;
    Status absent = Status::Ok; /* no mirror: Cold, Busy while one is loaded, or why the last load failed, for a while */
};

class Mirrors {
public:
    /* For a search. No mirror: the reason in `absent`. */
    Pin pin(const IndexKey &key, const OpenDevice &device);

    /*
     * LoadBegin of a checked Meta. Ok fills response.begin and leaves a load that find_load() knows. Current, Busy and NoMemory
     * are answers too. Not more than one second of waiting for memory that searches still hold.
     */
    Status begin(uint32_t session, const LoadBeginRequest &request, const Meta &meta, const char *path, OpenDevice &device,
                 CallClock &clock, Response *response);

    /* Null: unknown, or cancelled. */
    std::shared_ptr<Load> find_load(uint64_t id, uint32_t session);

    /*
     * How the mirror is searched once this load has been committed; null: it is to be measured. What was measured of an index stays as
     * long as the engine, so that a mirror that was evicted comes back with the same choice (law 10), until the index has half or twice as many nodes.
     */
    std::shared_ptr<const FormModel> known_form(const Load &load);
    void remember_form(const Load &load);

    /*
     * The end of a load whose commit is done on the device, or that is given up. What was evicted meanwhile is not brought
     * back: Cold. *bytes: of the mirror. Older generations of the index are retired.
     */
    Status end(const std::shared_ptr<Load> &load, bool committed, uint64_t *bytes);

    /* All generations of an index, on all devices; their loads are cancelled. Returns the bytes. */
    uint64_t evict(const IndexKey &key);

    /* The least recently used one that nobody holds, so that a device that is out of memory may try again. */
    bool evict_one(const OpenDevice &device, const IndexKey &except);

    /*
     * A load that failed would fail again if it were tried at once: for kFailedNs searches are told why, and nobody is sent to load. Only what
     * an attempt cannot change is noted (memory, device).
     */
    void note_failure(const IndexKey &key, const OpenDevice &device, Status status);

    /* The session is gone: its loads are cancelled. */
    void drop_session(uint32_t session);

    /* The vectors of this index do not fit into this storage: the next mirror will not try it. */
    void refuse_storage(const IndexKey &key, Storage storage);

    /* Frees what was retired and is no longer held. */
    void sweep();

    /* Cancels loads that nothing was written to for kLoadForgottenNs. Their sessions are told so when they come back. */
    void cancel_forgotten();

    /* Evicts mirrors whose file is gone or empty: dropped, truncated, rewritten. */
    void evict_vanished();

    uint32_t list(const ListRequest &request, std::span<MirrorEntry> out, uint32_t *total);
    uint32_t count(const OpenDevice &device);

private:
    struct Key {
        IndexKey index;
        const OpenDevice *device;
        bool operator==(const Key &) const = default;
    };
    struct KeyHash {
        size_t operator()(const Key &key) const;
    };
    /* Of a mirror that can come again: rows of this type on this device. */
    struct FormKey {
        uint64_t incarnation;
        Storage storage;
        const OpenDevice *device;
        bool operator==(const FormKey &) const = default;
    };
    struct FormKeyHash {
        size_t operator()(const FormKey &key) const;
    };
    struct Entry {
        std::shared_ptr<Mirror> ready;
        std::shared_ptr<Load> load;
    };
    using Table = std::unordered_map<Key, Entry, KeyHash>;

    Status create(const std::shared_ptr<Load> &load, const Meta &meta, CallClock &clock, char *error);
    bool reserve(OpenDevice &device, const IndexKey &key, uint64_t bytes, Reservation *reservation);
    bool pick_victims(const OpenDevice &device, const IndexKey &key, uint64_t bytes, std::vector<Key> *victims);
    bool storage_refused(uint64_t incarnation, Storage storage) const;
    void cancel(Entry &entry);
    void forget(const std::shared_ptr<Load> &load);
    void retire(std::shared_ptr<Mirror> &mirror);
    void erase_if_empty(const Key &key);
    uint64_t evict_matching(const IndexKey &key, bool any_incarnation, uint32_t below_generation);

    std::mutex mutex_;
    Table table_;
    std::unordered_map<uint64_t, std::shared_ptr<Load>> loads_;
    std::vector<std::shared_ptr<Mirror>> retired_;
    struct Failure {
        Status status;
        uint64_t until_ns;
    };
    std::unordered_map<Key, Failure, KeyHash> failed_;
    std::unordered_map<uint64_t, uint32_t> refused_; /* incarnation: bits 1 << Storage */
    std::unordered_map<FormKey, std::shared_ptr<const FormModel>, FormKeyHash> forms_;
    uint64_t last_load_ = 0;
};

/* A mirror that was searched within this time does not make room for another index. */
constexpr uint64_t kInUseNs = 1000000000;

constexpr uint64_t kFailedNs = 5000000000;

/* So long may a session take from one write to the next. */
constexpr uint64_t kLoadForgottenNs = 30000000000;

/* A storage that takes less than this one, or the same: no further. */
Storage narrower(Storage storage);

} // namespace vecgpu
