/*
 * search.h: best-first search of an HNSW graph over any node source, resumable without a cap.
 *
 * PostgreSQL-free. The source may jump out of any call (a page read that raises an error longjmps past us), so
 * all state here is trivially destructible and all memory comes from the caller's allocator, which frees it wholesale.
 *
 * The algorithm is SEARCH-LAYER of Malkov & Yashunin, "Efficient and robust approximate nearest neighbor search using
 * HNSW graphs" (2016/2018), algorithms 2 and 5, with one change: the result set is not cut at ef. Instead the walk of layer 0 is
 * a stream: found nodes wait until enough nodes nearer than the frontier are known (see Stream::next).
 *
 * A source over n slots offers
 *   uint32_t count();                                   slots 0..count()-1 exist; every other id is skipped
 *   uint32_t max_links();                               bound of both kinds of neighbour lists
 *   uint32_t links(uint32_t slot, uint32_t *out);       layer-0 neighbours; ids are hints and may be garbage
 *   int entry_level(); uint32_t entry_handle();         level 0: a slot; above: a handle of an upper-layer record
 *   uint32_t upper_links(uint32_t handle, uint32_t *);  neighbour handles on the same level
 *   uint32_t upper_slot(uint32_t handle);               kNone if the handle is not valid
 *   uint32_t upper_down(int level, uint32_t handle);    the same node one level below; kNone if there is none
 *   void keys(const uint32_t *slots, uint32_t n, float *keys);
 *   void interrupt();                                   once per expansion and per batch of a sweep; may jump out
 */
#pragma once

#include "core/distance.h"
#include "core/memory.h"

namespace vecgpu {

/* Set of slots: open addressing, linear probing, at most half full. */
class VisitedSet {
public:
    void init(size_t expected, const Allocator &memory)
    {
        capacity_ = 64;
        while (capacity_ < 2 * expected)
            capacity_ *= 2;
        table_ = empty_table(capacity_, memory);
        size_ = 0;
    }

    size_t size() const { return size_; }

    bool contains(uint32_t slot) const
    {
        for (size_t i = home(slot);; i = (i + 1) & (capacity_ - 1)) {
            if (table_[i] == slot)
                return true;
            if (table_[i] == kNone)
                return false;
        }
    }

    /* True if `slot` (not kNone) is new. */
    bool insert(uint32_t slot, const Allocator &memory)
    {
        size_t i = home(slot);
        for (; table_[i] != kNone; i = (i + 1) & (capacity_ - 1))
            if (table_[i] == slot)
                return false;
        table_[i] = slot;
        if (++size_ > capacity_ / 2)
            grow(memory);
        return true;
    }

    void release(const Allocator &memory) { memory.release(memory.context, table_); }

private:
    static uint32_t *empty_table(size_t capacity, const Allocator &memory)
    {
        uint32_t *table = allocate_array<uint32_t>(memory, capacity);
        memset(table, 0xff, capacity * sizeof(uint32_t));
        return table;
    }

    size_t home(uint32_t slot) const { return (slot * uint64_t(0x9e3779b97f4a7c15) >> 32) & (capacity_ - 1); }

    void grow(const Allocator &memory)
    {
        uint32_t *old = table_;
        size_t old_capacity = capacity_;
        table_ = empty_table(2 * old_capacity, memory);
        capacity_ = 2 * old_capacity;
        for (size_t j = 0; j < old_capacity; j++) {
            if (old[j] == kNone)
                continue;
            size_t i = home(old[j]);
            while (table_[i] != kNone)
                i = (i + 1) & (capacity_ - 1);
            table_[i] = old[j];
        }
        memory.release(memory.context, old);
    }

    uint32_t *table_;
    size_t capacity_, size_;
};

static_assert(std::is_trivially_destructible_v<VisitedSet>);

/*
 * The nodes of a graph, nearest first as far as the graph knows.
 *
 * Every found node waits in exactly one of three places: `near_`, the nearest waiting nodes in order; `open_`, farther
 * ones that were never expanded; `done_`, farther ones that were expanded before nearer nodes pushed them out. Nothing in
 * open_ or done_ is nearer than anything in near_, so that the first open node of near_ is the nearest frontier node. The
 * two heaps are touched only when near_ runs short: never for LIMIT below ef / 2.
 */
template <class Source>
class Stream {
public:
    void init(Source *source, const Allocator &memory, uint32_t ef, uint64_t sweep_after)
    {
        static_assert(std::is_trivially_destructible_v<Stream>);
        source_ = source;
        memory_ = memory;
        ef_ = ef > 0 ? ef : 1;
        sweep_after_ = sweep_after;
        limit_ = ef_;
        max_links_ = source->max_links();
        batch_ = max_links_ > kSweepBatch ? max_links_ : kSweepBatch;
        emitted_ = keys_computed_ = expansions_ = 0;
        highest_ = 0;
        swept_to_ = 0;
        started_ = swept_ = late_ = false;
        look_ahead_ = true;
        near_.init(ef_ + 1, memory_);
        open_.init(1024, memory_);
        done_.init(64, memory_);
        first_count_ = source->count();
        /* About half of the neighbours of an expanded node are new. */
        size_t expected = size_t(ef_) * (max_links_ / 2 + 1);
        visited_.init(expected < first_count_ ? expected : first_count_, memory_);
        ids_ = allocate_array<uint32_t>(memory_, max_links_);
        handles_ = allocate_array<uint32_t>(memory_, max_links_);
        slots_ = allocate_array<uint32_t>(memory_, batch_);
        keys_ = allocate_array<float>(memory_, batch_);
    }

    /*
     * The next node; false when every slot below count() has come out. With j nodes handed out so far, the next one goes out
     * once the nearest t = max(ef, j + 1 + a) - j waiting nodes are all expanded, a = max(min(j, ef), j / 2), or no frontier is left. For
     * j <= (ef - 1) / 2 that is t = ef - j: those and the j handed out are the ef nearest found so far and all are expanded,
     * which is the stopping rule of a beam of width ef. Later rows keep a look-ahead of a nodes beyond themselves.
     */
    bool next(uint32_t *slot, float *key)
    {
        if (!started_) {
            started_ = true;
            enter();
        }
        for (;;) {
            uint64_t ahead = emitted_ < ef_ ? emitted_ : ef_ > emitted_ / 2 ? ef_ : emitted_ / 2;
            uint64_t reach = emitted_ + 1 + (look_ahead_ ? ahead : 0);
            uint32_t t = uint32_t((reach > ef_ ? reach : ef_) - emitted_);
            if (t > limit_) {
                limit_ = t;
                if (t > ef_ + 1)
                    near_.reserve(t + t / 2, memory_);
            }
            if (near_.size() < t && open_.size() + done_.size() > 0)
                refill();
            uint32_t i = near_.first_open();
            bool frontier = i < near_.size() || open_.size() > 0;
            if (swept_ ? near_.size() == 0 && swept_to_ < source_->count()
                       : (frontier ? (i < t || sweep_after_ == 0) && keys_computed_ > sweep_after_ : incomplete())) {
                sweep();
                continue;
            }
            if (!swept_ && i < near_.size() && i < t) {
                expand(i);
                continue;
            }
            if (near_.size() == 0)
                return false;
            Packed first = near_[0];
            near_.pop_first();
            late_ = emitted_ > 0 && first >> 32 < highest_ >> 32;
            if (!late_)
                highest_ = first;
            emitted_++;
            *slot = slot_of(first);
            *key = key_of(first);
            return true;
        }
    }

    /*
     * Without look-ahead, rows beyond the first ef go out as soon as the nearest waiting one is expanded: cheaper, and more
     * of them are late. To be called before the first next().
     */
    void look_ahead(bool on) { look_ahead_ = on; }

    /* Compute the keys of all nodes not met yet before the next one goes out: from then on the order is exact. */
    void sweep_soon() { sweep_after_ = 0; }

    /* Whether the node of the last next() is nearer than one handed out before: found too late. */
    bool late() const { return late_; }

    /* Whether the node was found, handed out or not. */
    bool visited(uint32_t slot) const { return slot < swept_to_ || visited_.contains(slot); }

    uint64_t emitted() const { return emitted_; }
    uint64_t keys_computed() const { return keys_computed_; }
    uint64_t expansions() const { return expansions_; }
    bool swept() const { return swept_; }

    void release()
    {
        near_.release(memory_);
        open_.release(memory_);
        done_.release(memory_);
        visited_.release(memory_);
        memory_.release(memory_.context, ids_);
        memory_.release(memory_.context, handles_);
        memory_.release(memory_.context, slots_);
        memory_.release(memory_.context, keys_);
    }

private:
    static constexpr uint32_t kSweepBatch = 256;

    /* Whether nodes exist that were never met. A view that shrank may hide some behind met ones that it lost. */
    bool incomplete()
    {
        uint32_t count = source_->count();
        return visited_.size() < count || count < first_count_;
    }

    void found(Packed entry)
    {
        if (near_.size() == limit_) {
            if (entry > near_.last()) {
                open_.push(entry, memory_);
                return;
            }
            (near_.last_is_open() ? open_ : done_).push(near_.last(), memory_);
            near_.pop_last();
        } else if (open_.size() + done_.size() > 0 && (near_.size() == 0 || entry > near_.last())) {
            open_.push(entry, memory_); /* it may be farther than something in a heap */
            return;
        }
        near_.insert(entry, true);
    }

    void refill()
    {
        while (near_.size() < limit_) {
            bool from_open = open_.size() > 0 && (done_.size() == 0 || open_.top() < done_.top());
            if (!from_open && done_.size() == 0)
                return;
            near_.insert(from_open ? open_.pop() : done_.pop(), from_open);
        }
    }

    /* Keys of slots_[0..n), into near_ and the heaps too. */
    void compute(uint32_t n)
    {
        source_->keys(slots_, n, keys_);
        keys_computed_ += n;
        for (uint32_t i = 0; i < n; i++)
            found(pack(keys_[i], slots_[i]));
    }

    void expand(uint32_t i)
    {
        uint32_t slot = slot_of(near_[i]);
        near_.close(i);
        source_->interrupt();
        expansions_++;
        uint32_t count = source_->count();
        uint32_t links = bounded(source_->links(slot, ids_));
        uint32_t n = 0;
        for (uint32_t j = 0; j < links; j++)
            if (ids_[j] < count && visited_.insert(ids_[j], memory_))
                slots_[n++] = ids_[j];
        if (n > 0)
            compute(n);
    }

    uint32_t bounded(uint32_t links) const { return links < max_links_ ? links : max_links_; }

    /*
     * From the entry point down to layer 0, greedily (SEARCH-LAYER with ef = 1). Every node met is a found node, so none is
     * computed twice; skipping met nodes is right because none of them is nearer than the current one.
     */
    void enter()
    {
        uint32_t count = source_->count();
        if (count == 0)
            return;
        int level = source_->entry_level();
        if (level > kMaxLevel)
            level = kMaxLevel;
        uint32_t handle = source_->entry_handle();
        slots_[0] = level > 0 ? source_->upper_slot(handle) : handle;
        if (slots_[0] >= count)
            return;
        visited_.insert(slots_[0], memory_);
        compute(1);
        Packed best = pack(keys_[0], slots_[0]);
        for (; level > 0 && handle != kNone; level--) {
            while (step(count, &handle, &best))
                ;
            if (level > 1)
                handle = source_->upper_down(level, handle);
        }
    }

    /* Whether a neighbour nearer than *best was found; it becomes *handle and *best. */
    bool step(uint32_t count, uint32_t *handle, Packed *best)
    {
        source_->interrupt();
        expansions_++;
        uint32_t links = bounded(source_->upper_links(*handle, handles_));
        uint32_t n = 0;
        for (uint32_t j = 0; j < links; j++) {
            uint32_t slot = source_->upper_slot(handles_[j]);
            if (slot < count && visited_.insert(slot, memory_)) {
                slots_[n] = slot;
                handles_[n++] = handles_[j];
            }
        }
        if (n == 0)
            return false;
        compute(n);
        bool nearer = false;
        for (uint32_t j = 0; j < n; j++) {
            Packed entry = pack(keys_[j], slots_[j]);
            if (entry < *best) {
                *best = entry;
                *handle = handles_[j];
                nearer = true;
            }
        }
        return nearer;
    }

    /* The graph leads no further, or further than a scan would cost: keys of all slots not met yet, in order. */
    void sweep()
    {
        while (near_.size() > 0) {
            done_.push(near_.last(), memory_);
            near_.pop_last();
        }
        open_.move_to(done_, memory_);
        uint32_t count = source_->count();
        uint32_t slot = swept_to_;
        if (slot < count)
            done_.reserve(done_.size() + (count - slot), memory_);
        while (slot < count) {
            source_->interrupt();
            uint32_t n = 0;
            for (; slot < count && n < batch_; slot++)
                if (!visited_.contains(slot))
                    slots_[n++] = slot;
            if (n == 0)
                break;
            source_->keys(slots_, n, keys_);
            keys_computed_ += n;
            for (uint32_t i = 0; i < n; i++)
                done_.push(pack(keys_[i], slots_[i]), memory_);
        }
        if (swept_to_ < count)
            swept_to_ = count;
        swept_ = true;
    }

    Source *source_;
    Allocator memory_;
    CandidateList near_;
    LazyHeap open_, done_;
    VisitedSet visited_;
    uint32_t *ids_, *handles_, *slots_;
    float *keys_;
    uint64_t sweep_after_, emitted_, keys_computed_, expansions_;
    Packed highest_;
    uint32_t ef_, limit_, max_links_, batch_, first_count_, swept_to_;
    bool started_, swept_, late_, look_ahead_;
};

} // namespace vecgpu
