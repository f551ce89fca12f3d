/*
 * build.h: construction of an HNSW graph in memory by threads.
 *
 * PostgreSQL-free. Threads have all signals blocked, allocate nothing but what build_start() allocated for them (one map may
 * grow, by malloc), and touch nothing but the graph, the rows and the control block. No call throws.
 */
#pragma once

#include "core/memory.h"
#include "core/pair.h"

#include <atomic>

namespace vecgpu {

enum class BuildStatus {
    Ok,
    FewerThreads, /* done, but not every thread could be had */
    Stopped,      /* by BuildControl::stop: the graph is sound as far as it goes, some nodes have no links */
    OutOfMemory,  /* nothing was done */
};

/*
 * A graph in the caller's memory. Nodes are 0 .. count - 1. The lists are padded with kNone.
 * Upper-layer records of one node are consecutive: level l >= 1 is record upper_offset + l - 1.
 */
struct Graph {
    uint32_t m;              /* links on upper layers; 2m on layer 0; 2 .. 1000 */
    uint32_t count;          /* nodes so far: graph_add_nodes() raises it */
    uint64_t records;        /* upper-layer records so far, likewise */
    uint32_t *links0;        /* count x 2m */
    uint8_t *levels;         /* count */
    uint32_t *upper_offset;  /* count; kNone for level 0 */
    uint32_t *upper;         /* records x m, slots */
    uint8_t *locks;          /* count, zero */
    float *keys0;      /* null, or count x 2m: distances of links, kept from one build to the next; NaN: not known */
    float *upper_keys; /* likewise, records x m; both or neither */
    uint8_t *dirty;    /* null, or count: set to 1 for every node whose layer-0 list changes */
    const uint8_t *reserved; /* null, or count: nodes marked 1 get 2m - 1 links on layer 0 */
    uint32_t entry;          /* kNone: empty */
    int entry_level;
};

constexpr uint32_t kMaxM = 1000;

/* Bytes of the arrays. */
constexpr uint64_t graph_links0_bytes(uint64_t nodes, uint32_t m)
{
    return nodes * 2 * m * sizeof(uint32_t);
}
constexpr uint64_t graph_upper_bytes(uint64_t records, uint32_t m)
{
    return records * m * sizeof(uint32_t);
}
constexpr uint64_t graph_node_bytes(uint64_t nodes) /* levels, upper_offset, locks together */
{
    return nodes * (sizeof(uint8_t) + sizeof(uint32_t) + sizeof(uint8_t));
}

/* Upper-layer records that nodes first .. last - 1 will need. */
uint64_t graph_count_records(uint64_t seed, uint32_t m, uint32_t first, uint32_t last);

/* An empty graph with no arrays yet. */
Graph graph_make(uint32_t m);

/*
 * Draws the levels of nodes graph.count .. last - 1 and empties their lists; the arrays must have the room. Sets count and
 * records. False if a record number would not fit (nothing is changed then).
 */
bool graph_add_nodes(Graph *graph, uint64_t seed, uint32_t last);

struct BuildParams {
    Metric metric;
    Storage storage;
    uint32_t dimensions;
    uint32_t ef_construction;
    float max_norm;   /* InnerProduct: the largest norm of all rows, see largest_norm() */
    uint32_t threads; /* 0: everything runs inside build_poll() and build_join() */
    bool connect;     /* after the last node, link what layer 0 does not reach from the entry point */
    bool background;  /* threads give way to others (nice 5) */
};

/* Shared with the caller's thread. `done` and `stop` may be read and set at any time. */
struct BuildControl {
    std::atomic<bool> stop{false};
    std::atomic<uint64_t> done{0};        /* nodes inserted */
    std::atomic<uint32_t> linked{0};      /* nodes that the connectivity pass had to link */
    std::atomic<uint32_t> unreachable{0}; /* and those that it could not: 0 unless stopped */
};

/* What build_start() will allocate for `nodes` nodes in all (old and new). */
uint64_t build_memory(const Graph &graph, const BuildParams &params, uint64_t nodes, uint64_t records);

struct Builder;

/*
 * Inserts nodes first .. last - 1 of the graph, which graph_add_nodes() has made, into what nodes 0 .. first - 1 are linked
 * to. `rows` holds the rows of all nodes, row_bytes() apart. Graph, rows and control must outlive build_join(). On OutOfMemory
 * there is no builder.
 */
BuildStatus build_start(Builder **out, Graph *graph, const void *rows, uint32_t first, uint32_t last,
                   const BuildParams &params, BuildControl *control);

/* True once all is done or stopped. Without threads it does a few milliseconds of work first. Never blocks otherwise. */
bool build_poll(Builder *builder);

uint32_t build_threads(const Builder *builder);

/* Waits for the end, frees the builder. After `stop` that takes a few milliseconds. */
BuildStatus build_join(Builder *builder);

/* All three in one. */
BuildStatus build_graph(Graph *graph, const void *rows, uint32_t first, uint32_t last, const BuildParams &params,
                   BuildControl *control);

/*
 * twin_of[i]: the lowest row with the same bytes as row i, kNone if that is i itself. Memory (about 12 bytes a row) from the
 * allocator, which may return null: OutOfMemory. `interrupt` (may be null) is called every few thousand rows and may jump out.
 */
BuildStatus find_twins(const void *rows, size_t row_size, uint32_t n, uint32_t *twin_of, const Allocator &memory,
                  void (*interrupt)(void *), void *context);

/*
 * Rows by their bytes, for finding twins as rows come in. Memory (8 to 20 bytes a row) from the allocator, which may return null.
 */
class TwinTable {
public:
    /* False: no memory. */
    bool init(uint32_t rows, const Allocator &memory);
    /* The row that was added first with the bytes of row i, or kNone: then row i is added. `*full` is set if there is no memory. */
    uint32_t find_or_add(const void *rows, size_t row_size, uint32_t i, bool *full);
    void release();

private:
    bool grow(const char *data, size_t row_size);

    Allocator memory_;
    uint64_t *table_;
    size_t capacity_, size_;
};

/* malloc; returns null when there is none. */
extern const Allocator kHeap;

/*
 * Asks for huge pages where the whole of one fits, before the memory is first touched: a graph walk reads at random, and with
 * small pages nearly every row also misses the TLB (measured: a tenth of the build). A hint; never fails.
 */
void advise_huge_pages(void *start, size_t bytes);

} // namespace vecgpu
