/*
 * hash_shared.cuh: small compact sets in shared memory, find-or-put by one thread an id: for graph searches.
 *
 * SharedBuckets: buckets of 8 slots of 16 bits. Ids whose bucket is full are not kept (Full).
 * SharedIceberg: the same as a front yard, and behind it two of a few buckets of 4 whole ids, for those.
 *
 * The permutation is one shift, one multiplication: in the product, moved to the top of a word, lie the number of the bucket,
 * the 15 bits of the remainder, and a bit that is always set, so that a slot is not zero. Why there are never two copies
 * of an id: hash_iceberg.cuh; here too a thread changes a slot only if it saw all earlier ones of its one probing order
 * occupied by others.
 */
#pragma once

#include <cstdint>

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

/* kBucketBits: log2 of the number of buckets. `table` has kWords words, zero at first. */
template <int kBucketBits>
struct SharedBuckets {
    static constexpr uint32_t kWords = 4u << kBucketBits;
    static constexpr int kIdBits = kBucketBits + 15; /* of ids that it can hold */
    static_assert(kBucketBits >= 1 && kBucketBits <= 16);

    static __device__ __forceinline__ Put put(uint32_t *table, uint32_t id)
    {
        const uint32_t scrambled = scramble(id);
        return put(table, scrambled, load_shared(bucket_of(table, scrambled)));
    }

    /* In two parts, so that several buckets can be read together. */
    static __device__ __forceinline__ uint32_t scramble(uint32_t id)
    {
        constexpr uint32_t kFactor = 0x9E3779B1u << (32 - kIdBits), kOccupied = 1u << (31 - kIdBits);
        return (id ^ (id >> (kIdBits / 2))) * kFactor + kOccupied;
    }

    static __device__ __forceinline__ uint32_t *bucket_of(uint32_t *table, uint32_t scrambled)
    {
        return table + (scrambled >> (32 - kBucketBits)) * 4;
    }

    /* `b`: what the bucket held a moment ago. What others have put since makes the compare-and-swap fail. */
    static __device__ __forceinline__ Put put(uint32_t *table, uint32_t scrambled, const uint4 &b)
    {
        const uint32_t pair = __byte_perm(scrambled >> (16 - kBucketBits), 0, 0x1010);
        uint32_t *bucket = bucket_of(table, scrambled);
        const uint32_t nearest = __vminu2(__vminu2(b.x ^ pair, b.y ^ pair), __vminu2(b.z ^ pair, b.w ^ pair));
        if (zero_half(nearest))
            return Put::Seen;
        if (upper_occupied(b.w))
            return Put::Full;
        /* The first word with a free half. */
        uint32_t now = b.w, word = 3;
        if (!upper_occupied(b.z)) {
            now = b.z;
            word = 2;
        }
        if (!upper_occupied(b.y)) {
            now = b.y;
            word = 1;
        }
        if (!upper_occupied(b.x)) {
            now = b.x;
            word = 0;
        }
        /* What a failed compare-and-swap returns tells what others have put since: no need to read the bucket again. */
        for (;;) {
            const uint32_t got = atomicCAS(bucket + word, now, now ? now | (pair & 0xffff0000u) : pair & 0xffffu);
            if (got == now)
                return Put::New;
            if (zero_half(got ^ pair))
                return Put::Seen;
            now = got;
            if (upper_occupied(got)) {
                if (++word == 4)
                    return Put::Full;
                now = 0;
            }
        }
    }

private:
    static __device__ __forceinline__ bool upper_occupied(uint32_t word) { return word >= 0x10000u; }

    /* Whether a 16-bit half of x is zero. */
    static __device__ __forceinline__ bool zero_half(uint32_t x) { return (x - 0x10001u) & ~x & 0x80008000u; }
};

template <int kFrontBits, int kBackBits>
struct SharedIceberg {
    using Front = SharedBuckets<kFrontBits>;
    static constexpr uint32_t kWords = Front::kWords + (4u << kBackBits);

    static __device__ __forceinline__ Put put(uint32_t *table, uint32_t id)
    {
        const Put front = Front::put(table, id);
        return front == Put::Full ? put_back(table + Front::kWords, id) : front;
    }

private:
    /* Not inlined: that halved the rate also of searches that never come here. */
    static __device__ __noinline__ Put put_back(uint32_t *table, uint32_t id)
    {
        const uint32_t scrambled = (id ^ (id >> 15)) * 0x85EBCA6Bu, tag = id + 1;
        uint32_t *left = table + (scrambled >> (32 - kBackBits)) * 4;
        uint32_t *right = table + (scrambled << kBackBits >> (32 - kBackBits)) * 4;
        for (;;) {
            const uint4 a = load_shared(left), b = load_shared(right);
            if (a.x == tag || a.y == tag || a.z == tag || a.w == tag || b.x == tag || b.y == tag || b.z == tag ||
                b.w == tag)
                return Put::Seen;
            const uint32_t at_left = first_free(a), at_right = first_free(b);
            if (at_left >= at_right && at_right == 4)
                return Put::Full;
            if (atomicCAS(at_left < at_right ? left + at_left : right + at_right, 0u, tag) == 0u)
                return Put::New;
        }
    }

    static __device__ __forceinline__ uint32_t first_free(const uint4 &b)
    {
        return b.x == 0 ? 0 : b.y == 0 ? 1 : b.z == 0 ? 2 : b.w == 0 ? 3 : 4;
    }
};

} // namespace vecgpu::cuda
