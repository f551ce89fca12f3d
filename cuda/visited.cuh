/*
 * visited.cuh: the set of nodes that a graph search has met, in shared memory.
 *
 * Buckets of 16 bytes, one 16-byte load and mostly at most one compare-and-swap a find-or-put, by one thread. Compact
 * (quotienting, as in Hegeman et al., "Compact Parallel Hash Tables on the GPU", Euro-Par 2024): hash_shared.cuh has the
 * sets of 8 slots of 16 bits a bucket, exact for ids below 2^(15 + log2(buckets)). Larger ids take 4 slots of 32 bits.
 *
 * Slots fill from the left and are never emptied before the whole set is, so after a failed compare-and-swap only what
 * came since has to be looked at. An id whose bucket is full stays untracked: its key may be computed twice, and the
 * lists drop the double. So the answer of a search does not depend on the size of its set.
 */
#pragma once

#include "hash_shared.cuh"

namespace vecgpu::cuda {

/* kBucketBits: log2 of the number of buckets. `table` has 4 << kBucketBits words, zero at first. */
template <int kBucketBits>
struct VisitedSet {
    using Narrow = SharedBuckets<kBucketBits>;
    static constexpr uint32_t kWords = Narrow::kWords;

    /* Whether ids below `nodes` fit into 16-bit slots. */
    static __host__ __device__ bool narrow(uint32_t nodes) { return nodes <= 1u << Narrow::kIdBits; }

    static __device__ __forceinline__ Put put(uint32_t *table, uint32_t id, bool is_narrow)
    {
        return is_narrow ? Narrow::put(table, id) : put_wide(table, id);
    }

    /*
     * Two or four ids of a thread, those below `end`: two buckets are read together. What another id has changed
     * meanwhile in a bucket, one of the same thread included, fails the compare-and-swap.
     */
    template <int kIds>
    static __device__ __forceinline__ void put_ids(uint32_t *table, const uint32_t (&id)[kIds], uint32_t end,
                                                   bool is_narrow, Put (&put)[kIds])
    {
        static_assert(kIds % 2 == 0);
        if (is_narrow) {
#pragma unroll
            for (int i = 0; i < kIds; i += 2) {
                const uint32_t g = Narrow::scramble(id[i]), h = Narrow::scramble(id[i + 1]);
                const uint4 b = load_shared(Narrow::bucket_of(table, g)), c = load_shared(Narrow::bucket_of(table, h));
                put[i] = id[i] < end ? Narrow::put(table, g, b) : Put::Seen;
                put[i + 1] = id[i + 1] < end ? Narrow::put(table, h, c) : Put::Seen;
            }
        } else {
#pragma unroll
            for (int i = 0; i < kIds; i++)
                put[i] = id[i] < end ? put_wide(table, id[i]) : Put::Seen;
        }
    }

private:
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
};

} // namespace vecgpu::cuda
