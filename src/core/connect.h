/*
 * connect.h: makes every node of layer 0 reachable from the entry point.
 *
 * A breadth-first walk from the entry point gives a tree. A node u outside is linked from the nearest node v inside that has a
 * free cell or a link that is no edge of the tree. If every cell near u holds a tree edge, v -> t becomes v -> u -> t. So there
 * always is a tree over all that was ever reachable, every link made enlarges it, and one round reaches every node.
 * Runs in slices, one thread, while no one else writes.
 */
#pragma once

#include "core/graph_store.h"

#include <cmath>

namespace vecgpu {

class Connector {
public:
    bool init(GraphStore *store, const Allocator &memory)
    {
        store_ = store;
        uint32_t count = store->count();
        parent_ = allocate_array<uint32_t>(memory, count);
        queue_ = allocate_array<uint32_t>(memory, count);
        ids_ = allocate_array<uint32_t>(memory, store->m() * 2);
        head_ = tail_ = next_ = left_ = linked_ = 0;
        started_ = false;
        return parent_ && queue_ && ids_;
    }

    void release(const Allocator &memory)
    {
        for (void *array : {parent_, queue_, ids_})
            if (array)
                memory.release(memory.context, array);
    }

    /* A slice of the work; true when done. */
    bool step(Inserter<GraphStore> *inserter)
    {
        uint32_t count = store_->count();
        if (!started_) {
            started_ = true;
            uint32_t entry;
            int level;
            store_->entry(&entry, &level);
            if (entry == kNone)
                return true;
            memset(parent_, 0xff, count * sizeof(uint32_t));
            reach(entry, entry);
        }
        for (uint32_t work = 0; work < kSlice && head_ < tail_; work++)
            walk(queue_[head_++]);
        if (head_ < tail_)
            return false;
        for (uint32_t work = 0; work < kSlice && next_ < count; work++, next_++) {
            if (parent_[next_] != kNone)
                continue;
            if (link(inserter, next_))
                linked_++;
            else
                left_++;
            next_++;
            return false; /* walk on from it first */
        }
        return next_ == count;
    }

    uint32_t linked() const { return linked_; }
    uint32_t left() const { return left_; }

private:
    static constexpr uint32_t kSlice = 4096;

    void reach(uint32_t slot, uint32_t parent)
    {
        parent_[slot] = parent;
        queue_[tail_++] = slot;
    }

    void walk(uint32_t slot)
    {
        uint32_t n = store_->links(0, slot, ids_);
        if (head_ + 4 < tail_)
            store_->prefetch_links(0, queue_[head_ + 4]);
        for (uint32_t i = 0; i < n; i++)
            if (ids_[i] < store_->count() && parent_[ids_[i]] == kNone)
                reach(ids_[i], slot);
    }

    bool link(Inserter<GraphStore> *inserter, uint32_t slot)
    {
        uint32_t found = inserter->find(slot);
        for (uint32_t i = 0; i < found; i++) {
            uint32_t from = slot_of(inserter->candidate(i));
            if (parent_[from] == kNone)
                continue;
            uint32_t at = replaceable(from);
            if (at == kNone)
                continue;
            store_->set_link(0, from, at, slot);
            store_->link_keys(0, from)[at] = key_of(inserter->candidate(i));
            reach(slot, from);
            return true;
        }
        for (uint32_t i = 0; i < found; i++) {
            Packed candidate = inserter->candidate(i);
            if (parent_[slot_of(candidate)] != kNone)
                return splice(slot_of(candidate), slot, key_of(candidate));
        }
        return splice(queue_[0], slot, std::nanf("")); /* the search met nothing inside; the entry point is */
    }

    /* A free cell, else the farthest dominated link, else the farthest; no tree edge. An unknown distance (NaN) loses. */
    uint32_t replaceable(uint32_t from)
    {
        uint32_t n = store_->links(0, from, ids_);
        if (n < store_->capacity(0, from))
            return n;
        const float *keys = store_->link_keys(0, from);
        uint32_t at = kNone;
        bool dominated = false;
        float farthest = -1;
        for (uint32_t i = 0; i < n; i++) {
            if (parent_[ids_[i]] == from)
                continue;
            bool sign = std::signbit(keys[i]);
            float key = std::fabs(keys[i]);
            if (at == kNone || (sign != dominated ? sign : key > farthest)) {
                at = i;
                dominated = sign;
                farthest = key;
            }
        }
        return at;
    }

    /* from -> t becomes from -> slot -> t. All links of `slot`, which is outside, are no tree edges. */
    bool splice(uint32_t from, uint32_t slot, float key)
    {
        uint32_t n = store_->links(0, from, ids_);
        if (n == 0)
            return false;
        uint32_t t = ids_[n - 1];
        bool tree_edge = parent_[t] == from;
        store_->set_link(0, from, n - 1, slot);
        store_->link_keys(0, from)[n - 1] = key;
        reach(slot, from);
        if (!tree_edge)
            return true;
        n = store_->links(0, slot, ids_);
        for (uint32_t i = 0; i < n; i++) {
            if (ids_[i] == t) {
                parent_[t] = slot;
                return true;
            }
        }
        uint32_t capacity = store_->capacity(0, slot), at = n < capacity ? n : n - 1;
        store_->set_link(0, slot, at, t);
        store_->link_keys(0, slot)[at] = std::nanf("");
        parent_[t] = slot;
        return true;
    }

    GraphStore *store_;
    uint32_t *parent_; /* in the tree; kNone: not reached */
    uint32_t *queue_, *ids_;
    uint32_t head_, tail_, next_, left_, linked_;
    bool started_;
};

} // namespace vecgpu
