/*
 * hash_cuckoo.cuh: a static set of keys, or map of keys to small values: built once from keys that are all different, then
 * only asked. Bucketed cuckoo hashing with three functions (Awad et al.), compact as in Hegeman et al., Euro-Par 2024.
 *
 * A key lies in one of three buckets. One that finds its bucket full throws out another key, which goes to its own next
 * bucket. No key moves on from a bucket with a free slot and slots are never freed, so a search ends at the first bucket
 * that has one.
 *
 * A slot: two bits (0: free, else 1 + which of the functions chose the bucket), then the remainder under that function
 * (uncompact: the whole key), then kValueBits of value. Whoever throws out a key gets it back from bucket, function and
 * remainder.
 */
#pragma once

#include "buffer.h"
#include "hash_bucket.cuh"
#include "hash_permutation.cuh"

namespace vecgpu::cuda {

/* A view: what kernels get. Owned by CuckooTable. */
template <class KeyType, class SlotType, bool kCompact, int kBucketSlots, int kValue = 0>
struct Cuckoo {
    using Key = KeyType;
    using Slot = SlotType;
    static constexpr int kSlots = kBucketSlots, kValueBits = kValue;
    static constexpr int kBytes = kSlots * sizeof(Slot);
    static constexpr uint32_t kSlotBits = 8 * sizeof(Slot), kKeyBits = kSlotBits - 2 - kValueBits;
    static constexpr uint32_t kFunctions = 3;
    static_assert(kSlotBits > 2 + kValueBits && kValueBits <= 32);

    Slot *slots;
    uint32_t key_bits, bucket_bits; /* log2 of the numbers of keys and buckets */
    Permutation<Key> permutations[kFunctions];

    static bool fits(uint32_t key_bits, uint32_t bucket_bits)
    {
        return key_bits <= 8 * sizeof(Key) && bucket_bits <= key_bits && bucket_bits <= 31 &&
               key_bits - (kCompact ? bucket_bits : 0) <= kKeyBits;
    }

    __host__ __device__ __forceinline__ void place(Key key, uint32_t function, uint32_t *bucket, Slot *tag) const
    {
        const Key scrambled = permutations[function].apply(key);
        *bucket = uint32_t(scrambled) & ((1u << bucket_bits) - 1);
        *tag = Slot(Slot(function + 1) << (kSlotBits - 2)) |
               Slot(Slot(kCompact ? scrambled >> bucket_bits : key) << kValueBits);
    }

    __host__ __device__ __forceinline__ uint32_t function_of(Slot slot) const
    {
        return uint32_t(slot >> (kSlotBits - 2)) - 1;
    }

    __host__ __device__ __forceinline__ Key key_of(Slot slot, uint32_t bucket) const
    {
        const Key rest = Key(Slot(slot << 2) >> (2 + kValueBits));
        return kCompact ? permutations[function_of(slot)].invert(Key(rest << bucket_bits) | bucket) : rest;
    }

    static __host__ __device__ __forceinline__ Slot value_of(Slot slot) { return slot & ((Slot(1) << kValueBits) - 1); }
};

/*
 * Puts all keys, one a thread, by tiles as in iceberg_kernel. A key that still has no place after `most` evictions is counted
 * in *failures and lost: the table is then of no use.
 */
template <class Table, int kLanes>
__global__ void __launch_bounds__(256)
    cuckoo_build_kernel(Table table, const typename Table::Key *keys, const uint32_t *values, uint64_t count,
                        uint32_t most, uint32_t *failures)
{
    using Slot = typename Table::Slot;
    using Key = typename Table::Key;
    using Seen = Bucket<Slot, Table::kSlots, kLanes, Table::kValueBits>;
    using Lanes = typename Seen::Together;
    using Alone = typename Seen::Alone;
    const uint64_t mine = uint64_t(blockIdx.x) * blockDim.x + threadIdx.x;
    const uint64_t first = mine - Lanes::lane();
    const Key key = mine < count ? keys[mine] : 0;
    Seen seen[kLanes];

    uint32_t bucket;
    Slot word;
    table.place(key, 0, &bucket, &word);
    if (Table::kValueBits > 0 && mine < count)
        word |= Slot(values[mine]);
#pragma unroll
    for (int r = 0; r < kLanes; r++)
        seen[r].load(table.slots + uint64_t(Lanes::from(bucket, r)) * Table::kSlots);
    uint32_t left = Lanes::ballot(mine < count); /* the tile's keys that have no place yet */
#pragma unroll
    for (int r = 0; r < kLanes; r++) {
        Slot *at = table.slots + uint64_t(Lanes::from(bucket, r)) * Table::kSlots;
        const uint32_t open = seen[r].template having<Lanes>(0);
        const Slot its = Lanes::from(word, r);
        if (seen[r].template fill<Lanes>(at, open, its, open && (left >> r & 1)))
            left &= ~(1u << r);
    }
    while (left) {
        const uint32_t r = __ffs(left) - 1;
        left &= left - 1;
        uint32_t its_bucket = Alone::from(bucket, r);
        Slot its = Alone::from(word, r);
        for (uint32_t evictions = 0;;) {
            Slot *at = table.slots + uint64_t(its_bucket) * Table::kSlots;
            Seen now;
            now.load(at);
            const uint32_t open = now.template having<Alone>(0);
            if (open) {
                if (now.template fill<Alone>(at, open, its, true))
                    break;
                continue;
            }
            if (evictions == most) {
                if (Alone::lane() == 0)
                    atomicAdd(failures, 1u);
                break;
            }
            /* Any slot will do, as long as two keys do not throw each other out for ever. */
            const uint32_t victim =
                ((uint32_t(its >> Table::kValueBits) + its_bucket + evictions * 7) * 0x9E3779B1u >> 16) % Table::kSlots;
            const Slot old = now.template at<Alone>(victim);
            if (now.template swap<Alone>(at, victim, old, its)) {
                evictions++;
                const Key moved = table.key_of(old, its_bucket);
                table.place(moved, (table.function_of(old) + 1) % Table::kFunctions, &its_bucket, &its);
                its |= Table::value_of(old);
            }
        }
    }
}

constexpr uint32_t kNotInTable = 0xffffffffu;

/* results[i]: the value of keys[i], or, in a set, the number of its slot; kNotInTable if it is not there. */
template <class Table, int kLanes>
__global__ void __launch_bounds__(256)
    cuckoo_find_kernel(Table table, const typename Table::Key *keys, uint64_t count, uint32_t *results)
{
    using Slot = typename Table::Slot;
    using Seen = Bucket<Slot, Table::kSlots, kLanes, Table::kValueBits>;
    using Lanes = typename Seen::Together;
    const uint64_t mine = uint64_t(blockIdx.x) * blockDim.x + threadIdx.x;
    const typename Table::Key key = mine < count ? keys[mine] : 0;
    Seen seen[kLanes];
    uint32_t result = kNotInTable;
    bool searching = mine < count;

    for (uint32_t function = 0; function < Table::kFunctions; function++) {
        if (!__any_sync(~0u, searching))
            break;
        const uint32_t wanted = Lanes::ballot(searching);
        uint32_t bucket;
        Slot tag;
        table.place(key, function, &bucket, &tag);
#pragma unroll
        for (int r = 0; r < kLanes; r++) {
            const Slot *at = table.slots + uint64_t(Lanes::from(bucket, r)) * Table::kSlots;
            if (wanted >> r & 1)
                seen[r].load(at);
        }
#pragma unroll
        for (int r = 0; r < kLanes; r++) {
            const Slot its_tag = Lanes::from(tag, r);
            const uint32_t having = seen[r].template having<Lanes>(its_tag);
            const bool ends = seen[r].template has<Lanes>(0) || having; /* the whole warp asks */
            const uint32_t at = seen[r].template first<Lanes>(having, its_tag);
            uint32_t found = Lanes::from(bucket, r) * Table::kSlots + at;
            if constexpr (Table::kValueBits > 0)
                found = uint32_t(Table::value_of(seen[r].template at<Lanes>(at)));
            if (Lanes::lane() == r && searching) {
                result = having ? found : kNotInTable;
                searching = !ends;
            }
        }
    }
    if (mine < count)
        results[mine] = result;
}

template <class Table>
class CuckooTable {
public:
    using Key = typename Table::Key;
    using Slot = typename Table::Slot;
    static constexpr uint32_t kMostEvictions = 200, kMostBuilds = 4;

    CuckooTable(uint32_t key_bits, uint32_t bucket_bits)
    {
        if (!Table::fits(key_bits, bucket_bits))
            fail(Status::BadRequest, "keys of %u bits do not fit into %zu-byte slots of 2^%u buckets", key_bits,
                 sizeof(Slot), bucket_bits);
        slots_.allocate(size_t(Table::kSlots) << bucket_bits);
        failures_.allocate(1);
        table_ = {slots_.data(), key_bits, bucket_bits, {}};
    }

    /*
     * Makes the table hold these keys, all different, and nothing else; values only for a map. If a key finds no place, all is
     * done again with other permutations, up to kMostBuilds times; false: too many keys. Waits for the device.
     */
    template <int kLanes = kTileLanes<Table::kBytes>>
    bool build(const Key *keys, const uint32_t *values, uint64_t count, uint64_t seed, cudaStream_t stream)
    {
        if (count > slots_.count())
            return false;
        for (builds_ = 1; builds_ <= kMostBuilds; builds_++) {
            for (uint32_t i = 0; i < Table::kFunctions; i++)
                table_.permutations[i] =
                    Permutation<Key>::make(table_.key_bits, (seed * kMostBuilds + builds_) * Table::kFunctions + i);
            check(cudaMemsetAsync(slots_.data(), 0, slots_.count() * sizeof(Slot), stream), "clearing a hash table");
            check(cudaMemsetAsync(failures_.data(), 0, 4, stream), "clearing a hash table");
            if (count > 0)
                cuckoo_build_kernel<Table, kLanes><<<uint32_t((count + 255) / 256), 256, 0, stream>>>(
                    table_, keys, values, count, kMostEvictions, failures_.data());
            check_launch("cuckoo_build_kernel");
            uint32_t failures;
            check(cudaMemcpyAsync(&failures, failures_.data(), 4, cudaMemcpyDeviceToHost, stream), "hash table");
            check(cudaStreamSynchronize(stream), "building a hash table");
            if (failures == 0)
                return true;
        }
        return false;
    }

    template <int kLanes = kTileLanes<Table::kBytes>>
    void find(const Key *keys, uint64_t count, uint32_t *results, cudaStream_t stream) const
    {
        if (count == 0)
            return;
        cuckoo_find_kernel<Table, kLanes>
            <<<uint32_t((count + 255) / 256), 256, 0, stream>>>(table_, keys, count, results);
        check_launch("cuckoo_find_kernel");
    }

    const Table &view() const { return table_; }
    size_t slots() const { return slots_.count(); }
    uint32_t builds() const { return builds_; } /* of the last build() */

private:
    DeviceBuffer<Slot> slots_;
    DeviceBuffer<uint32_t> failures_;
    Table table_;
    uint32_t builds_ = 0;
};

} // namespace vecgpu::cuda
