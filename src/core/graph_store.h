/*
 * graph_store.h: the node store of the in-memory builder (see insert.h), shared by its threads.
 *
 * List cells are read and written one by one with relaxed atomics, lists are changed only under the node's lock byte, and a
 * list only ever gains cells or has single cells replaced. So a reader without the lock sees for each cell some id that stood
 * there: at worst it misses a neighbour or meets one twice. Distances of links are read and written under the lock only.
 */
#pragma once

#include "core/build.h"
#include "core/insert.h"

#include <sched.h>

namespace vecgpu {

struct GraphStore {
    static constexpr bool kStoresAux = true;
    static constexpr bool kStoresKeys = true;

    Graph *graph;
    BuildControl *control;
    BuildParams params;
    const char *rows;
    size_t bytes;      /* of a row */
    uint32_t first;    /* node that is inserted: those before it may be searched on the pages meanwhile */
    float *aux_values; /* count; null for L2 */
    float *keys0;      /* beside links0 */
    float *upper_keys; /* beside upper */

    Metric metric() const { return params.metric; }
    Storage storage() const { return params.storage; }
    uint32_t dimensions() const { return params.dimensions; }
    uint32_t m() const { return graph->m; }
    uint32_t ef_construction() const { return params.ef_construction; }
    float max_norm() const { return params.max_norm; }
    uint32_t count() const { return graph->count; }
    uint32_t visible() const { return first; }

    const void *row(uint32_t slot, void *) const { return rows + slot * bytes; }
    float aux(uint32_t slot) const { return aux_values ? aux_values[slot] : 0; }

    void prefetch(uint32_t slot) const
    {
        const char *row = rows + slot * bytes;
        size_t end = bytes < kPrefetchBytes ? bytes : kPrefetchBytes;
        for (size_t i = 0; i < end; i += 64)
            __builtin_prefetch(row + i);
    }

    void prefetch_links(int level, uint32_t slot) const
    {
        const char *list = reinterpret_cast<const char *>(cells(level, slot));
        for (size_t i = 0; i < size_t(width(level)) * sizeof(uint32_t); i += 64)
            __builtin_prefetch(list + i);
    }

    /* Its list was read a moment ago; what else an edit needs was not. */
    void prefetch_edit(int level, uint32_t slot) const
    {
        __builtin_prefetch(graph->locks + slot, 1);
        const char *keys = reinterpret_cast<const char *>(link_keys(level, slot));
        for (size_t i = 0; i < size_t(width(level)) * sizeof(float); i += 64)
            __builtin_prefetch(keys + i, 1);
    }

    uint32_t links(int level, uint32_t slot, uint32_t *out) const
    {
        const uint32_t *list = cells(level, slot);
        uint32_t width = this->width(level), n = 0;
        for (; n < width; n++) {
            uint32_t id = __atomic_load_n(list + n, __ATOMIC_RELAXED);
            if (id == kNone)
                break;
            out[n] = id;
        }
        return n;
    }

    void set_links(int level, uint32_t slot, const uint32_t *ids, uint32_t n) const
    {
        uint32_t *list = cells(level, slot);
        for (uint32_t i = 0; i < width(level); i++)
            __atomic_store_n(list + i, i < n ? ids[i] : kNone, __ATOMIC_RELAXED);
        mark(level, slot);
    }

    void set_link(int level, uint32_t slot, uint32_t position, uint32_t id) const
    {
        __atomic_store_n(cells(level, slot) + position, id, __ATOMIC_RELAXED);
        mark(level, slot);
    }

    /* Under the node's lock. */
    void mark(int level, uint32_t slot) const
    {
        if (level == 0 && graph->dirty)
            graph->dirty[slot] = 1;
    }

    float *link_keys(int level, uint32_t slot) const
    {
        return level == 0 ? keys0 + size_t(slot) * 2 * graph->m : upper_keys + record(level, slot) * graph->m;
    }

    uint32_t capacity(int level, uint32_t slot) const
    {
        return width(level) - (level == 0 && graph->reserved && graph->reserved[slot]);
    }

    void lock(uint32_t slot) const
    {
        uint8_t *byte = graph->locks + slot;
        for (int spins = 0; __atomic_exchange_n(byte, 1, __ATOMIC_ACQUIRE); spins++)
            if (spins >= 64)
                sched_yield(); /* the holder may have lost its CPU */
    }

    void unlock(uint32_t slot) const { __atomic_store_n(graph->locks + slot, 0, __ATOMIC_RELEASE); }

    /* The entry point is settled before the threads start, see Builder. */
    void entry(uint32_t *slot, int *level) const
    {
        *slot = graph->entry;
        *level = graph->entry_level;
    }

    void set_entry(uint32_t slot, int level) const
    {
        graph->entry = slot;
        graph->entry_level = level;
    }

    bool interrupt() const { return control->stop.load(std::memory_order_relaxed); }

    uint32_t width(int level) const { return level == 0 ? 2 * graph->m : graph->m; }

private:
    static constexpr size_t kPrefetchBytes = 1024; /* the CPU's own prefetcher has caught up by then */

    size_t record(int level, uint32_t slot) const { return size_t(graph->upper_offset[slot]) + level - 1; }

    uint32_t *cells(int level, uint32_t slot) const
    {
        return level == 0 ? graph->links0 + size_t(slot) * 2 * graph->m : graph->upper + record(level, slot) * graph->m;
    }
};

} // namespace vecgpu
