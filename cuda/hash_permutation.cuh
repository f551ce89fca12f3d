/*
 * hash_permutation.cuh: an invertible scrambling of keys, which is what makes a hash table compact.
 *
 * The low bits of the scrambled key are the number of a bucket, the others (the remainder) are stored in it. Bucket
 * number and remainder together give the key back, so a comparison of remainders within a bucket is one of keys.
 */
#pragma once

#include <cstdint>

namespace vecgpu::cuda {

/*
 * Feistel network over keys of `bits` bits: halves of equal size (or one bit apart) are changed in turn by a function of
 * the other one. Every round is its own inverse whatever the function is.
 */
template <class Key>
struct Permutation {
    static constexpr int kRounds = 3;

    uint32_t low_bits, low_mask, high_mask;
    uint32_t seed[kRounds];

    static Permutation make(uint32_t bits, uint64_t seed)
    {
        Permutation p;
        p.low_bits = (bits + 1) / 2;
        p.low_mask = mask_of(p.low_bits);
        p.high_mask = mask_of(bits - p.low_bits);
        for (uint32_t &s : p.seed) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            s = uint32_t(seed >> 32);
        }
        return p;
    }

    __host__ __device__ __forceinline__ Key apply(Key key) const
    {
        uint32_t low = uint32_t(key) & low_mask, high = uint32_t(key >> low_bits);
        high ^= round(low, seed[0]) & high_mask;
        low ^= round(high, seed[1]) & low_mask;
        high ^= round(low, seed[2]) & high_mask;
        return Key(Key(high) << low_bits) | low;
    }

    __host__ __device__ __forceinline__ Key invert(Key scrambled) const
    {
        uint32_t low = uint32_t(scrambled) & low_mask, high = uint32_t(scrambled >> low_bits);
        high ^= round(low, seed[2]) & high_mask;
        low ^= round(high, seed[1]) & low_mask;
        high ^= round(low, seed[0]) & high_mask;
        return Key(Key(high) << low_bits) | low;
    }

private:
    static uint32_t mask_of(uint32_t bits) { return bits >= 32 ? ~0u : (1u << bits) - 1; }

    static __host__ __device__ __forceinline__ uint32_t round(uint32_t half, uint32_t seed)
    {
        uint32_t x = (half + seed) * 0x9E3779B1u;
        x ^= x >> 16;
        x *= 0x85EBCA6Bu;
        return x ^ (x >> 15);
    }
};

} // namespace vecgpu::cuda
