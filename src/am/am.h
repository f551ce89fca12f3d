/*
 * am.h: what the files of the access method share. One callback a file; see src/README.md.
 */
#pragma once

#include "core/distance.h"
#include "page/page.h"

namespace vecgpu {

/* ---- vectors in datums (vector.cpp) ---- */

struct VgVector {
    const float *data;
    uint32_t dimensions;
    void *owned; /* to pfree, or null */
};

/* What an operator class says about itself, through its support function 1. */
struct VgOpclass {
    Metric metric;
    /* Reads a datum of the class's type; checks shape and NULL elements, not the numbers. */
    VgVector (*read)(Datum datum);
};

const VgOpclass *VgOpclassOf(Relation index);

VgVector VgReadRealArray(Datum datum);

inline void VgReleaseVector(VgVector *vector)
{
    if (vector->owned != nullptr)
        pfree(vector->owned);
    vector->owned = nullptr;
}

/* An error for NaN and infinity. */
void VgCheckFinite(const float *data, uint32_t dimensions);

void VgCheckDimensions(uint32_t expected, uint32_t actual);

/* True if the row belongs in an index of this metric: everything but zero vectors under cosine. */
bool VgIsIndexable(Metric metric, const VgVector &vector);

/*
 * Encodes into `row`; an error that names the value if the storage cannot hold it. Returns how far off the stored vector is:
 * |x - stored x|, under cosine relative to |x|; 0 for float32. The order of a scan rests on it (Meta.max_error).
 */
float VgEncode(Metric metric, Storage storage, const VgVector &vector, uint8_t *row);

const char *VgStorageName(Storage storage);

/* ---- options (options.cpp) ---- */

constexpr int kDefaultM = 16, kLowestM = 2, kHighestM = 100;
constexpr int kDefaultEfConstruction = 64, kMinEfConstruction = 4, kMaxEfConstruction = 1000;
constexpr int kDefaultEfSearch = 40, kMinEfSearch = 1, kMaxEfSearch = 10000;

struct VgOptions {
    int32 vl_len_;
    int kind;
    int storage;
    int m;
    int ef_construction;
    int dimensions;
    int ef_search; /* 0: the default */
};

extern int vg_ef_search;       /* vecgpu.ef_search; 0: the index's own */
extern int vg_iterative_scan; /* vecgpu.iterative_scan */
enum VgIterativeScan { kStrictOrder, kRelaxedOrder };
extern int vg_flush_rows;      /* vecgpu.flush_rows */

void VgInitOptions(void);
bytea *VgParseOptions(Datum reloptions, bool validate);
VgOptions VgOptionsOf(Relation index); /* defaults filled in */
int VgEfSearch(Relation index);        /* session setting, else reloption, else default */

/* ---- callbacks ---- */

IndexBuildResult *VgBuild(Relation heap, Relation index, IndexInfo *info);
void VgBuildEmpty(Relation index);
bool VgInsert(Relation index, Datum *values, bool *isnull, ItemPointer tid, Relation heap, IndexUniqueCheck unique,
              bool unchanged, IndexInfo *info);
IndexBulkDeleteResult *VgBulkDelete(IndexVacuumInfo *info, IndexBulkDeleteResult *stats,
                                    IndexBulkDeleteCallback callback, void *state);
IndexBulkDeleteResult *VgVacuumCleanup(IndexVacuumInfo *info, IndexBulkDeleteResult *stats);
void VgCostEstimate(PlannerInfo *root, IndexPath *path, double loop_count, Cost *startup, Cost *total,
                    Selectivity *selectivity, double *correlation, double *pages);
bool VgValidate(Oid opclass);
IndexScanDesc VgBeginScan(Relation index, int nkeys, int norderbys);
void VgRescan(IndexScanDesc scan, ScanKey keys, int nkeys, ScanKey orderbys, int norderbys);
bool VgGetTuple(IndexScanDesc scan, ScanDirection direction);
void VgEndScan(IndexScanDesc scan);

/* ---- flush (flush.cpp) ---- */

struct GraphCache;

/*
 * Moves the rows of the delta into the graph. The caller holds the structure lock. Returns the rows moved. `cache` (bulkflush.h)
 * may be null.
 */
uint64_t VgFlush(Relation index, GraphCache *cache);

/* How a request hands its flush threshold to the worker, beside the database. */
struct FlushRequest {
    Oid database;
    int32 flush_rows;
};

/* Held by the worker of an index as long as it runs, in session mode; `try` form. */
bool VgTryLockWorker(Relation index);
bool VgWorkerRuns(Relation index);

/* Asks for a flush in the background; does it here if no worker can be had and the delta is `urgent`. */
void VgRequestFlush(Relation index, bool urgent);

/* ---- rebuild (rebuild.cpp) ---- */

/*
 * Builds the graph anew from the live rows, those of the delta too, and leaves the dead ones behind. The caller holds the
 * structure lock. Returns the rows that came from the delta.
 */
uint64_t VgRebuild(Relation index);

/* Opens a vecgpu index for an SQL function; checks kind, ownership (of the index's table or the given role) and state. */
Relation VgOpenIndex(Oid oid, LOCKMODE mode, bool owner_only);

} // namespace vecgpu
