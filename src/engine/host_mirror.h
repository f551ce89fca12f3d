/*
 * host_mirror.h: the memory of a mirror on the host device.
 *
 * A mirror is one array a region (Vectors, Links, Slots, Upper), record i at i * record_bytes, as device.h lays down. The arrays
 * have their full capacity from the start but are anonymous mappings: what was never written takes no memory.
 *
 * Searches run beside writes. What keeps that defined:
 * - Links, Slots and Upper are read and written word by word with relaxed atomics, so a reader sees for each word some value that was
 *   written there (core/graph_store.h does the same). Records that change may be seen half old, half new: links are hints.
 * - Vectors are plain memory. Those of committed nodes are never written again, and commit() releases what came before it.
 * - The state is a seqlock: a search gets all of one commit, and readers share the cache line without writing to it.
 */
#pragma once

#include "engine/device.h"

#include <atomic>
#include <cstring>

namespace vecgpu {

/* Records of one region. */
class RecordArray {
public:
    RecordArray() = default;
    RecordArray(const RecordArray &) = delete;
    RecordArray &operator=(const RecordArray &) = delete;
    ~RecordArray();

    /* Room for `records` of `record_bytes` (a multiple of 2), zero. False: no memory. Once. */
    bool map(uint32_t records, uint32_t record_bytes);

    /* What map() reserves: whole pages. */
    static uint64_t bytes(uint32_t records, uint32_t record_bytes);

    uint32_t records() const { return records_; }
    uint32_t record_bytes() const { return record_bytes_; }
    const uint8_t *at(uint32_t record) const { return data_ + uint64_t(record) * record_bytes_; }

    /* Where nobody reads yet: plain copy. */
    void write_private(uint32_t first, uint32_t count, const void *records)
    {
        if (count > 0)
            memcpy(data_ + uint64_t(first) * record_bytes_, records, uint64_t(count) * record_bytes_);
    }

    void write_shared(uint32_t first, uint32_t count, const void *records);

    /* One record that may be written meanwhile. */
    void read_shared(uint32_t record, void *out) const
    {
        if (unit_ == 8)
            load<uint64_t>(at(record), out, record_bytes_);
        else if (unit_ == 4)
            load<uint32_t>(at(record), out, record_bytes_);
        else
            load<uint16_t>(at(record), out, record_bytes_);
    }

    /* Its first four bytes, at least. Not for units of 2. */
    uint32_t read_first(uint32_t record) const
    {
        uint8_t bytes[8];
        if (unit_ == 8)
            load<uint64_t>(at(record), bytes, 8);
        else
            load<uint32_t>(at(record), bytes, 4);
        uint32_t value;
        memcpy(&value, bytes, sizeof value);
        return value;
    }

private:
    template <class Word>
    static void load(const uint8_t *from, void *to, uint32_t bytes)
    {
        const Word *word = reinterpret_cast<const Word *>(from);
        uint8_t *out = static_cast<uint8_t *>(to);
        for (uint32_t i = 0; i < bytes; i += sizeof(Word), word++) {
            Word value = __atomic_load_n(word, __ATOMIC_RELAXED);
            memcpy(out + i, &value, sizeof value);
        }
    }

    template <class Word>
    static void store(uint8_t *to, const void *from, uint64_t bytes)
    {
        Word *word = reinterpret_cast<Word *>(to);
        const uint8_t *in = static_cast<const uint8_t *>(from);
        for (uint64_t i = 0; i < bytes; i += sizeof(Word), word++) {
            Word value;
            memcpy(&value, in + i, sizeof value);
            __atomic_store_n(word, value, __ATOMIC_RELAXED);
        }
    }

    uint8_t *data_ = nullptr;
    uint64_t mapped_ = 0;
    uint32_t records_ = 0, record_bytes_ = 0;
    uint32_t unit_ = 2; /* of the relaxed accesses: the largest of 8, 4, 2 that divides a record, the same for all */
};

/*
 * The committed state. read() gets the words with acquire, so a reader that saw any word of a commit also sees that the
 * sequence was odd before it: no fence is needed (which ThreadSanitizer would not understand).
 */
class SharedState {
public:
    SharedState() { write(MirrorState{0, 0, kNone, 0, 0, 0}); }

    MirrorState read() const;
    void write(const MirrorState &state); /* one thread at a time */

private:
    static constexpr int kWords = sizeof(MirrorState) / sizeof(uint32_t);
    static_assert(sizeof(MirrorState) % sizeof(uint32_t) == 0);

    std::atomic<uint32_t> sequence_{0};
    std::atomic<uint32_t> words_[kWords] = {};
};

struct HostMirror {
    MirrorShape shape;
    RecordArray vectors, links, slots, upper;
    SharedState state;

    /* False: no memory. */
    bool create(const MirrorShape &of);

    /* Null for a region that a mirror does not have. */
    RecordArray *region(Region region);

    static uint64_t bytes(const MirrorShape &shape);
};

} // namespace vecgpu
