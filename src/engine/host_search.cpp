/*
 * host_search.cpp: see host_search.h.
 */
#include "engine/host_search.h"

#include "core/search.h"

#include <bit>
#include <cstdlib>
#include <new>

namespace vecgpu {

/* ---- arena ---- */

SearchArena::~SearchArena()
{
    for (const Piece &piece : pieces_)
        free(piece.memory);
}

void *SearchArena::allocate(size_t bytes)
{
    constexpr size_t align = 64;
    if (bytes > SIZE_MAX / 4)
        throw std::bad_alloc();
    bytes = (bytes + align - 1) / align * align;
    if (pieces_.empty() || pieces_.back().bytes - used_ < bytes) {
        size_t larger = pieces_.empty() ? kFirstBytes : 2 * pieces_.back().bytes;
        if (larger < bytes)
            larger = bytes;
        pieces_.reserve(pieces_.size() + 1);
        uint8_t *memory = static_cast<uint8_t *>(aligned_alloc(align, larger));
        if (!memory)
            throw std::bad_alloc();
        pieces_.push_back({memory, larger});
        used_ = 0;
    }
    void *at = pieces_.back().memory + used_;
    used_ += bytes;
    return at;
}

void SearchArena::reset()
{
    /* The last piece is at least as large as all before it together: the next batch fits into it, or makes a larger one. */
    while (pieces_.size() > 1) {
        free(pieces_.front().memory);
        pieces_.erase(pieces_.begin());
    }
    if (!pieces_.empty() && pieces_.back().bytes > kKeepBytes) {
        free(pieces_.back().memory);
        pieces_.clear();
    }
    used_ = 0;
}

Allocator SearchArena::allocator()
{
    return {this, [](void *context, size_t bytes) { return static_cast<SearchArena *>(context)->allocate(bytes); },
            [](void *, void *) {}};
}

size_t SearchArena::held() const
{
    size_t sum = 0;
    for (const Piece &piece : pieces_)
        sum += piece.bytes;
    return sum;
}

namespace {

/* ---- nodes ---- */

struct Nodes {
    const HostMirror &mirror;
    MirrorState state;
    const uint64_t *filter;

    bool returnable(uint32_t slot) const
    {
        if (filter && !(filter[slot / 64] >> (slot % 64) & 1))
            return false;
        SlotRecord record;
        mirror.slots.read_shared(slot, &record);
        return (record.meta & kRowStateMask) == kRowLive || (record.meta & kRowHasTwins);
    }

    /*
     * Asks for some rows ahead of the one that is computed: they arrive meanwhile. The CPU fetches the rest of a long row by
     * itself once it runs through it.
     */
    void keys(const Query &query, const uint32_t *slots, uint32_t n, float *keys) const
    {
        constexpr uint32_t ahead = 8;
        constexpr uint32_t longest = 1024;
        uint32_t bytes = mirror.vectors.record_bytes();
        uint32_t part = bytes < longest ? bytes : longest;
        uint32_t fetched = 0;
        for (uint32_t i = 0; i < n; i++) {
            for (; fetched < n && fetched < i + ahead; fetched++) {
                const uint8_t *row = mirror.vectors.at(slots[fetched]);
                for (uint32_t b = 0; b < part; b += 64)
                    __builtin_prefetch(row + b);
            }
            keys[i] = key(query, mirror.vectors.at(slots[i]));
        }
    }
};

/* The walk has cost as much as it may: thrown out of Stream::next(), which core/search.h allows a source to do. */
struct Exhausted {};

/* The mirror as a node source for core/search.h. Cells are what PageSource (page/graph.h) makes of them. */
struct MirrorSource {
    const Nodes &nodes;
    Query query;
    uint8_t *record; /* one link or upper record, 8-byte aligned */
    uint64_t keys_limit;
    uint64_t keys_computed = 0;

    uint32_t count() const { return nodes.state.nodes; }
    uint32_t max_links() const { return 2 * nodes.mirror.shape.m; }
    int entry_level() const { return nodes.state.entry_level; }
    uint32_t entry_handle() const { return nodes.state.entry_handle; }

    uint32_t cells(const uint8_t *from, uint32_t most, uint32_t *out) const
    {
        uint32_t width = nodes.mirror.shape.cell_width, n = 0;
        for (; n < most; n++) {
            uint32_t id = load_cell(from, n, width);
            if (id == kNone)
                break;
            out[n] = id;
        }
        return n;
    }

    uint32_t links(uint32_t slot, uint32_t *out) const
    {
        nodes.mirror.links.read_shared(slot, record);
        return cells(record, max_links(), out); /* a twin's number at the end passes for a neighbour: a hint like all */
    }

    uint32_t upper_links(uint32_t handle, uint32_t *out) const
    {
        if (handle >= nodes.state.upper)
            return 0;
        nodes.mirror.upper.read_shared(handle, record);
        return cells(record + sizeof(UpperRecord), nodes.mirror.shape.m, out);
    }

    uint32_t upper_slot(uint32_t handle) const
    {
        static_assert(offsetof(UpperRecord, slot) == 0);
        return handle < nodes.state.upper ? nodes.mirror.upper.read_first(handle) : kNone;
    }

    uint32_t upper_down(int level, uint32_t handle) const
    {
        if (level == 1)
            return upper_slot(handle);
        return handle == 0 ? kNone : handle - 1;
    }

    void keys(const uint32_t *slots, uint32_t n, float *keys)
    {
        nodes.keys(query, slots, n, keys);
        keys_computed += n;
    }

    void interrupt() const
    {
        if (keys_computed > keys_limit)
            throw Exhausted();
    }
};

/* The k lowest of many, by threshold: what is not below the k-th of those seen before is dropped at once. */
class Selection {
public:
    void init(uint32_t k, SearchArena &arena)
    {
        k_ = k;
        room_ = 2 * k + 256;
        entries_ = static_cast<Packed *>(arena.allocate(room_ * sizeof(Packed)));
        size_ = 0;
        bound_ = UINT64_MAX;
    }

    void add(Packed entry)
    {
        if (entry >= bound_)
            return;
        entries_[size_++] = entry;
        if (size_ == room_)
            cut();
    }

    /* In order; returns how many. */
    uint32_t finish(Packed **entries)
    {
        if (size_ > k_)
            cut();
        std::sort(entries_, entries_ + size_);
        *entries = entries_;
        return uint32_t(size_);
    }

private:
    void cut()
    {
        std::nth_element(entries_, entries_ + (k_ - 1), entries_ + size_);
        bound_ = entries_[k_ - 1];
        size_ = k_;
    }

    Packed *entries_;
    size_t k_, size_, room_;
    Packed bound_;
};

void answer(const BatchQuery &query, const Packed *entries, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        query.hits[i] = {slot_of(entries[i]), key_of(entries[i])};
    *query.count = n;
}

/* ---- forms ---- */

struct Batch {
    SearchArena &arena;
    Nodes nodes;
    const BatchParams &params;
    uint32_t ef;

    Query make(const BatchQuery &query) const
    {
        const MirrorShape &shape = nodes.mirror.shape;
        return make_query(query.query, shape.dimensions, shape.metric, shape.storage);
    }

    /* For queries which[0 .. count): rows go through the cache once for all of them. */
    void exact(const BatchQuery *queries, const uint32_t *which, uint32_t count)
    {
        constexpr uint32_t most = 256;
        constexpr uint32_t cache_bytes = 256 * 1024;
        uint32_t n = nodes.state.nodes;
        uint32_t k = params.k < n ? params.k : n;
        if (k == 0) {
            for (uint32_t q = 0; q < count; q++)
                *queries[which[q]].count = 0;
            return;
        }
        Query *made = static_cast<Query *>(arena.allocate(count * sizeof(Query)));
        Selection *selections = static_cast<Selection *>(arena.allocate(count * sizeof(Selection)));
        for (uint32_t q = 0; q < count; q++) {
            made[q] = make(queries[which[q]]);
            selections[q].init(k, arena);
        }
        uint32_t rows = cache_bytes / nodes.mirror.vectors.record_bytes();
        rows = rows < 1 ? 1 : rows > most ? most : rows;
        uint32_t slots[most];
        float keys[most];
        for (uint32_t slot = 0; slot < n;) {
            uint32_t taken = 0;
            for (; slot < n && taken < rows; slot++) {
                if (nodes.filter && slot % 64 == 0 && nodes.filter[slot / 64] == 0) {
                    slot += n - slot < 64 ? n - slot - 1 : 63;
                    continue;
                }
                if (nodes.returnable(slot))
                    slots[taken++] = slot;
            }
            for (uint32_t q = 0; q < count && taken > 0; q++) {
                nodes.keys(made[q], slots, taken, keys);
                for (uint32_t i = 0; i < taken; i++)
                    selections[q].add(pack(keys[i], slots[i]));
            }
        }
        for (uint32_t q = 0; q < count; q++) {
            Packed *entries;
            uint32_t found = selections[q].finish(&entries);
            answer(queries[which[q]], entries, found);
        }
    }

    /*
     * Whether looking at all returnable nodes is cheaper than walking to k of them. A walk of width ef computes about 32 ef keys
     * on a page of the usual m, hence the rule of the scan over the pages; with a filter that n / passing nodes must be met
     * for each one that is returned, the walk is as wide as k such. Depends on mirror and filter alone.
     */
    bool exact_is_cheaper() const
    {
        uint64_t n = nodes.state.nodes;
        if (nodes.mirror.shape.kind == IndexKind::Flat || n / 32 <= ef)
            return true;
        if (!nodes.filter)
            return false;
        uint64_t passing = 0;
        for (uint64_t i = 0; i < n / 64; i++)
            passing += std::popcount(nodes.filter[i]);
        if (n % 64)
            passing += std::popcount(nodes.filter[n / 64] & ((uint64_t(1) << n % 64) - 1));
        if (passing / 32 <= ef)
            return true;
        return passing / 32 <= params.k * n / passing;
    }

    /* False: the walk did not get there at a bearable cost. */
    bool graph(const BatchQuery &query)
    {
        const MirrorShape &shape = nodes.mirror.shape;
        uint32_t links = nodes.mirror.links.record_bytes(), upper = nodes.mirror.upper.record_bytes();
        MirrorSource source = {nodes, make(query), nullptr, nodes.state.nodes / 4};
        source.record = static_cast<uint8_t *>(arena.allocate(links > upper ? links : upper));
        uint32_t k = params.k < shape.nodes ? params.k : shape.nodes;
        Packed *found = static_cast<Packed *>(arena.allocate(k * sizeof(Packed)));
        uint32_t n = 0;
        try {
            Stream<MirrorSource> stream;
            stream.init(&source, arena.allocator(), ef, UINT64_MAX);
            uint32_t slot;
            float key;
            while (n < k && stream.next(&slot, &key)) {
                if (stream.swept())
                    return false;
                if (nodes.returnable(slot))
                    found[n++] = pack(key, slot);
            }
            /* Fewer than k without a sweep: the walk came to every node, there are no more. */
        } catch (const Exhausted &) {
            return false;
        }
        std::sort(found, found + n);
        answer(query, found, n);
        return true;
    }
};

} // namespace

void host_search(SearchArena &arena, const HostMirror &mirror, const BatchParams &params, const BatchQuery *queries,
                 uint32_t count, void (*each)(void *, const BatchQuery &), void *each_context, BatchFinished finished,
                 void *context)
{
    Batch batch = {arena, {mirror, mirror.state.read(), params.filter}, params, params.ef};
    if (batch.ef < params.k)
        batch.ef = params.k;
    auto finish = [&](uint32_t q) {
        if (each)
            each(each_context, queries[q]);
        if (finished)
            finished(context, q);
    };
    bool walk = params.form == SearchForm::Graph && !batch.exact_is_cheaper();
    uint32_t rest[kHostMaxBatch], n = 0; /* queries that are answered by looking at all nodes */
    for (uint32_t q = 0; q < count; q++) {
        arena.reset();
        if (walk && batch.graph(queries[q]))
            finish(q);
        else
            rest[n++] = q;
    }
    if (n == 0)
        return;
    arena.reset();
    batch.exact(queries, rest, n);
    for (uint32_t i = 0; i < n; i++)
        finish(rest[i]);
}

} // namespace vecgpu
