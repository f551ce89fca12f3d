/*
 * graph_source.h: what the tests share: a graph with its memory, a Stream source over it, data sets, exact search.
 */
#pragma once

#include "core/build.h"
#include "core/search.h"

#include "test.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

namespace test {

using namespace vecgpu;

/* A graph that owns its arrays. Handles of upper-layer records are record numbers. */
struct OwnedGraph {
    Graph graph;
    std::vector<uint32_t> links0, upper_offset, upper, owner;
    std::vector<uint8_t> levels, locks;

    OwnedGraph(uint32_t nodes, uint32_t m, uint64_t seed = 1)
    {
        graph = graph_make(m);
        uint64_t records = graph_count_records(seed, m, 0, nodes);
        links0.resize(size_t(nodes) * 2 * m);
        upper_offset.resize(nodes);
        levels.resize(nodes);
        locks.resize(nodes);
        upper.resize(records * m);
        graph.links0 = links0.data();
        graph.upper_offset = upper_offset.data();
        graph.levels = levels.data();
        graph.locks = locks.data();
        graph.upper = upper.data();
    }

    void add(uint32_t last, uint64_t seed = 1)
    {
        if (!graph_add_nodes(&graph, seed, last))
            abort();
        owner.resize(graph.records);
        for (uint32_t slot = 0; slot < last; slot++)
            for (int l = 1; l <= levels[slot]; l++)
                owner[upper_offset[slot] + l - 1] = slot;
    }
};

/* A search of the graph with the key of a query. */
struct GraphSource {
    const OwnedGraph *owned;
    const char *rows;
    size_t bytes;
    Query query;
    uint64_t interrupts = 0;

    GraphSource(const OwnedGraph &graph, const void *data, const Query &q)
        : owned(&graph), rows(static_cast<const char *>(data)), bytes(row_bytes(q.storage, q.dimensions)), query(q)
    {}

    uint32_t count() { return owned->graph.count; }
    uint32_t max_links() { return 2 * owned->graph.m; }
    uint32_t list(const uint32_t *cells, uint32_t width, uint32_t *out)
    {
        uint32_t n = 0;
        while (n < width && cells[n] != kNone) {
            out[n] = cells[n];
            n++;
        }
        return n;
    }
    uint32_t links(uint32_t slot, uint32_t *out)
    {
        uint32_t width = 2 * owned->graph.m;
        return list(owned->graph.links0 + size_t(slot) * width, width, out);
    }
    int entry_level() { return owned->graph.entry_level < 0 ? 0 : owned->graph.entry_level; }
    uint32_t entry_handle()
    {
        const Graph &g = owned->graph;
        return g.entry == kNone || g.entry_level <= 0 ? g.entry : g.upper_offset[g.entry] + g.entry_level - 1;
    }
    uint32_t upper_links(uint32_t handle, uint32_t *out)
    {
        const Graph &g = owned->graph;
        uint32_t slot = owned->owner[handle];
        uint32_t level = handle - g.upper_offset[slot]; /* above 1 */
        uint32_t n = list(g.upper + size_t(handle) * g.m, g.m, out);
        for (uint32_t i = 0; i < n; i++)
            out[i] = g.upper_offset[out[i]] + level;
        return n;
    }
    uint32_t upper_slot(uint32_t handle) { return handle < owned->owner.size() ? owned->owner[handle] : kNone; }
    uint32_t upper_down(int level, uint32_t handle) { return level > 1 ? handle - 1 : owned->owner[handle]; }
    void keys(const uint32_t *slots, uint32_t n, float *keys)
    {
        for (uint32_t i = 0; i < n; i++)
            for (size_t b = 0; b < bytes && b < 512; b += 64)
                __builtin_prefetch(rows + slots[i] * bytes + b);
        for (uint32_t i = 0; i < n; i++)
            keys[i] = key(query, rows + slots[i] * bytes);
    }
    void interrupt() { interrupts++; }
};

/* Bump memory that is dropped as a whole: what a memory context is to the access method. */
struct Arena {
    std::vector<void *> blocks;
    static void *allocate(void *context, size_t bytes)
    {
        void *block = malloc(bytes);
        static_cast<Arena *>(context)->blocks.push_back(block);
        return block;
    }
    static void release(void *context, void *pointer)
    {
        auto &blocks = static_cast<Arena *>(context)->blocks;
        for (size_t i = blocks.size(); i-- > 0;) {
            if (blocks[i] == pointer) {
                blocks.erase(blocks.begin() + i);
                free(pointer);
                return;
            }
        }
        abort();
    }
    Allocator allocator() { return {this, allocate, release}; }
    ~Arena()
    {
        for (void *block : blocks)
            free(block);
    }
};

/* Rows of one storage, and the float32 they were made of. */
struct Rows {
    uint32_t n = 0, dimensions = 0;
    Storage storage = Storage::Float32;
    std::vector<float> floats;
    std::vector<char> stored;

    const void *data() const { return storage == Storage::Float32 ? (const void *)floats.data() : stored.data(); }
    const float *vector(uint32_t i) const { return floats.data() + size_t(i) * dimensions; }
    size_t bytes() const { return row_bytes(storage, dimensions); }
    const void *row(uint32_t i) const { return static_cast<const char *>(data()) + i * bytes(); }

    void encode(Storage as)
    {
        storage = as;
        if (as == Storage::Float32)
            return;
        stored.resize(n * bytes());
        for (uint32_t i = 0; i < n; i++)
            if (encode_row(as, vector(i), dimensions, stored.data() + i * bytes(), nullptr) != EncodeStatus::Ok)
                abort();
    }
};

/* uint32 n, uint32 d, then bytes (see the data set's own README). */
inline Rows read_u8bin(const std::string &path)
{
    Rows rows;
    FILE *file = fopen(path.c_str(), "rb");
    if (!file)
        return rows;
    uint32_t head[2];
    std::vector<uint8_t> bytes;
    if (fread(head, 4, 2, file) == 2) {
        bytes.resize(size_t(head[0]) * head[1]);
        if (fread(bytes.data(), 1, bytes.size(), file) == bytes.size()) {
            rows.n = head[0];
            rows.dimensions = head[1];
            rows.floats.assign(bytes.begin(), bytes.end());
        }
    }
    fclose(file);
    return rows;
}

/* The k lowest keys of a query, in order. */
inline std::vector<float> exact_keys(const Query &query, const Rows &rows, uint32_t k)
{
    std::vector<float> keys(rows.n);
    for (uint32_t i = 0; i < rows.n; i++)
        keys[i] = key(query, rows.row(i));
    k = std::min(k, rows.n);
    std::partial_sort(keys.begin(), keys.begin() + k, keys.end());
    keys.resize(k);
    return keys;
}

} // namespace test
