/*
 * memory.h: the caller's memory, and the plain arrays that grow in it.
 *
 * PostgreSQL-free. Everything here is trivially destructible: the caller may longjmp past it and free wholesale.
 */
#pragma once

#include "core/types.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <type_traits>

namespace vecgpu {

/* Caller's memory. allocate() must not return null (it may jump out); nothing is freed one by one except by release(). */
struct Allocator {
    void *context;
    void *(*allocate)(void *context, size_t bytes);
    void (*release)(void *context, void *pointer);
};

template <class T>
T *allocate_array(const Allocator &memory, size_t count)
{
    static_assert(std::is_trivially_destructible_v<T>);
    return static_cast<T *>(memory.allocate(memory.context, (count ? count : 1) * sizeof(T)));
}

/*
 * A node with its key as one integer: the key's bits made order-preserving in the upper half, the slot in the lower. So
 * integer order is (key, slot) order: ties break by slot, and a candidate costs 8 bytes.
 */
using Packed = uint64_t;

inline Packed pack(float key, uint32_t slot)
{
    uint32_t bits;
    key += 0.0f; /* -0 and 0 are one key */
    memcpy(&bits, &key, sizeof bits);
    bits = key != key ? UINT32_MAX : bits & 0x80000000 ? ~bits : bits | 0x80000000;
    return Packed(bits) << 32 | slot;
}

inline uint32_t slot_of(Packed packed)
{
    return uint32_t(packed);
}

inline float key_of(Packed packed)
{
    uint32_t bits = uint32_t(packed >> 32);
    bits = bits & 0x80000000 ? bits & 0x7fffffff : ~bits;
    float key;
    memcpy(&key, &bits, sizeof key);
    return key;
}

/* Min-heap whose new entries wait unsorted until the smallest is asked for. */
class LazyHeap {
public:
    void init(size_t capacity, const Allocator &memory)
    {
        data_ = allocate_array<Packed>(memory, capacity);
        capacity_ = capacity;
        size_ = heaped_ = 0;
    }

    size_t size() const { return size_; }

    void reserve(size_t capacity, const Allocator &memory)
    {
        if (capacity <= capacity_)
            return;
        Packed *larger = allocate_array<Packed>(memory, capacity);
        memcpy(larger, data_, size_ * sizeof(Packed));
        memory.release(memory.context, data_);
        data_ = larger;
        capacity_ = capacity;
    }

    void push(Packed entry, const Allocator &memory)
    {
        if (size_ == capacity_)
            reserve(capacity_ * 2 + 64, memory);
        data_[size_++] = entry;
    }

    /* Not empty. */
    Packed top()
    {
        settle();
        return data_[0];
    }

    Packed pop()
    {
        settle();
        std::pop_heap(data_, data_ + size_, std::greater<Packed>());
        heaped_ = --size_;
        return data_[size_];
    }

    /* Everything goes over to `other`. */
    void move_to(LazyHeap &other, const Allocator &memory)
    {
        other.reserve(other.size_ + size_, memory);
        memcpy(other.data_ + other.size_, data_, size_ * sizeof(Packed));
        other.size_ += size_;
        size_ = heaped_ = 0;
    }

    void release(const Allocator &memory) { memory.release(memory.context, data_); }

private:
    void settle()
    {
        if (size_ - heaped_ > heaped_ / 2) {
            std::make_heap(data_, data_ + size_, std::greater<Packed>());
            heaped_ = size_;
        }
        while (heaped_ < size_)
            std::push_heap(data_, data_ + ++heaped_, std::greater<Packed>());
    }

    Packed *data_;
    size_t size_, heaped_, capacity_;
};

/*
 * The nearest candidates in ascending order, each open (not expanded yet) or not: result set W and candidate set C of
 * SEARCH-LAYER in one array. For the few hundred entries of a beam, moving the tail of an array beats a heap, and the next
 * node to expand is simply the first open one.
 */
class CandidateList {
public:
    /* False if there is no memory, with an allocator that says so. */
    bool init(uint32_t capacity, const Allocator &memory)
    {
        room_ = 2 * size_t(capacity) + 16;
        entries_ = allocate_array<Packed>(memory, room_);
        open_ = allocate_array<uint8_t>(memory, room_);
        clear();
        return entries_ && open_;
    }

    void clear() { head_ = end_ = first_open_ = 0; }

    /* Room for `capacity` entries from here on. */
    void reserve(uint32_t capacity, const Allocator &memory)
    {
        size_t room = 2 * size_t(capacity) + 16;
        if (room <= room_)
            return;
        compact();
        Packed *entries = allocate_array<Packed>(memory, room);
        uint8_t *open = allocate_array<uint8_t>(memory, room);
        memcpy(entries, entries_, end_ * sizeof(Packed));
        memcpy(open, open_, end_);
        release(memory);
        entries_ = entries;
        open_ = open;
        room_ = room;
    }

    uint32_t size() const { return uint32_t(end_ - head_); }
    Packed operator[](uint32_t i) const { return entries_[head_ + i]; }
    Packed last() const { return entries_[end_ - 1]; }
    bool last_is_open() const { return open_[end_ - 1]; }

    /* Index of the first open entry; size() if none. */
    uint32_t first_open()
    {
        while (first_open_ < end_ && !open_[first_open_])
            first_open_++;
        return uint32_t(first_open_ - head_);
    }

    void close(uint32_t i) { open_[head_ + i] = 0; }

    void reopen_all()
    {
        memset(open_ + head_, 1, end_ - head_);
        first_open_ = head_;
    }

    /* At most `capacity` of init() entries may be held. */
    void insert(Packed entry, bool open)
    {
        if (end_ == room_)
            compact();
        size_t at = std::lower_bound(entries_ + head_, entries_ + end_, entry) - entries_;
        memmove(entries_ + at + 1, entries_ + at, (end_ - at) * sizeof(Packed));
        memmove(open_ + at + 1, open_ + at, end_ - at);
        entries_[at] = entry;
        open_[at] = open;
        end_++;
        if (at < first_open_)
            first_open_ = open ? at : first_open_ + 1;
    }

    void pop_first()
    {
        head_++;
        if (first_open_ < head_)
            first_open_ = head_;
    }

    void pop_last()
    {
        end_--;
        if (first_open_ > end_)
            first_open_ = end_;
    }

    void release(const Allocator &memory)
    {
        if (entries_)
            memory.release(memory.context, entries_);
        if (open_)
            memory.release(memory.context, open_);
    }

private:
    void compact()
    {
        memmove(entries_, entries_ + head_, (end_ - head_) * sizeof(Packed));
        memmove(open_, open_ + head_, end_ - head_);
        end_ -= head_;
        first_open_ -= head_;
        head_ = 0;
    }

    Packed *entries_;
    uint8_t *open_;
    size_t head_, end_, first_open_, room_;
};

static_assert(std::is_trivially_destructible_v<LazyHeap> && std::is_trivially_destructible_v<CandidateList>);

} // namespace vecgpu
