/*
 * insert.h: INSERT of HNSW (Malkov & Yashunin, algorithms 1, 2 and 4) over any node store.
 *
 * PostgreSQL-free. The store may jump out of any call, so there are no owning objects here; memory is taken from the
 * caller's allocator in init() and, rarely, when the map of an insertion grows. An allocator that may return null is fine:
 * init() says so, and an insertion that cannot grow its map stops widening and links what it has found.
 *
 * A store over slots offers (all ids are slots; an id read from a list is a hint and may be garbage)
 *   Metric metric(); Storage storage(); uint32_t dimensions(); uint32_t m(); uint32_t ef_construction(); float max_norm();
 *   uint32_t count();                                       ids from here on are skipped
 *   uint32_t visible();                                     ids from here on are skipped by searches until the store is published
 *   const void *row(uint32_t slot, void *scratch);          the row itself or a copy in scratch (row_bytes); null: absent
 *   void prefetch(uint32_t slot);                           its row will be read
 *   void prefetch_links(int level, uint32_t slot);          its list will be read
 *   uint32_t links(int level, uint32_t slot, uint32_t *out);   at most 2m on layer 0, m above
 *   void set_links(int level, uint32_t slot, const uint32_t *ids, uint32_t n);
 *   uint32_t capacity(int level, uint32_t slot);            at most 2m on layer 0, m above
 *   void lock(uint32_t slot); void unlock(uint32_t slot);   around read-modify-write of a node's lists
 *   void entry(uint32_t *slot, int *level);                 kNone: no node yet
 *   void set_entry(uint32_t slot, int level);
 *   bool interrupt();                                       once per expansion; true: give up; may jump out
 *   static constexpr bool kStoresAux;                       then: float aux(uint32_t slot), see pair.h
 *   static constexpr bool kStoresKeys;                      then: float *link_keys(int level, uint32_t slot), beside the
 *                                                           list, under its lock, and void set_link(int level,
 *                                                           uint32_t slot, uint32_t position, uint32_t id), and void
 *                                                           prefetch_edit(int level, uint32_t slot)
 */
#pragma once

#include "core/link_lists.h"

namespace vecgpu {

struct InsertResult {
    enum Kind { Inserted, TwinOf, Stopped } kind;
    uint32_t head; /* TwinOf: the node with equal bytes */
};

template <class Store>
class Inserter : private LinkLists<Store> {
public:
    /* False if the allocator returned null; release() is due all the same. */
    bool init(Store *store, const Allocator &memory)
    {
        static_assert(std::is_trivially_destructible_v<Inserter>);
        ef_ = std::max(store->ef_construction(), 2 * store->m());
        bool good = Lists::init(store, memory, ef_);
        good &= list_.init(ef_, memory_);
        positions_ = allocate_array<int64_t>(memory_, width_ + 1);
        return good && positions_;
    }

    void release()
    {
        list_.release(memory_);
        if (positions_)
            memory_.release(memory_.context, positions_);
        Lists::release();
    }

    /*
     * Links the row of `slot`, whose lists are empty. With find_twin, a found node whose row has the same bytes ends it
     * before anything was changed.
     */
    InsertResult insert(uint32_t slot, int level, bool find_twin)
    {
        uint32_t entry;
        int entry_level;
        store_->entry(&entry, &entry_level);
        if (entry == kNone) {
            store_->set_entry(slot, level);
            return {InsertResult::Inserted, kNone};
        }
        if (!open(slot, find_twin) || !enter(entry) || !descend(entry_level, level))
            return ended_early();
        int top = level < entry_level ? level : entry_level;
        for (int l = top; l >= 0; l--) {
            if (!search_layer(l))
                return ended_early();
            select(l);
        }
        /* Own lists first: whoever finds the new node finds a way on from it. */
        for (int l = top; l >= 0; l--)
            set_own_links(l);
        for (int l = top; l >= 0; l--)
            link_back(l);
        if (level > entry_level)
            store_->set_entry(slot, level);
        return {InsertResult::Inserted, kNone};
    }

    /* The nodes of layer 0 that a search for the row of `slot` finds, nearest first: candidate(0 .. result - 1). */
    uint32_t find(uint32_t slot)
    {
        uint32_t entry;
        int entry_level;
        store_->entry(&entry, &entry_level);
        if (entry == kNone || !open(slot, false) || !enter(entry) || !descend(entry_level, 0) || !search_layer(0))
            return 0;
        return list_.size();
    }
    Packed candidate(uint32_t i) const { return list_[i]; }

private:
    using Lists = LinkLists<Store>;
    using Lists::chosen_, Lists::chosen_count_, Lists::ids_, Lists::map_, Lists::mate_bound_, Lists::memory_, Lists::quota_, Lists::slot_,
        Lists::slots_, Lists::store_, Lists::twin_, Lists::width_;
    using Lists::distance_to, Lists::heuristic, Lists::link_back, Lists::set_own_links, Lists::kAbsent;

    InsertResult ended_early() const { return {twin_ != kNone ? InsertResult::TwinOf : InsertResult::Stopped, twin_}; }

    bool open(uint32_t slot, bool find_twin)
    {
        mates_ = 0;
        list_.clear();
        return Lists::open_row(slot, find_twin);
    }

    bool consider(Packed entry)
    {
        if (key_of(entry) <= mate_bound_ && ++mates_ > quota_)
            return false;
        if (list_.size() == ef_) {
            if (entry > list_.last())
                return false;
            list_.pop_last();
        }
        list_.insert(entry, true);
        return true;
    }

    bool enter(uint32_t entry)
    {
        float key;
        if (!distance_to(entry, &key))
            return false;
        map_.set(map_.insert(entry), key);
        consider(pack(key, entry));
        return twin_ == kNone;
    }

    /* False: told to stop, or a twin was met. */
    bool expand(int level, uint32_t i)
    {
        uint32_t at = slot_of(list_[i]);
        list_.close(i);
        if (store_->interrupt())
            return false;
        if (!map_.reserve(width_, memory_))
            return true;
        uint32_t links = store_->links(level, at, ids_);
        uint32_t count = store_->count();
        uint32_t n = 0;
        for (uint32_t j = 0; j < links; j++) {
            if (ids_[j] >= count)
                continue;
            int64_t position = map_.insert(ids_[j]);
            if (position < 0)
                continue;
            store_->prefetch(ids_[j]);
            slots_[n] = ids_[j];
            positions_[n++] = position;
        }
        for (uint32_t j = 0; j < n; j++) {
            float key;
            bool there = distance_to(slots_[j], &key);
            map_.set(positions_[j], there ? key : kAbsent);
            if (there && consider(pack(key, slots_[j])))
                store_->prefetch_links(level, slots_[j]); /* most of what enters the list gets expanded */
        }
        return twin_ == kNone;
    }

    /*
     * Layers above the new node's, greedily. list_ keeps the nearest of everything met on any layer: a node of a layer is one
     * of all layers below, so the list goes down with us and no distance is computed twice.
     */
    bool descend(int from, int level)
    {
        for (int l = from; l > level; l--) {
            list_.reopen_all();
            while (list_.first_open() == 0)
                if (!expand(l, 0))
                    return false;
        }
        return true;
    }

    /* Algorithm 2: until no open node is nearer than the ef-th. */
    bool search_layer(int level)
    {
        list_.reopen_all();
        for (uint32_t i; (i = list_.first_open()) < list_.size();)
            if (!expand(level, i))
                return false;
        return true;
    }

    void select(int level)
    {
        chosen_count_[level] = heuristic(
            slot_, store_->capacity(level, slot_), list_.size(), [this](uint32_t i) { return list_[i]; },
            chosen_ + size_t(level) * width_);
    }

    CandidateList list_;
    uint32_t ef_, mates_;
    int64_t *positions_;
};

} // namespace vecgpu
