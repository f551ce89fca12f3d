/*
 * recall.cpp: vecgpu_recall(): what share of the exact nearest rows a scan of the index returns.
 *
 * One pass over the table finds the exact k nearest of all queries; then each query goes through the index as a statement
 * would. A row counts as right if it is no farther than the exact k-th, so ties do not matter.
 */
#include <algorithm>

#include "am/am.h"
#include "page/region.h"

extern "C" {
PG_FUNCTION_INFO_V1(vecgpu_recall);
}

namespace vecgpu {

namespace {

constexpr uint32_t kSample = 100; /* queries that are taken from the index when none are given */
constexpr int kMaxRecallK = 10000;

struct Truth {
    const VgOpclass *opclass;
    uint32_t dimensions;
    uint32_t queries;
    uint32_t k;
    float *vectors;   /* queries x dimensions */
    double *nearest;  /* queries x k, a max-heap each */
    uint32_t *found;
    Query *query;
};

void Visit(Relation index, ItemPointer tid, Datum *values, bool *isnull, bool alive, void *context)
{
    (void) index;
    (void) tid;
    (void) alive;
    Truth *truth = static_cast<Truth *>(context);
    CHECK_FOR_INTERRUPTS();
    if (isnull[0])
        return;
    VgVector vector = truth->opclass->read(values[0]);
    if (vector.dimensions == truth->dimensions && VgIsIndexable(truth->opclass->metric, vector)) {
        for (uint32_t q = 0; q < truth->queries; q++) {
            double distance = exact_distance(truth->query[q], vector.data);
            double *heap = truth->nearest + static_cast<size_t>(q) * truth->k;
            if (truth->found[q] < truth->k) {
                heap[truth->found[q]++] = distance;
                std::push_heap(heap, heap + truth->found[q]);
            } else if (distance < heap[0]) {
                std::pop_heap(heap, heap + truth->k);
                heap[truth->k - 1] = distance;
                std::push_heap(heap, heap + truth->k);
            }
        }
    }
    VgReleaseVector(&vector);
}

/* Rows of a two-dimensional array, or the one row of a one-dimensional array. */
void TakeQueries(ArrayType *array, Truth *truth)
{
    int dimensions = ARR_NDIM(array);
    if (dimensions < 1 || dimensions > 2)
        ereport(ERROR, (errcode(ERRCODE_DATA_EXCEPTION),
                        errmsg("queries must be an array of vectors"),
                        errhint("Write them as a two-dimensional array, one row for each query.")));
    if (ARR_HASNULL(array) && array_contains_nulls(array))
        ereport(ERROR, (errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED), errmsg("vector must not contain nulls")));
    truth->queries = dimensions == 1 ? 1 : static_cast<uint32_t>(ARR_DIMS(array)[0]);
    VgCheckDimensions(truth->dimensions, static_cast<uint32_t>(ARR_DIMS(array)[dimensions - 1]));
    truth->vectors = reinterpret_cast<float *>(ARR_DATA_PTR(array));
    for (uint32_t q = 0; q < truth->queries; q++)
        VgCheckFinite(truth->vectors + static_cast<size_t>(q) * truth->dimensions, truth->dimensions);
}

/* Rows spread evenly over the graph. */
void SampleQueries(Relation index, const Meta &meta, Truth *truth)
{
    Regions regions;
    VgOpenRegions(&regions, index, &meta);
    truth->queries = meta.nodes < kSample ? meta.nodes : kSample;
    truth->vectors = static_cast<float *>(palloc(sizeof(float) * truth->dimensions * (truth->queries + 1)));
    uint8_t *row = static_cast<uint8_t *>(palloc(Shape(regions, Region::Vectors).record_bytes));
    for (uint32_t q = 0; q < truth->queries; q++) {
        uint32_t slot = static_cast<uint32_t>(static_cast<uint64_t>(q) * meta.nodes / truth->queries);
        VgReadRecord(regions, Region::Vectors, slot, row);
        decode_row(meta.storage, row, truth->dimensions, truth->vectors + static_cast<size_t>(q) * truth->dimensions);
    }
    pfree(row);
}

/* How many of the first k rows of an index scan are right. */
uint32_t CountRight(Relation heap, Relation index, IndexInfo *info, EState *estate, Truth *truth, uint32_t q,
                    double bound)
{
    const float *vector = truth->vectors + static_cast<size_t>(q) * truth->dimensions;
    Datum *elements = static_cast<Datum *>(palloc(sizeof(Datum) * truth->dimensions));
    for (uint32_t i = 0; i < truth->dimensions; i++)
        elements[i] = Float4GetDatum(vector[i]);
    ArrayType *array = construct_array(elements, static_cast<int>(truth->dimensions), FLOAT4OID, sizeof(float4), true,
                                       TYPALIGN_INT);
    ScanKeyData key;
    memset(&key, 0, sizeof(key));
    key.sk_flags = SK_ORDER_BY;
    key.sk_attno = 1;
    key.sk_strategy = 1;
    key.sk_argument = PointerGetDatum(array);

    IndexScanDesc scan = VgIndexBeginScan(heap, index, GetActiveSnapshot(), 1);
    index_rescan(scan, nullptr, 0, &key, 1);
    TupleTableSlot *slot = table_slot_create(heap, nullptr);
    ExprContext *context = GetPerTupleExprContext(estate);
    uint32_t right = 0;
    for (uint32_t i = 0; i < truth->k && index_getnext_slot(scan, ForwardScanDirection, slot); i++) {
        CHECK_FOR_INTERRUPTS();
        Datum values[INDEX_MAX_KEYS];
        bool nulls[INDEX_MAX_KEYS];
        ResetExprContext(context);
        context->ecxt_scantuple = slot;
        FormIndexDatum(info, slot, estate, values, nulls);
        VgVector stored = truth->opclass->read(values[0]);
        if (exact_distance(truth->query[q], stored.data) <= bound)
            right++;
        VgReleaseVector(&stored);
    }
    ExecDropSingleTupleTableSlot(slot);
    index_endscan(scan);
    pfree(array);
    pfree(elements);
    return right;
}

} // namespace

} // namespace vecgpu

extern "C" Datum vecgpu_recall(PG_FUNCTION_ARGS)
{
    using namespace vecgpu;
    if (PG_ARGISNULL(0) || PG_ARGISNULL(1))
        PG_RETURN_NULL();
    int k = PG_GETARG_INT32(1);
    if (k < 1 || k > kMaxRecallK)
        ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("k must be between 1 and %d", kMaxRecallK)));
    Relation index = VgOpenIndex(PG_GETARG_OID(0), AccessShareLock, true);
    if (!index->rd_index->indisvalid)
        ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
                        errmsg("index \"%s\" is not valid", RelationGetRelationName(index))));
    Relation heap = table_open(index->rd_index->indrelid, NoLock);
    Meta meta;
    VgReadMeta(index, &meta);
    if (meta.dimensions == 0) {
        table_close(heap, NoLock);
        index_close(index, AccessShareLock);
        PG_RETURN_NULL();
    }

    /* Index expressions and predicates are the owner's code: it runs as the owner, without the caller's rights. */
    Oid caller;
    int caller_context;
    GetUserIdAndSecContext(&caller, &caller_context);
    SetUserIdAndSecContext(heap->rd_rel->relowner, caller_context | SECURITY_RESTRICTED_OPERATION);
    int nest_level = NewGUCNestLevel();
    VgRestrictSearchPath();

    Truth truth;
    memset(&truth, 0, sizeof(truth));
    truth.opclass = VgOpclassOf(index);
    truth.dimensions = meta.dimensions;
    truth.k = static_cast<uint32_t>(k);
    if (PG_ARGISNULL(2))
        SampleQueries(index, meta, &truth);
    else
        TakeQueries(PG_GETARG_ARRAYTYPE_P(2), &truth);
    truth.query = static_cast<vecgpu::Query *>(palloc(sizeof(vecgpu::Query) * (truth.queries + 1)));
    for (uint32_t q = 0; q < truth.queries; q++)
        truth.query[q] = make_query(truth.vectors + static_cast<size_t>(q) * truth.dimensions, truth.dimensions,
                                    meta.metric, Storage::Float32);
    truth.nearest = static_cast<double *>(MemoryContextAllocHuge(
        CurrentMemoryContext, sizeof(double) * truth.k * (static_cast<size_t>(truth.queries) + 1)));
    truth.found = static_cast<uint32_t *>(palloc0(sizeof(uint32_t) * (truth.queries + 1)));

    IndexInfo *info = BuildIndexInfo(index);
    info->ii_Concurrent = true; /* read by an MVCC snapshot */
    table_index_build_scan(heap, index, info, false, false, Visit, &truth, nullptr);

    EState *estate = CreateExecutorState();
    uint64_t wanted = 0;
    uint64_t right = 0;
    for (uint32_t q = 0; q < truth.queries; q++) {
        CHECK_FOR_INTERRUPTS();
        uint32_t there = truth.found[q];
        if (there == 0)
            continue;
        const double *nearest = truth.nearest + static_cast<size_t>(q) * truth.k;
        uint32_t hits = CountRight(heap, index, info, estate, &truth, q, nearest[0]);
        wanted += there;
        right += hits < there ? hits : there;
    }
    FreeExecutorState(estate);
    AtEOXact_GUC(false, nest_level);
    SetUserIdAndSecContext(caller, caller_context);
    table_close(heap, NoLock);
    index_close(index, AccessShareLock);
    if (wanted == 0)
        PG_RETURN_NULL();
    PG_RETURN_FLOAT8(static_cast<double>(right) / static_cast<double>(wanted));
}
