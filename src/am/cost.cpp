/*
 * cost.cpp: planner numbers.
 *
 * Nearly all work of a search happens before its first row, so it is start-up cost; each further row costs about one
 * expansion of a node. Beyond a quarter of the nodes a scan reads everything in order (core/search.h), which bounds the total.
 */
#include <cmath>

#include "am/am.h"
#include "am/scan.h"

namespace vecgpu {

void VgCostEstimate(PlannerInfo *root, IndexPath *path, double loop_count, Cost *startup, Cost *total,
                    Selectivity *selectivity, double *correlation, double *pages)
{
    /* Without an ORDER BY there is nothing that this index can answer: it leaves NULLs out, and knows no other order. */
    if (path->indexorderbys == NIL) {
        *startup = get_float8_infinity();
        *total = get_float8_infinity();
        *selectivity = 0;
        *correlation = 0;
        *pages = 0;
#if PG_VERSION_NUM >= 180000
        path->path.disabled_nodes = 2;
#endif
        return;
    }

    GenericCosts generic;
    memset(&generic, 0, sizeof(generic));
    genericcostestimate(root, path, loop_count, &generic);

    double rows = path->indexinfo->tuples;
    Meta meta;
    double ef = vg_ef_search > 0 ? vg_ef_search : kDefaultEfSearch;
    if (path->indexinfo->hypothetical) {
        /* An index that only a planner hook imagines has no pages to look at. */
        VgNewMeta(&meta, IndexKind::Hnsw, Metric::L2, Storage::Float32, 128, kDefaultM, kDefaultEfConstruction);
        meta.nodes = static_cast<uint32_t>(rows);
    } else {
        Relation index = index_open(path->indexinfo->indexoid, NoLock);
        VgReadMeta(index, &meta);
        ef = VgEfSearch(index);
        index_close(index, NoLock);
    }

    double nodes = meta.nodes;
    double dimensions = meta.dimensions > 0 ? meta.dimensions : 1;
    double bytes = meta.dimensions > 0 ? row_bytes(meta.storage, meta.dimensions) : 4;
    /* One distance, relative to an operator call: calls of SIMD kernels on vectors at hand are cheap. */
    double distance_cost = cpu_operator_cost * (1 + dimensions / 1024);
    double delta = 0;
    for (const DeltaChain &chain : meta.chains)
        delta += chain.pages;

    bool sweeps = VgSweepsAtOnce(meta, static_cast<uint64_t>(ef));
    double keys = sweeps ? nodes : ef * meta.m * 1.3 + 100;
    if (keys > nodes)
        keys = nodes;
    double pages_per_key = bytes / kPayloadBytes > 1 ? bytes / kPayloadBytes : 1;
    double walk_pages = sweeps ? nodes * bytes / kPayloadBytes : keys * pages_per_key;
    /*
     * What fits into the caches is there: the graph is hot, and the alternative, a sequential scan, is not charged for
     * fetching vectors out of line either. The rest is scattered reads.
     */
    double index_pages = path->indexinfo->pages > 0 ? path->indexinfo->pages : 1;
    double cached = effective_cache_size >= index_pages ? 1 : effective_cache_size / index_pages;
    double page_cost = cached * 0.02 * seq_page_cost + (1 - cached) * (sweeps ? seq_page_cost : random_page_cost);

    *startup = keys * distance_cost + (walk_pages + delta) * page_cost +
               delta * (kPayloadBytes / (bytes + 8)) * distance_cost;
    double sweep = nodes * distance_cost + nodes * bytes / kPayloadBytes * page_cost +
                   nodes * cpu_operator_cost * std::log2(nodes + 2);
    double per_row = cpu_index_tuple_cost + (sweeps ? cpu_operator_cost * std::log2(nodes + 2)
                                                    : meta.m * (distance_cost + pages_per_key * page_cost * 0.5));
    double further = rows * per_row;
    if (!sweeps && further > sweep + rows * cpu_index_tuple_cost)
        further = sweep + rows * cpu_index_tuple_cost;
    *total = *startup + further;
    *selectivity = generic.indexSelectivity;
    *correlation = 0;
    *pages = walk_pages;
}

} // namespace vecgpu
