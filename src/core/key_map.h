/*
 * key_map.h: the distances that one insertion has computed.
 */
#pragma once

#include "core/memory.h"

namespace vecgpu {

/* Slot -> distance to the row that is being inserted: the visited set of all layers, and every distance once computed. */
class KeyMap {
public:
    bool init(size_t capacity, const Allocator &memory)
    {
        capacity_ = 64;
        while (capacity_ < capacity)
            capacity_ *= 2;
        table_ = allocate_array<uint64_t>(memory, capacity_);
        if (table_)
            clear();
        return table_ != nullptr;
    }

    void clear()
    {
        memset(table_, 0xff, capacity_ * sizeof(uint64_t));
        size_ = 0;
    }

    /* Room for n more without moving anything; at most half full. */
    bool reserve(size_t n, const Allocator &memory)
    {
        while (size_ + n > capacity_ / 2)
            if (!grow(memory))
                return false;
        return true;
    }

    /* Position of the new slot, whose key is to be set; -1 if it is there already. */
    int64_t insert(uint32_t slot)
    {
        size_t i = home(slot);
        for (; table_[i] != kFree; i = (i + 1) & (capacity_ - 1))
            if (uint32_t(table_[i] >> 32) == slot)
                return -1;
        table_[i] = uint64_t(slot) << 32;
        size_++;
        return int64_t(i);
    }

    void set(int64_t position, float key)
    {
        uint32_t bits;
        memcpy(&bits, &key, sizeof bits);
        table_[position] = (table_[position] & 0xffffffff00000000) | bits;
    }

    bool find(uint32_t slot, float *key) const
    {
        for (size_t i = home(slot); table_[i] != kFree; i = (i + 1) & (capacity_ - 1)) {
            if (uint32_t(table_[i] >> 32) == slot) {
                uint32_t bits = uint32_t(table_[i]);
                memcpy(key, &bits, sizeof bits);
                return true;
            }
        }
        return false;
    }

    void release(const Allocator &memory)
    {
        if (table_)
            memory.release(memory.context, table_);
    }

private:
    static constexpr uint64_t kFree = UINT64_MAX;

    size_t home(uint32_t slot) const { return (slot * uint64_t(0x9e3779b97f4a7c15) >> 32) & (capacity_ - 1); }

    bool grow(const Allocator &memory)
    {
        uint64_t *larger = allocate_array<uint64_t>(memory, 2 * capacity_);
        if (!larger)
            return false;
        memset(larger, 0xff, 2 * capacity_ * sizeof(uint64_t));
        size_t old_capacity = capacity_;
        capacity_ *= 2;
        for (size_t j = 0; j < old_capacity; j++) {
            if (table_[j] == kFree)
                continue;
            size_t i = home(uint32_t(table_[j] >> 32));
            while (larger[i] != kFree)
                i = (i + 1) & (capacity_ - 1);
            larger[i] = table_[j];
        }
        memory.release(memory.context, table_);
        table_ = larger;
        return true;
    }

    uint64_t *table_;
    size_t capacity_, size_;
};

static_assert(std::is_trivially_destructible_v<KeyMap>);

} // namespace vecgpu
