/*
 * hash_iceberg.cuh: a set of keys in global memory that grows while it is asked: find-or-put by many threads at once,
 * lock-free, at most one successful compare-and-swap a key (Hegeman et al., "Compact Parallel Hash Tables on the GPU",
 * Euro-Par 2024; iceberg hashing: Bender et al.).
 *
 * Two levels. A key belongs to one bucket of the front yard; when that is full, to the emptier one of two buckets of half
 * the size in the back yard. Keys are never moved and never removed (other than all at once).
 *
 * Compact: a slot holds one bit "occupied" and the remainder under the permutation that chose the bucket; in the back yard
 * one more bit says which of the two permutations that was. Uncompact: "occupied" and the whole key; nothing else
 * differs.
 *
 * Why there are never two copies of a key, however many threads put it at once. Slots change once, from free to their
 * final value, and a thread changes a slot only if its snapshot of that bucket had all slots before it occupied, by other
 * keys. Nothing is assumed about when the slots of a snapshot were read: a value that is not "free" is final, whenever it
 * is read.
 *  1. Twice in one bucket, at slots a < b: whoever put b saw slot a occupied, so by its final value, which is this key;
 *     then it would not have put. (And a = b: only one compare-and-swap on a free slot succeeds.)
 *  2. In the front yard at slot a and in the back yard: whoever put the latter saw the whole front bucket occupied, slot a
 *     with its final value too; as above.
 *  3. In both buckets of the back yard, by A at slot a of the first and by B at slot b of the second. A goes to the first
 *     only if its first free slot comes strictly before that of the second, in A's snapshots; B goes to the second
 *     otherwise. Let free(X, i) be the first free slot of bucket i in X's snapshot. B did not see the key at slot a of the
 *     first bucket, and that slot is never anything but free or the key, so B saw it free: free(B, 1) <= a = free(A, 1).
 *     A did not see the key at slot b of the second: free(A, 2) <= b = free(B, 2). With the rule of choice,
 *     free(A, 1) < free(A, 2) <= free(B, 2) <= free(B, 1) <= free(A, 1): impossible. This holds too if both
 *     permutations give the same bucket.
 * A failed compare-and-swap means that another one of the same unit succeeded, so somebody gets on, and nobody tries more
 * often than a unit has slots. So of all threads that put one key exactly one is told New, or all of them Full: who saw
 * all three buckets occupied by others saw final values, and nobody will put the key after that.
 */
#pragma once

#include "buffer.h"
#include "hash_bucket.cuh"
#include "hash_permutation.cuh"
#include "visited.cuh"

namespace vecgpu::cuda {

enum class TableOp { Find, Put, FindOrPut };

/* A view: what kernels get. Owned by IcebergTable. */
template <class KeyType, class SlotType, bool kCompact, int kSlots>
struct Iceberg {
    using Key = KeyType;
    using Slot = SlotType;
    static constexpr int kFrontSlots = kSlots, kBackSlots = kSlots / 2;
    static constexpr int kBytes = kSlots * sizeof(Slot);
    static constexpr uint32_t kSlotBits = 8 * sizeof(Slot);
    static_assert(kBytes >= 32);

    Slot *front, *back;
    uint32_t key_bits, front_bits, back_bits; /* log2 of the numbers of keys and buckets */
    Permutation<Key> permutations[3];

    /* Whether slots can hold all keys of `key_bits` bits. */
    static bool fits(uint32_t key_bits, uint32_t front_bits, uint32_t back_bits)
    {
        if (key_bits > 8 * sizeof(Key) || front_bits > key_bits || back_bits > key_bits || front_bits > 31 ||
            back_bits > 31)
            return false;
        return kCompact ? key_bits - front_bits <= kSlotBits - 1 && key_bits - back_bits <= kSlotBits - 2
                        : key_bits <= kSlotBits - 1;
    }

    /* 0: front yard, 1 and 2: back yard. */
    __host__ __device__ __forceinline__ void place(Key key, int which, uint32_t *bucket, Slot *tag) const
    {
        const uint32_t bits = which == 0 ? front_bits : back_bits;
        const Key scrambled = permutations[which].apply(key);
        *bucket = uint32_t(scrambled) & ((1u << bits) - 1);
        *tag = Slot(1) << (kSlotBits - 1);
        if constexpr (kCompact)
            *tag |= (which == 2 ? Slot(1) << (kSlotBits - 2) : 0) | Slot(scrambled >> bits);
        else
            *tag |= Slot(key);
    }

    /* The key of an occupied slot. */
    Key key_of(Slot slot, uint32_t bucket, bool is_front) const
    {
        Slot rest = slot & Slot(~(Slot(1) << (kSlotBits - 1)));
        if (!kCompact)
            return Key(rest);
        int which = 0;
        if (!is_front) {
            which = 1 + int(rest >> (kSlotBits - 2) & 1);
            rest &= Slot(~(Slot(1) << (kSlotBits - 2)));
        }
        return permutations[which].invert(Key(Key(rest) << (is_front ? front_bits : back_bits)) | bucket);
    }
};

/* How a key fared; Behind: the front yard does not say, the back yard will. */
enum class Fate : int { New = int(Put::New), Seen = int(Put::Seen), Full = int(Put::Full), Behind };

/* What a snapshot of the front bucket says, and the key put there if that is the place; by whole warps. */
template <TableOp kOp, class Table, class Front>
__device__ __forceinline__ Fate work_front(Front &seen, typename Table::Slot *bucket, typename Table::Slot tag,
                                           bool wanted)
{
    using Together = typename Front::Together;
    using Alone = typename Front::Alone;
    if (kOp != TableOp::Put && seen.template has<Together>(tag))
        wanted = false;
    const bool was_seen = !wanted;
    uint32_t open = seen.template having<Together>(0);
    Fate fate = was_seen ? Fate::Seen : open ? Fate::New : Fate::Behind;
    if (kOp == TableOp::Find)
        return fate;
    const bool tries = fate == Fate::New;
    if (seen.template fill<Together>(bucket, open, tag, tries) || !tries)
        return fate;
    /* Another key came first: again, with what the bucket is now. */
    for (;;) {
        seen.load(bucket);
        if (kOp != TableOp::Put && seen.template has<Alone>(tag))
            return Fate::Seen;
        open = seen.template having<Alone>(0);
        if (!open)
            return Fate::Behind;
        if (seen.template fill<Alone>(bucket, open, tag, true))
            return Fate::New;
    }
}

template <TableOp kOp, class Table, class Front>
__device__ __forceinline__ Fate put_back(Front &seen, typename Table::Slot *left, typename Table::Slot *right,
                                         typename Table::Slot left_tag, typename Table::Slot right_tag)
{
    using Alone = typename Front::Alone;
    constexpr uint32_t kHalf = (1u << (Front::kPieces / 2)) - 1, kSlots = Table::kBackSlots;
    for (;;) {
        if (kOp != TableOp::Put && seen.template has<Alone>(left_tag, right_tag))
            return Fate::Seen;
        const uint32_t open = seen.template having<Alone>(0);
        const uint32_t at_left = open & kHalf ? seen.template first<Alone>(open & kHalf, 0) : kSlots;
        const uint32_t at_right = open & ~kHalf ? seen.template first<Alone>(open & ~kHalf, 0) : 2 * kSlots;
        /* The proof above hangs on this rule: the first bucket only if it is strictly emptier. */
        if (at_left < at_right - kSlots) {
            if (seen.template swap<Alone>(left, at_left, 0, left_tag))
                return Fate::New;
        } else if (at_right == 2 * kSlots) {
            return Fate::Full;
        } else if (seen.template swap<Alone, kSlots>(right, at_right, 0, right_tag)) {
            return Fate::New;
        }
        seen.load(left, right);
    }
}

/*
 * One key a thread, by tiles of kLanes lanes that work for the keys of their lanes in turn; their buckets are all read
 * first. Find: Seen or New (not there). Put: for keys that are not in the table, each once. results may be null.
 */
template <class Table, TableOp kOp, int kLanes>
__global__ void __launch_bounds__(256)
    iceberg_kernel(Table table, const typename Table::Key *keys, uint64_t count, Put *results)
{
    using Slot = typename Table::Slot;
    using Front = Bucket<Slot, Table::kFrontSlots, kLanes>;
    using Lanes = typename Front::Together;
    const uint64_t mine = uint64_t(blockIdx.x) * blockDim.x + threadIdx.x;
    const uint64_t first = mine - Lanes::lane();
    const typename Table::Key key = mine < count ? keys[mine] : 0;
    Front seen[kLanes];
    Fate fate = Fate::Full;

    uint32_t bucket;
    Slot tag;
    table.place(key, 0, &bucket, &tag);
#pragma unroll
    for (int r = 0; r < kLanes; r++)
        seen[r].load(table.front + uint64_t(Lanes::from(bucket, r)) * Table::kFrontSlots);
#pragma unroll
    for (int r = 0; r < kLanes; r++) {
        Slot *at = table.front + uint64_t(Lanes::from(bucket, r)) * Table::kFrontSlots;
        const Fate its = work_front<kOp, Table>(seen[r], at, Lanes::from(tag, r), first + r < count);
        __syncwarp();
        if (Lanes::lane() == r && mine < count)
            fate = its;
    }

    const uint32_t behind = Lanes::ballot(fate == Fate::Behind);
    if (__any_sync(~0u, behind)) {
        uint32_t left, right;
        Slot left_tag, right_tag;
        table.place(key, 1, &left, &left_tag);
        table.place(key, 2, &right, &right_tag);
#pragma unroll
        for (int r = 0; r < kLanes; r++) {
            const Slot *at = table.back + uint64_t(Lanes::from(left, r)) * Table::kBackSlots;
            const Slot *other = table.back + uint64_t(Lanes::from(right, r)) * Table::kBackSlots;
            if (behind >> r & 1)
                seen[r].load(at, other);
        }
#pragma unroll
        for (int r = 0; r < kLanes; r++) {
            Slot *at = table.back + uint64_t(Lanes::from(left, r)) * Table::kBackSlots;
            Slot *other = table.back + uint64_t(Lanes::from(right, r)) * Table::kBackSlots;
            const Slot its_left = Lanes::from(left_tag, r), its_right = Lanes::from(right_tag, r);
            const bool concerned = behind >> r & 1;
            Fate its = Fate::New;
            if (kOp != TableOp::Put && seen[r].template has<Lanes>(its_left, its_right))
                its = Fate::Seen;
            if (kOp != TableOp::Find && concerned && its == Fate::New)
                its = put_back<kOp, Table>(seen[r], at, other, its_left, its_right);
            __syncwarp();
            if (Lanes::lane() == r && concerned)
                fate = its;
        }
    }
    if (results && mine < count)
        results[mine] = Put(int(fate));
}

template <class Table>
class IcebergTable {
public:
    using Key = typename Table::Key;
    using Slot = typename Table::Slot;

    /* Empty, for keys below 2^key_bits, with 2^front_bits buckets in front and 2^back_bits behind. */
    IcebergTable(uint32_t key_bits, uint32_t front_bits, uint32_t back_bits, uint64_t seed)
    {
        if (!Table::fits(key_bits, front_bits, back_bits))
            fail(Status::BadRequest, "keys of %u bits do not fit into %zu-byte slots of 2^%u and 2^%u buckets",
                 key_bits, sizeof(Slot), front_bits, back_bits);
        front_.allocate(size_t(Table::kFrontSlots) << front_bits);
        back_.allocate(size_t(Table::kBackSlots) << back_bits);
        table_ = {front_.data(), back_.data(), key_bits, front_bits, back_bits, {}};
        for (int i = 0; i < 3; i++)
            table_.permutations[i] = Permutation<Key>::make(key_bits, seed * 3 + i);
        clear(nullptr);
    }

    void clear(cudaStream_t stream)
    {
        check(cudaMemsetAsync(front_.data(), 0, front_.count() * sizeof(Slot), stream), "clearing a hash table");
        check(cudaMemsetAsync(back_.data(), 0, back_.count() * sizeof(Slot), stream), "clearing a hash table");
    }

    template <TableOp kOp, int kLanes = kTileLanes<Table::kBytes>>
    void run(const Key *keys, uint64_t count, Put *results, cudaStream_t stream) const
    {
        if (count == 0)
            return;
        iceberg_kernel<Table, kOp, kLanes>
            <<<uint32_t((count + 255) / 256), 256, 0, stream>>>(table_, keys, count, results);
        check_launch("iceberg_kernel");
    }

    const Table &view() const { return table_; }
    size_t slots() const { return front_.count() + back_.count(); }

private:
    DeviceBuffer<Slot> front_, back_;
    Table table_;
};

} // namespace vecgpu::cuda
