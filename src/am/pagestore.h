/*
 * pagestore.h: the graph on the pages as a node store for core/insert.h, changed in an overlay.
 */
#pragma once

#include "core/insert.h"
#include "page/graph.h"
#include "page/overlay.h"

namespace vecgpu {

constexpr uint32_t kUpperCells = 100; /* the largest m */

struct PageStore {
    Relation index;
    Meta *meta; /* working copy: counters and entry point are those of the batch so far */
    uint32_t published; /* nodes before the batch */
    Overlay overlay;
    Inserter<PageStore> inserter;
    HTAB *upper_of; /* slot -> its record on level 1, for nodes above layer 0 */
    uint8_t *record;

    /* `rows`: how many will be added at most. */
    void open(Relation relation, Meta *working, uint32_t rows);

    /* Adds one row: as a new node or as a twin. */
    void add(const RowId &row, const uint8_t *vector);

    void apply(uint64_t epoch, ChangedBlocks *changed);

    /* ---- pieces of add(), for a graph that was made elsewhere (bulkflush.cpp) ---- */
    void open_overlay(Relation relation, Meta *working);
    void put_node(const RowId &row, const uint8_t *vector); /* the next slot; its links are written already */
    void put_upper(uint32_t number, uint32_t slot, int level, const uint32_t *links, const uint32_t *record_of);
    void add_twin(uint32_t head, const RowId &row);

    /* ---- the concept of core/insert.h ---- */
    static constexpr bool kStoresAux = false;
    static constexpr bool kStoresKeys = false;
    Metric metric() const { return meta->metric; }
    Storage storage() const { return meta->storage; }
    uint32_t dimensions() const { return meta->dimensions; }
    uint32_t m() const { return meta->m; }
    uint32_t ef_construction() const { return meta->ef_construction; }
    float max_norm() const { return meta->max_norm; }
    uint32_t count() const { return meta->nodes; }
    uint32_t visible() const { return published; }
    const void *row(uint32_t slot, void *scratch);
    void prefetch(uint32_t) {}
    void prefetch_links(int, uint32_t) {}
    uint32_t links(int level, uint32_t slot, uint32_t *out);
    void set_links(int level, uint32_t slot, const uint32_t *ids, uint32_t n);
    uint32_t capacity(int level, uint32_t slot);
    void lock(uint32_t) {}
    void unlock(uint32_t) {}
    void entry(uint32_t *slot, int *level);
    void set_entry(uint32_t slot, int level);
    bool interrupt()
    {
        CHECK_FOR_INTERRUPTS();
        return false;
    }

private:
    bool has_twins(uint32_t slot);
    uint32_t upper_record(uint32_t slot, int level);
    void load_upper();
};

} // namespace vecgpu
