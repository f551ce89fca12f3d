/*
 * twins.cpp: rows with equal bytes, by an open-addressing table of (hash tag, row number).
 */
#include "core/build.h"

namespace vecgpu {

/* 64 x 64 -> 128 bit multiplication folded to 64, as in wyhash; rows are a multiple of 4 bytes. */
static uint64_t fold(uint64_t a, uint64_t b)
{
    unsigned __int128 product = static_cast<unsigned __int128>(a) * b;
    return uint64_t(product) ^ uint64_t(product >> 64);
}

static uint64_t hash_row(const char *row, size_t bytes)
{
    uint64_t h0 = 0x9e3779b97f4a7c15 ^ bytes, h1 = 0xbf58476d1ce4e5b9;
    uint64_t w[4];
    for (; bytes >= 32; bytes -= 32, row += 32) {
        memcpy(w, row, 32);
        h0 = fold(w[0] ^ h0 ^ 0xa0761d6478bd642f, w[1] ^ 0xe7037ed1a0b428db);
        h1 = fold(w[2] ^ h1 ^ 0x8ebc6af09c88c6e3, w[3] ^ 0x589965cc75374cc3);
    }
    for (; bytes >= 4; bytes -= 4, row += 4) {
        uint32_t word;
        memcpy(&word, row, 4);
        h0 = fold(h0 ^ word, 0x94d049bb133111eb);
    }
    return fold(h0 ^ 0x1d8e4e27c47d124f, h1 ^ 0xeb44accab455d165);
}

static constexpr uint64_t kFree = UINT64_MAX; /* a row number is below kNone */

static size_t home(uint64_t hash, size_t capacity)
{
    return (hash ^ hash >> 32) & (capacity - 1);
}

static uint64_t *empty_table(size_t capacity, const Allocator &memory)
{
    uint64_t *table = allocate_array<uint64_t>(memory, capacity);
    if (table)
        memset(table, 0xff, capacity * sizeof(uint64_t));
    return table;
}

bool TwinTable::init(uint32_t rows, const Allocator &memory)
{
    memory_ = memory;
    size_ = 0;
    capacity_ = 64;
    while (capacity_ < size_t(rows) + rows / 4)
        capacity_ *= 2;
    table_ = empty_table(capacity_, memory_);
    return table_ != nullptr;
}

void TwinTable::release()
{
    if (table_)
        memory_.release(memory_.context, table_);
    table_ = nullptr;
}

bool TwinTable::grow(const char *data, size_t row_size)
{
    uint64_t *larger = empty_table(2 * capacity_, memory_);
    if (!larger)
        return false;
    for (size_t j = 0; j < capacity_; j++) {
        if (table_[j] == kFree)
            continue;
        size_t at = home(hash_row(data + uint32_t(table_[j]) * row_size, row_size), 2 * capacity_);
        while (larger[at] != kFree)
            at = (at + 1) & (2 * capacity_ - 1);
        larger[at] = table_[j];
    }
    memory_.release(memory_.context, table_);
    table_ = larger;
    capacity_ *= 2;
    return true;
}

uint32_t TwinTable::find_or_add(const void *rows, size_t row_size, uint32_t i, bool *full)
{
    const char *data = static_cast<const char *>(rows);
    if (size_ + size_ / 4 >= capacity_ && !grow(data, row_size)) {
        *full = true;
        return kNone;
    }
    const char *row = data + i * row_size;
    uint64_t hash = hash_row(row, row_size);
    uint32_t tag = uint32_t(hash >> 32);
    size_t at = home(hash, capacity_);
    for (; table_[at] != kFree; at = (at + 1) & (capacity_ - 1)) {
        uint32_t other = uint32_t(table_[at]);
        if (uint32_t(table_[at] >> 32) == tag && memcmp(data + other * row_size, row, row_size) == 0)
            return other;
    }
    table_[at] = uint64_t(tag) << 32 | i;
    size_++;
    return kNone;
}

BuildStatus find_twins(const void *rows, size_t row_size, uint32_t n, uint32_t *twin_of, const Allocator &memory,
                  void (*interrupt)(void *), void *context)
{
    TwinTable table;
    if (!table.init(n, memory))
        return BuildStatus::OutOfMemory;
    bool full = false;
    for (uint32_t i = 0; i < n && !full; i++) {
        if (interrupt && i % 4096 == 0)
            interrupt(context);
        twin_of[i] = table.find_or_add(rows, row_size, i, &full);
    }
    table.release();
    return full ? BuildStatus::OutOfMemory : BuildStatus::Ok;
}

} // namespace vecgpu
