/*
 * keys.cuh: the order of hits, as integers.
 *
 * A key (distance) and a slot are one 64-bit word, the key's bits made order-preserving above the slot: integer order
 * is (key, slot) order, so ties break by slot everywhere and for free. Same rule as pack() of core/memory.h.
 */
#pragma once

#include <cstdint>

namespace vecgpu::cuda {

using Word = unsigned long long; /* what atomicMin() and friends take */

constexpr uint32_t kFullWarp = 0xffffffff;
constexpr Word kNoWord = ~0ull;            /* greater than every hit */
constexpr uint32_t kNanOrder = 0xffffffff; /* NaN comes after infinity; no kernel selects it */
constexpr uint32_t kInfOrder = 0xff800000;

/* Order-preserving bits of a float: -inf .. inf, then NaN. Both zeros are one. */
__host__ __device__ __forceinline__ uint32_t order_of(float key)
{
    union {
        float f;
        uint32_t u;
    } bits;
    bits.f = key + 0.0f;
    return key != key ? kNanOrder : bits.u & 0x80000000u ? ~bits.u : bits.u | 0x80000000u;
}

__host__ __device__ __forceinline__ float key_of_order(uint32_t order)
{
    union {
        float f;
        uint32_t u;
    } bits;
    bits.u = order & 0x80000000u ? order & 0x7fffffffu : ~order;
    return bits.f;
}

__host__ __device__ __forceinline__ Word word_of(float key, uint32_t slot)
{
    return static_cast<Word>(order_of(key)) << 32 | slot;
}

__host__ __device__ __forceinline__ uint32_t slot_of_word(Word word)
{
    return static_cast<uint32_t>(word);
}

__host__ __device__ __forceinline__ float key_of_word(Word word)
{
    return key_of_order(static_cast<uint32_t>(word >> 32));
}

} // namespace vecgpu::cuda
