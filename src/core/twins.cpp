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

Status find_twins(const void *rows, size_t row_size, uint32_t n, uint32_t *twin_of, const Allocator &memory,
                  void (*interrupt)(void *), void *context)
{
    constexpr uint64_t kFree = UINT64_MAX; /* a row number is below kNone */
    const char *data = static_cast<const char *>(rows);
    size_t capacity = 64;
    while (capacity < size_t(n) + n / 4)
        capacity *= 2;
    uint64_t *table = allocate_array<uint64_t>(memory, capacity);
    if (!table)
        return Status::OutOfMemory;
    memset(table, 0xff, capacity * sizeof(uint64_t));
    for (uint32_t i = 0; i < n; i++) {
        if (interrupt && i % 4096 == 0)
            interrupt(context);
        const char *row = data + i * row_size;
        uint64_t hash = hash_row(row, row_size);
        uint32_t tag = uint32_t(hash >> 32);
        size_t at = (hash ^ hash >> 32) & (capacity - 1);
        twin_of[i] = kNone;
        for (; table[at] != kFree; at = (at + 1) & (capacity - 1)) {
            uint32_t other = uint32_t(table[at]);
            if (uint32_t(table[at] >> 32) == tag && memcmp(data + other * row_size, row, row_size) == 0) {
                twin_of[i] = other;
                break;
            }
        }
        if (twin_of[i] == kNone)
            table[at] = uint64_t(tag) << 32 | i;
    }
    memory.release(memory.context, table);
    return Status::Ok;
}

} // namespace vecgpu
