/*
 * visited.cuh: the set of nodes that a graph search has met, in shared memory.
 *
 * Buckets of 16 bytes, one 16-byte load and at most one compare-and-swap a find-or-put, by one thread. Compact
 * (quotienting, as in Hegeman et al., "Compact Parallel Hash Tables on the GPU", Euro-Par 2024): an invertible
 * permutation of the id gives bucket number and remainder, and only the remainder is stored: 8 slots of 16 bits a
 * bucket, exact for ids below 2^(15 + log2(buckets)). Larger ids take 4 slots of 32 bits.
 *
 * Slots fill from the left and are never emptied before the whole set is, so a failed compare-and-swap means: look
 * again. An id whose bucket is full stays untracked: its key may be computed twice, and the lists drop the double. So
 * the answer of a search does not depend on the size of its set.
 */
#pragma once

#include "keys.cuh"

namespace vecgpu::cuda {

enum class Put : int { New = 0, Seen = 1, Full = 2 };

__device__ __forceinline__ uint4 load_shared(const uint32_t *p)
{
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3},[%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(p)))
                 : "memory");
    return v;
}

/* kBucketBits: log2 of the number of buckets. `table` has 4 << kBucketBits words, zero at first. */
template <int kBucketBits>
struct VisitedSet {
    static constexpr uint32_t kWords = 4u << kBucketBits;
    static constexpr uint32_t kNarrowBits = kBucketBits + 15;

    /* Whether ids below `nodes` fit into 16-bit slots. */
    static __host__ __device__ bool narrow(uint32_t nodes) { return nodes <= 1u << kNarrowBits; }

    static __device__ __forceinline__ Put put(uint32_t *table, uint32_t id, bool is_narrow)
    {
        if (!is_narrow)
            return put_wide(table, id);
        const uint32_t h = permuted(id);
        return put_narrow(table, h, load_shared(bucket_of(table, h)));
    }

    /*
     * Four ids of a thread, those below `end`: two buckets are read together. What another id has changed meanwhile in
     * a bucket, one of the same thread included, fails the compare-and-swap.
     */
    static __device__ __forceinline__ void put_four(uint32_t *table, const uint32_t (&id)[4], uint32_t end,
                                                    bool is_narrow, Put (&put)[4])
    {
        if (is_narrow) {
#pragma unroll
            for (int i = 0; i < 4; i += 2) {
                const uint32_t g = permuted(id[i]), h = permuted(id[i + 1]);
                const uint4 b = load_shared(bucket_of(table, g)), c = load_shared(bucket_of(table, h));
                put[i] = id[i] < end ? put_narrow(table, g, b) : Put::Seen;
                put[i + 1] = id[i + 1] < end ? put_narrow(table, h, c) : Put::Seen;
            }
        } else {
#pragma unroll
            for (int i = 0; i < 4; i++)
                put[i] = id[i] < end ? put_wide(table, id[i]) : Put::Seen;
        }
    }

private:
    /* Odd multiplications and shifts of the upper half into the lower: every step can be undone. */
    static __device__ __forceinline__ uint32_t permuted(uint32_t id)
    {
        constexpr uint32_t kMask = (1u << kNarrowBits) - 1;
        uint32_t h = (id * 0x9E3779B1u) & kMask;
        h ^= h >> (kNarrowBits / 2);
        h = (h * 0x85EBCA6Bu) & kMask;
        return h ^ h >> (kNarrowBits / 2);
    }

    static __device__ __forceinline__ uint32_t *bucket_of(uint32_t *table, uint32_t h)
    {
        return table + (h >> 15) * 4;
    }

    /* `b`: what the bucket held a moment ago. */
    static __device__ __forceinline__ Put put_narrow(uint32_t *table, uint32_t h, uint4 b)
    {
        uint32_t *bucket = bucket_of(table, h);
        const uint32_t tag = (h & 0x7fff) | 0x8000, pair = tag * 0x10001u;
        for (;; b = load_shared(bucket)) {
            if (equal_half(b.x, pair) | equal_half(b.y, pair) | equal_half(b.z, pair) | equal_half(b.w, pair))
                return Put::Seen;
            /* Occupied slots have their top bit set. */
            const uint32_t used = __popc(((b.x & 0x80008000u) >> 3) | ((b.y & 0x80008000u) >> 2) |
                                         ((b.z & 0x80008000u) >> 1) | (b.w & 0x80008000u));
            if (used == 8)
                return Put::Full;
            const uint32_t word = used >> 1;
            const uint32_t old = word == 0 ? b.x : word == 1 ? b.y : word == 2 ? b.z : b.w;
            if (atomicCAS(bucket + word, old, used & 1 ? old | tag << 16 : tag) == old)
                return Put::New;
        }
    }

    static __device__ __forceinline__ Put put_wide(uint32_t *table, uint32_t id)
    {
        uint32_t h = id * 0x9E3779B1u;
        h ^= h >> 15;
        h *= 0x85EBCA6Bu;
        uint32_t *bucket = table + (h >> (32 - kBucketBits)) * 4;
        const uint32_t tag = id + 1;
        for (;;) {
            const uint4 b = load_shared(bucket);
            if (b.x == tag || b.y == tag || b.z == tag || b.w == tag)
                return Put::Seen;
            const uint32_t used = (b.x != 0) + (b.y != 0) + (b.z != 0) + (b.w != 0);
            if (used == 4)
                return Put::Full;
            if (atomicCAS(bucket + used, 0u, tag) == 0u)
                return Put::New;
        }
    }

    /* Not zero if a 16-bit half of `word` equals the half of `pair` (whose halves are equal and not zero). */
    static __device__ __forceinline__ uint32_t equal_half(uint32_t word, uint32_t pair)
    {
        const uint32_t x = word ^ pair;
        return (x - 0x10001u) & ~x & 0x80008000u;
    }
};

} // namespace vecgpu::cuda
