/*
 * hash_bucket.cuh: buckets of slots in global memory, as a tile of lanes (or one thread) sees and changes them.
 *
 * A slot is an unsigned integer of 8 to 64 bits; 0 is a free one. A bucket is read in pieces of 16 bytes, spread over the
 * lanes of a tile; one lane changes one slot by one compare-and-swap of the unit around it: 32 bits, or 64 for slots of
 * 64 bits.
 *
 * Loads and compare-and-swaps touch the same units with relaxed order at GPU scope, so each unit is read whole; the
 * units of a bucket may be read at different times. What is built on this must be right for such snapshots.
 */
#pragma once

#include <cstdint>
#include <type_traits>

namespace vecgpu::cuda {

/*
 * `kLanes` consecutive lanes of a warp that work together; all of them call. kTogether: all tiles of the warp call at once;
 * where only some do, the warp runs its tiles one after the other, which costs more than the memory does.
 */
template <int kLanes, bool kTogether>
struct Tile {
    static_assert(kLanes >= 1 && kLanes <= 16 && (kLanes & (kLanes - 1)) == 0);

    static __device__ __forceinline__ uint32_t lane() { return threadIdx.x % kLanes; }

    /* Bit i: `condition` of lane i. */
    static __device__ __forceinline__ uint32_t ballot(bool condition)
    {
        if constexpr (kLanes == 1)
            return condition;
        else
            return (__ballot_sync(members(), condition) >> first()) & kAll;
    }

    static __device__ __forceinline__ bool any(bool condition) { return ballot(condition) != 0; }

    template <class T>
    static __device__ __forceinline__ T from(T value, uint32_t lane)
    {
        if constexpr (kLanes == 1)
            return value;
        else if constexpr (sizeof(T) < 4)
            return T(__shfl_sync(members(), uint32_t(value), lane, kLanes));
        else
            return __shfl_sync(members(), value, lane, kLanes);
    }

private:
    static constexpr uint32_t kAll = (1u << kLanes) - 1;
    static __device__ __forceinline__ uint32_t first() { return threadIdx.x % 32 / kLanes * kLanes; }
    static __device__ __forceinline__ uint32_t members() { return kTogether ? ~0u : kAll << first(); }
};

/* Lanes for a bucket of kBytes: a piece each, which measured best in most tables (README has the exceptions). */
template <int kBytes>
constexpr int kTileLanes = kBytes >= 256 ? 16 : kBytes / 16;

/* 16 bytes of a bucket. The low kIgnored bits of a slot (a value beside the key) do not count in comparisons. */
template <class Slot, int kIgnored = 0>
struct Piece {
    using Unit = std::conditional_t<sizeof(Slot) == 8, uint64_t, uint32_t>;
    static constexpr int kSlotBits = 8 * sizeof(Slot);
    static constexpr int kSlots = 16 / sizeof(Slot);
    static constexpr int kUnits = 16 / sizeof(Unit);
    static constexpr int kPerUnit = sizeof(Unit) / sizeof(Slot);
    static_assert(kIgnored == 0 || kPerUnit == 1);

    Unit unit[kUnits];

    __device__ __forceinline__ void load(const Slot *p)
    {
        if constexpr (sizeof(Unit) == 8)
            asm volatile("ld.relaxed.gpu.global.v2.u64 {%0,%1},[%2];"
                         : "=l"(unit[0]), "=l"(unit[1])
                         : "l"(p)
                         : "memory");
        else
            asm volatile("ld.relaxed.gpu.global.v4.u32 {%0,%1,%2,%3},[%4];"
                         : "=r"(unit[0]), "=r"(unit[1]), "=r"(unit[2]), "=r"(unit[3])
                         : "l"(p)
                         : "memory");
    }

    __device__ __forceinline__ bool has(Slot value) const
    {
        uint32_t found = 0;
#pragma unroll
        for (int u = 0; u < kUnits; u++)
            found |= equal(u, value);
        return found != 0;
    }

    /* Number of the first slot that equals `value`; anything if there is none. */
    __device__ __forceinline__ uint32_t first(Slot value) const
    {
        uint32_t found = equal(kUnits - 1, value), at = kUnits - 1;
#pragma unroll
        for (int u = kUnits - 2; u >= 0; u--) {
            const uint32_t here = equal(u, value);
            if (here) {
                found = here;
                at = u;
            }
        }
        return kPerUnit == 1 ? at : at * kPerUnit + (__ffs(found) - 1) / kSlotBits;
    }

    __device__ __forceinline__ Unit at(uint32_t index) const
    {
        Unit value = unit[0];
#pragma unroll
        for (int u = 1; u < kUnits; u++)
            if (index == u)
                value = unit[u];
        return value;
    }

private:
    /* Not zero if a slot of the unit equals `value`; the lowest set bit lies in the first such slot. */
    __device__ __forceinline__ uint32_t equal(int u, Slot value) const
    {
        if constexpr (kPerUnit == 1) {
            return Unit(unit[u] ^ value) >> kIgnored == 0;
        } else {
            constexpr uint32_t kOnes = kSlotBits == 8 ? 0x01010101u : 0x00010001u;
            const uint32_t x = unit[u] ^ (value * kOnes);
            return (x - kOnes) & ~x & (kOnes << (kSlotBits - 1));
        }
    }
};

/*
 * A snapshot of a bucket of kSlots slots, held by a tile: piece p by lane p % kLanes. It may also be that of two buckets of
 * half the size, one after the other. Results are the same in all lanes of the tile; `Lanes` says who calls.
 */
template <class Slot, int kSlots, int kLanes, int kIgnored = 0>
struct Bucket {
    using Part = Piece<Slot, kIgnored>;
    using Unit = typename Part::Unit;
    using Together = Tile<kLanes, true>;
    using Alone = Tile<kLanes, false>;
    static constexpr int kPieces = kSlots / Part::kSlots;
    static constexpr int kOwn = kPieces / kLanes;
    static_assert(kPieces >= kLanes && kPieces <= 32);

    Part own[kOwn];

    __device__ __forceinline__ void load(const Slot *bucket)
    {
#pragma unroll
        for (int i = 0; i < kOwn; i++)
            own[i].load(bucket + (i * kLanes + Together::lane()) * Part::kSlots);
    }

    __device__ __forceinline__ void load(const Slot *left, const Slot *right)
    {
#pragma unroll
        for (int i = 0; i < kOwn; i++) {
            const uint32_t p = i * kLanes + Together::lane();
            own[i].load(p < kPieces / 2 ? left + p * Part::kSlots : right + (p - kPieces / 2) * Part::kSlots);
        }
    }

    /* Bit p: piece p has a slot that equals `left`, or `right` if it lies in the second half. */
    template <class Lanes>
    __device__ __forceinline__ uint32_t having(Slot left, Slot right) const
    {
        uint32_t pieces = 0;
#pragma unroll
        for (int i = 0; i < kOwn; i++)
            pieces |= Lanes::ballot(own[i].has(i * kLanes + Together::lane() < kPieces / 2 ? left : right))
                      << (i * kLanes);
        return pieces;
    }
    template <class Lanes>
    __device__ __forceinline__ uint32_t having(Slot value) const
    {
        return having<Lanes>(value, value);
    }

    template <class Lanes>
    __device__ __forceinline__ bool has(Slot left, Slot right) const
    {
        bool found = false;
#pragma unroll
        for (int i = 0; i < kOwn; i++)
            found |= own[i].has(i * kLanes + Together::lane() < kPieces / 2 ? left : right);
        return Lanes::any(found);
    }
    template <class Lanes>
    __device__ __forceinline__ bool has(Slot value) const
    {
        return has<Lanes>(value, value);
    }

    /* The first slot that equals `value`, in the first of the pieces given as bits (not none). */
    template <class Lanes>
    __device__ __forceinline__ uint32_t first(uint32_t pieces, Slot value) const
    {
        const uint32_t p = __ffs(pieces) - 1;
        return p * Part::kSlots + Lanes::from(piece(p).first(value), p % kLanes);
    }

    template <class Lanes>
    __device__ __forceinline__ Slot at(uint32_t slot) const
    {
        const uint32_t p = slot / Part::kSlots, i = slot % Part::kSlots;
        const Unit unit = piece(p).at(i / Part::kPerUnit);
        return Lanes::from(Slot(unit >> (i % Part::kPerUnit * Part::kSlotBits)), p % kLanes);
    }

    /*
     * If `wanted`, puts `value` where the snapshot has `old`, at slot `slot` of it, which is slot `slot` - kSkipped of
     * `bucket`; false if its unit has changed since.
     */
    template <class Lanes, uint32_t kSkipped = 0>
    __device__ __forceinline__ bool swap(Slot *bucket, uint32_t slot, Slot old, Slot value, bool wanted = true) const
    {
        const uint32_t p = slot / Part::kSlots, i = slot % Part::kSlots;
        bool done = false;
        if (wanted && Lanes::lane() == p % kLanes) {
            const Unit before = piece(p).at(i / Part::kPerUnit);
            const Unit change = Unit(Slot(old ^ value)) << (i % Part::kPerUnit * Part::kSlotBits);
            done =
                compare_and_swap(bucket + (slot - kSkipped) / Part::kPerUnit * Part::kPerUnit, before, before ^ change);
        }
        return Lanes::any(done);
    }

    /* The first free slot of the pieces given as bits (not none), as with first() and swap(), becomes `value`. */
    template <class Lanes>
    __device__ __forceinline__ bool fill(Slot *bucket, uint32_t pieces, Slot value, bool wanted) const
    {
        const uint32_t p = __ffs(pieces) - 1;
        bool done = false;
        if (wanted && Lanes::lane() == p % kLanes) {
            const Part part = piece(p);
            const uint32_t i = part.first(0);
            const Unit before = part.at(i / Part::kPerUnit);
            done = compare_and_swap(bucket + p * Part::kSlots + i / Part::kPerUnit * Part::kPerUnit, before,
                                    before | Unit(value) << (i % Part::kPerUnit * Part::kSlotBits));
        }
        return Lanes::any(done);
    }

private:
    /* Piece p in the lane that holds it, another one in the others. */
    __device__ __forceinline__ Part piece(uint32_t p) const
    {
        Part part = own[0];
#pragma unroll
        for (int i = 1; i < kOwn; i++)
            if (p / kLanes == i)
                part = own[i];
        return part;
    }

    static __device__ __forceinline__ bool compare_and_swap(Slot *at, Unit before, Unit after)
    {
        using Word = std::conditional_t<sizeof(Unit) == 8, unsigned long long, unsigned int>;
        return atomicCAS(reinterpret_cast<Word *>(at), Word(before), Word(after)) == Word(before);
    }
};

} // namespace vecgpu::cuda
