/*
 * link_lists.h: the lists of a node store (insert.h) and how a new node gets into them (Malkov & Yashunin, algorithm 4).
 */
#pragma once

#include "core/key_map.h"
#include "core/memory.h"
#include "core/pair.h"

#include <cmath>

namespace vecgpu {

/*
 * Searches that run meanwhile. They may read lists that were changed already and skip the new nodes in them, so to them a link that
 * gave way to a new node is a link that is gone: with it a whole group of nodes, until the new ones are published. Hence
 * in the list of a visible node no new node dominates a visible one: what searches see of it is what it was, but for links that are
 * dominated by others that they see. A later insertion may take what was spared.
 *
 * Mates. Rows that differ but lie at distance zero as far as float32 can tell (multiples of one vector under cosine, say) are
 * a trap: a thousand of them fill every candidate set and every list among themselves, and no search gets in or out. So an
 * insertion considers at most m / 2 mates of its row and a list holds at most m / 2 of its node, and the other places are for
 * the world outside. Which mates a list holds does not matter, as long as every one is in some list: see link_back().
 */
template <class Store>
class LinkLists {
protected:
    struct Kept {
        const void *row;
        float aux;
    };
    /* A selected neighbour. `dominated`: nearer to another selected one than to the base; it only fills a free place. */
    struct Chosen {
        uint32_t slot;
        float key;
        bool dominated;
    };

    /* `most`: nodes that a list is chosen from. False if the allocator returned null; release() is due all the same. */
    bool init(Store *store, const Allocator &memory, uint32_t most)
    {
        store_ = store;
        memory_ = memory;
        pair_ = make_pair_metric(store->metric(), store->storage(), store->dimensions(), store->max_norm());
        row_bytes_ = row_bytes(pair_.storage, pair_.dimensions);
        width_ = 2 * store->m();
        quota_ = store->m() > 2 ? store->m() / 2 : 1;
        bool good = map_.init(size_t(most) * width_ * 2, memory_);
        ids_ = allocate_array<uint32_t>(memory, width_ + 1);
        slots_ = allocate_array<uint32_t>(memory, width_ + 1);
        order_ = allocate_array<Packed>(memory_, width_ + 1);
        kept_ = allocate_array<Kept>(memory_, width_ + 1);
        chosen_ = allocate_array<Chosen>(memory_, size_t(width_) * (kMaxLevel + 2));
        discarded_ = allocate_array<uint32_t>(memory_, most);
        spared_ = allocate_array<bool>(memory_, width_ + 1);
        /* One row each for the new one, a neighbour, and all that may be kept beside the one under trial. */
        rows_ = allocate_array<char>(memory_, row_bytes_ * (width_ + 3));
        vectors_ = allocate_array<float>(memory_, size_t(pair_.dimensions) * 2);
        return good && ids_ && slots_ && order_ && kept_ && chosen_ && discarded_ && spared_ && rows_ && vectors_;
    }

    void release()
    {
        map_.release(memory_);
        void *arrays[] = {ids_, slots_, order_, kept_, chosen_, discarded_, spared_, rows_, vectors_};
        for (void *array : arrays)
            if (array)
                memory_.release(memory_.context, array);
    }

    void *scratch(uint32_t i) const { return rows_ + i * row_bytes_; }

    /* The row as float32: itself, or decoded into vectors_ number i. */
    const float *decoded(const void *row, uint32_t i) const
    {
        if (pair_.storage == Storage::Float32)
            return static_cast<const float *>(row);
        float *vector = vectors_ + size_t(pair_.dimensions) * i;
        decode_row(pair_.storage, row, pair_.dimensions, vector);
        return vector;
    }

    float aux_of(uint32_t slot, const float *vector, const void *row) const
    {
        if constexpr (Store::kStoresAux)
            return store_->aux(slot);
        else
            return pair_aux(pair_, vector, row);
    }

    /* The new node. False: its row is absent. */
    bool open_row(uint32_t slot, bool find_twin)
    {
        slot_ = slot;
        twin_ = kNone;
        row_ = store_->row(slot, scratch(0));
        if (!row_)
            return false;
        vector_ = decoded(row_, 0);
        aux_ = aux_of(slot, vector_, row_);
        PairBounds bounds = pair_bounds(pair_, vector_, row_);
        twin_bound_ = find_twin ? bounds.twin : -1;
        mate_bound_ = bounds.mate;
        map_.clear();
        return true;
    }

    /* Distance of the new row to that of `slot`; false: absent. */
    bool distance_to(uint32_t slot, float *key)
    {
        const void *row = store_->row(slot, scratch(1));
        if (!row)
            return false;
        *key = pair_distance(pair_, vector_, aux_, row, aux_of(slot, vector_, row));
        if (*key <= twin_bound_ && slot != slot_ && memcmp(row, row_, row_bytes_) == 0)
            twin_ = slot;
        return true;
    }

    /* Nodes that the list of `base` must go on leading to: those below. 0: nobody sees that list. */
    uint32_t seen_from(uint32_t base) const
    {
        uint32_t visible = store_->visible();
        return base < visible ? visible : 0;
    }

    /*
     * Algorithm 4, SELECT-NEIGHBORS-HEURISTIC, on n candidates in ascending order, with keepPrunedConnections. Writes at most
     * `capacity` entries to out: the kept ones first, then the nearest discarded ones. A mate of the base dominates nobody:
     * whether it is nearer than the base is noise.
     */
    template <class Candidate>
    uint32_t heuristic(uint32_t base, uint32_t capacity, uint32_t n, Candidate candidate_at, Chosen *out)
    {
        uint32_t kept = 0, discarded = 0, seen = seen_from(base);
        for (uint32_t i = 0; i < n && kept < capacity; i++) {
            Packed candidate = candidate_at(i);
            uint32_t slot = slot_of(candidate);
            if (slot == base)
                continue;
            const void *row = store_->row(slot, scratch(2 + kept));
            if (!row)
                continue;
            const float *vector = decoded(row, 1);
            float aux = aux_of(slot, vector, row);
            float key = key_of(candidate);
            bool dominated = false;
            for (uint32_t j = 0; j < kept && !dominated; j++)
                dominated = (slot >= seen || out[j].slot < seen) && out[j].key > mate_bound_ &&
                            pair_distance(pair_, vector, aux, kept_[j].row, kept_[j].aux) < key;
            if (dominated) {
                discarded_[discarded++] = i;
            } else {
                out[kept] = {slot, key, false};
                kept_[kept++] = {row, aux};
            }
        }
        uint32_t size = kept;
        for (uint32_t j = 0; j < discarded && size < capacity; j++) {
            Packed candidate = candidate_at(discarded_[j]);
            out[size++] = {slot_of(candidate), key_of(candidate), true};
        }
        return size;
    }

    void set_own_links(int level)
    {
        const Chosen *chosen = chosen_ + size_t(level) * width_;
        uint32_t n = chosen_count_[level];
        for (uint32_t i = 0; i < n; i++)
            ids_[i] = chosen[i].slot;
        store_->lock(slot_);
        store_->set_links(level, slot_, ids_, n);
        if constexpr (Store::kStoresKeys) {
            float *keys = store_->link_keys(level, slot_);
            for (uint32_t i = 0; i < n; i++)
                keys[i] = chosen[i].dominated ? -chosen[i].key : chosen[i].key;
        }
        store_->unlock(slot_);
    }

    /*
     * The new node into the lists of the chosen ones. At least one of its mates takes it in: those that hold `quota_` mates
     * refuse, and if all do, the first puts it between itself and one of them.
     */
    void link_back(int level)
    {
        const Chosen *chosen = chosen_ + size_t(level) * width_;
        uint32_t mate = kNone;
        float mate_key = 0;
        bool taken = false;
        if constexpr (Store::kStoresKeys)
            for (uint32_t i = 0; i < chosen_count_[level]; i++)
                store_->prefetch_edit(level, chosen[i].slot);
        for (uint32_t i = 0; i < chosen_count_[level]; i++) {
            uint32_t at = chosen[i].slot;
            bool is_mate = chosen[i].key <= mate_bound_;
            if (is_mate && mate == kNone) {
                mate = at;
                mate_key = chosen[i].key;
            }
            store_->lock(at);
            uint32_t n = store_->links(level, at, ids_);
            if (holds(n)) {
                taken |= is_mate;
            } else if (!is_mate || count_mates(n) < quota_) {
                add(level, at, chosen[i].key, n);
                taken |= is_mate;
            }
            store_->unlock(at);
        }
        if (mate != kNone && !taken)
            splice(level, mate, mate_key);
    }

    /* The new node into the list of `at`, which is ids_[0..n). */
    void add(int level, uint32_t at, float key, uint32_t n)
    {
        if constexpr (Store::kStoresKeys)
            add_by_keys(level, at, key, n);
        else
            add_by_rows(level, at, key, n);
    }

    /* Whether ids_[0..n) has the new node. */
    bool holds(uint32_t n) const
    {
        bool there = false;
        for (uint32_t i = 0; i < n; i++)
            there |= ids_[i] == slot_;
        return there;
    }

    /* Mates among ids_[0..n), the list of a mate: what is near one is near all of them. Those not met are not counted. */
    uint32_t count_mates(uint32_t n) const
    {
        uint32_t mates = 0;
        float key;
        for (uint32_t i = 0; i < n; i++)
            mates += map_.find(ids_[i], &key) && key <= mate_bound_;
        return mates;
    }

    /*
     * mate -> x becomes mate -> new -> x for one of its mates x: all stay reachable, no list grows. Where searches see x it should stay: then
     * the list takes one mate more than its share, up to twice that, or x is a new node too if there is one.
     */
    void splice(int level, uint32_t mate, float mate_key)
    {
        store_->lock(mate);
        uint32_t n = store_->links(level, mate, ids_);
        uint32_t mates = count_mates(n), x = kNone, seen = seen_from(mate);
        if (!holds(n) && mates < 2 * quota_ && seen > 0) {
            add(level, mate, mate_key, n);
        } else if (!holds(n) && mates > 0) {
            float key;
            uint32_t fresh = 0;
            for (uint32_t i = 0; i < n && seen > 0; i++)
                fresh += ids_[i] >= seen && map_.find(ids_[i], &key) && key <= mate_bound_;
            uint32_t least = fresh > 0 ? seen : 0;
            uint32_t pick = uint32_t(slot_ * uint64_t(0x9e3779b97f4a7c15) >> 33) % (fresh > 0 ? fresh : mates);
            for (uint32_t i = 0; i < n && x == kNone; i++) {
                if (ids_[i] >= least && map_.find(ids_[i], &key) && key <= mate_bound_ && pick-- == 0) {
                    x = ids_[i];
                    replace(level, mate, i, n, slot_, key);
                }
            }
        }
        store_->unlock(mate);
        if (x == kNone)
            return;
        store_->lock(slot_);
        n = store_->links(level, slot_, ids_);
        bool there = false;
        for (uint32_t i = 0; i < n; i++)
            there |= ids_[i] == x;
        if (!there && store_->capacity(level, slot_) > 0) {
            /* Its last link is its farthest, or one that another thread has just made. */
            uint32_t i = n < store_->capacity(level, slot_) ? n : n - 1;
            replace(level, slot_, i, i < n ? n : n + 1, x, 0);
        }
        store_->unlock(slot_);
    }

    /* List `at` is ids_[0..n), with a new entry number i. */
    void replace(int level, uint32_t at, uint32_t i, uint32_t n, uint32_t id, float key)
    {
        ids_[i] = id;
        if constexpr (Store::kStoresKeys) {
            store_->set_link(level, at, i, id);
            store_->link_keys(level, at)[i] = key;
        } else {
            store_->set_links(level, at, ids_, n);
        }
    }

    /*
     * Algorithm 4 again, one step of it: the list of `at` was selected by the heuristic and says which entries are dominated
     * (sign bit of their keys), so that only pairs with the new node are to be compared. Their distances are known: `at`
     * was expanded, being among the nearest found, hence all its neighbours were met. A node that becomes dominated stays
     * so even when its dominator leaves later. When the list is full, the farthest dominated entry goes, else the farthest; but
     * one that searches see goes only if another that they see dominates it, or if there is no other way.
     */
    void add_by_keys(int level, uint32_t at, float key, uint32_t n)
    {
        float *keys = store_->link_keys(level, at);
        bool unknown = false;
        for (uint32_t i = 0; i < n; i++)
            unknown |= keys[i] != keys[i];
        if (unknown)
            classify(at, keys, n);
        bool dominated = false;
        for (uint32_t i = 0; i < n; i++) {
            /* Entries with the sign bit, being dominated themselves, fail the second test. */
            if (!dominated && keys[i] <= key && keys[i] > mate_bound_)
                dominated = known(ids_[i]) < key;
        }
        if (!dominated && key > mate_bound_)
            for (uint32_t i = 0; i < n; i++)
                if (keys[i] > key && known(ids_[i]) < keys[i])
                    keys[i] = -keys[i];
        uint32_t victim = n;
        if (n >= store_->capacity(level, at)) {
            uint32_t seen = seen_from(at);
            bool spares = false;
            memset(spared_, 0, n * sizeof(bool));
            while ((victim = worst(keys, n, key, dominated)) < n && std::signbit(keys[victim]) && ids_[victim] < seen &&
                   !is_dominated_for_searches(keys, n, victim, seen))
                spares = spared_[victim] = true;
            if (spares && victim < n && !std::signbit(keys[victim]) && ids_[victim] < seen) {
                /* Nothing is dominated as searches see it: a new node goes, if there is one. */
                uint32_t farthest = n;
                for (uint32_t i = 0; i < n; i++)
                    if (ids_[i] >= seen && (farthest == n || std::fabs(keys[i]) > std::fabs(keys[farthest])))
                        farthest = i;
                victim = farthest < n ? farthest : victim;
            }
            if (victim == n)
                return;
        }
        store_->set_link(level, at, victim, slot_);
        keys[victim] = dominated ? -key : key;
    }

    /* The farthest dominated entry of ids_[0..n), else the farthest; n: the new one, which has `key`. None of spared_. */
    uint32_t worst(const float *keys, uint32_t n, float key, bool dominated) const
    {
        uint32_t victim = n;
        for (uint32_t i = 0; i < n; i++) {
            float own = std::fabs(keys[i]);
            bool sign = std::signbit(keys[i]);
            if ((sign != dominated ? sign : own > key) && !spared_[i]) {
                victim = i;
                key = own;
                dominated = sign;
            }
        }
        return victim;
    }

    /* Whether entry `i` of ids_[0..n), a dominated one, is dominated by one below `seen`. */
    bool is_dominated_for_searches(const float *keys, uint32_t n, uint32_t i, uint32_t seen) const
    {
        float key = std::fabs(keys[i]);
        for (uint32_t j = 0; j < n; j++)
            if (ids_[j] < seen && keys[j] > mate_bound_ && keys[j] < key && link_key(ids_[i], ids_[j]) < key)
                return true;
        return false;
    }

    /* Distance of the new row to `slot`, which was met unless another thread has just linked it. */
    float known(uint32_t slot)
    {
        float key = kAbsent;
        if (!map_.find(slot, &key))
            distance_to(slot, &key);
        return key;
    }

    /*
     * Distances and dominance of a list that was read from elsewhere: algorithm 4 over the whole of it, once. Taking all
     * entries for undominated ones instead would let the farthest links go first, those that lead out of the neighbourhood.
     */
    void classify(uint32_t at, float *keys, uint32_t n)
    {
        for (uint32_t i = 0; i < n; i++) {
            keys[i] = keys[i] != keys[i] ? link_key(at, ids_[i]) : std::fabs(keys[i]);
            order_[i] = pack(keys[i], i);
        }
        std::sort(order_, order_ + n);
        uint32_t kept = 0, seen = seen_from(at);
        for (uint32_t k = 0; k < n; k++) {
            uint32_t i = slot_of(order_[k]);
            const void *row = store_->row(ids_[i], scratch(2 + kept));
            if (!row || keys[i] <= mate_bound_) /* a mate dominates nothing */
                continue;
            const float *vector = decoded(row, 1);
            float aux = aux_of(ids_[i], vector, row);
            bool dominated = false;
            for (uint32_t j = 0; j < kept && !dominated; j++)
                dominated = (ids_[i] >= seen || slots_[j] < seen) &&
                            pair_distance(pair_, vector, aux, kept_[j].row, kept_[j].aux) < keys[i];
            if (dominated) {
                keys[i] = -keys[i];
            } else {
                slots_[kept] = ids_[i];
                kept_[kept++] = {row, aux};
            }
        }
    }

    float link_key(uint32_t at, uint32_t to) const
    {
        const void *row = store_->row(at, scratch(2));
        const void *other = store_->row(to, scratch(1));
        if (!row || !other)
            return kAbsent;
        const float *vector = decoded(row, 1);
        return pair_distance(pair_, vector, aux_of(at, vector, row), other, aux_of(to, vector, other));
    }

    /* Algorithm 4 over the whole list, for a store that keeps no distances. */
    void add_by_rows(int level, uint32_t at, float key, uint32_t n)
    {
        uint32_t capacity = store_->capacity(level, at);
        if (n < capacity) {
            ids_[n++] = slot_;
            store_->set_links(level, at, ids_, n);
            return;
        }
        const void *row = store_->row(at, scratch(2));
        if (!row)
            return;
        const float *vector = decoded(row, 1);
        float aux = aux_of(at, vector, row);
        uint32_t count = store_->count();
        uint32_t size = 0;
        order_[size++] = pack(key, slot_);
        for (uint32_t i = 0; i < n; i++) {
            const void *other = ids_[i] < count ? store_->row(ids_[i], scratch(1)) : nullptr;
            if (other)
                order_[size++] =
                    pack(pair_distance(pair_, vector, aux, other, aux_of(ids_[i], vector, other)), ids_[i]);
        }
        std::sort(order_, order_ + size);
        /* The choices of the levels are still being walked: beyond them. */
        Chosen *chosen = chosen_ + size_t(width_) * (kMaxLevel + 1);
        uint32_t selected = heuristic(
            at, capacity, size, [this](uint32_t i) { return order_[i]; }, chosen);
        for (uint32_t i = 0; i < selected; i++)
            ids_[i] = chosen[i].slot;
        store_->set_links(level, at, ids_, selected);
    }

    static constexpr float kAbsent = 3.402823466e+38f;

    Store *store_;
    Allocator memory_;
    PairMetric pair_;
    KeyMap map_; /* distances of the new row to what was met */
    size_t row_bytes_;
    uint32_t width_, quota_, slot_, twin_;
    float twin_bound_, mate_bound_;
    const void *row_;
    const float *vector_;
    float aux_;
    uint32_t *ids_, *slots_, *discarded_;
    Packed *order_;
    bool *spared_; /* of a list that is edited: entries that stay */
    Kept *kept_;
    Chosen *chosen_;
    char *rows_;
    float *vectors_;
    uint32_t chosen_count_[kMaxLevel + 1];
};

} // namespace vecgpu
