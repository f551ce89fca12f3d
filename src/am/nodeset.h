/*
 * nodeset.h: all rows of an index in memory, made into a graph and written as regions. Used by CREATE INDEX and by a rebuild.
 */
#pragma once

#include "am/am.h"
#include "am/arena.h"
#include "core/build.h"
#include "page/publish.h"

namespace vecgpu {

struct NodeSet {
    MemoryContext context;
    const Meta *meta; /* kind, metric, storage, dimensions, m, ef_construction, incarnation */
    uint32_t row_size;
    bool report;   /* progress of CREATE INDEX */
    Arena *rows;   /* vectors */
    RowId *ids;
    uint32_t count, capacity; /* rows; after grouping: nodes */

    /* after grouping */
    TwinRecord *twins;
    uint32_t twin_count;
    uint32_t *first_twin; /* of each node, or null if no row has a twin */
    uint8_t *reserved;    /* 1 for nodes with twins, likewise */

    /* after building */
    Graph graph;
    Arena *links0, *upper, *nodes;
    Arena *keys0, *upper_keys; /* only if keep_keys */
    bool keep_keys;            /* distances of links stay known for the next insertion */
    bool background;           /* threads give way to others */
    float max_norm;
};

/* `context` is the current one. meta->dimensions must be known. */
void VgInitNodeSet(NodeSet *set, const Meta *meta, bool report);

/* Its memory is to outlive the transaction. Before the first row. */
void VgKeepNodeSet(NodeSet *set);

/* Space for one more row, for the caller to encode into. Errors past the number of rows that an index can have. */
uint8_t *VgAddRow(NodeSet *set, const RowId &id);

/*
 * Room in the graph's arrays for nodes below `last` and `records` upper records; arrays may move. New nodes get their levels.
 */
void VgExtendGraph(NodeSet *set, uint32_t last, uint64_t records);

/* Inserts nodes first .. last - 1 with the threads that settings allow; answers to cancel. */
void VgInsertNodes(NodeSet *set, uint32_t first, uint32_t last, bool connect);

/* Groups rows with equal vectors, so that each vector is one node, and builds the graph with the threads that settings allow. */
void VgBuildNodeSet(NodeSet *set);

/*
 * Writes the regions of generation meta->generation and sets counters, entry point, cell width and regions in *meta. `fresh`: the
 * relation is new and nobody else can see it; pages are not WAL-logged here. Otherwise new extents are taken and logged.
 */
void VgWriteNodeSet(NodeSet *set, Relation index, Meta *meta, bool fresh);

void VgFreeNodeSet(NodeSet *set);

} // namespace vecgpu
