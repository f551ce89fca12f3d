/*
 * stat.cpp: SQL functions over the statistics of all sessions (client/stats.h), and the epoch that the view pg_stat_vecgpu
 * measures mirrors by.
 */
#include "am/am.h"
#include "client/stats.h"

extern "C" {
PG_FUNCTION_INFO_V1(vecgpu_stat);
PG_FUNCTION_INFO_V1(vecgpu_stat_reset);
PG_FUNCTION_INFO_V1(vecgpu_epoch);
}

namespace vecgpu {

namespace {

/* An index of this database, or, with an invalid index, what found no entry of its own. */
struct IndexTotals {
    Oid index;
    VgTotals totals;
};

struct Collected {
    IndexTotals *rows;
    size_t count, capacity;
};

/* An index that has two entries becomes one row. */
void Collect(const VgStatsRow &row, void *argument)
{
    Collected *all = static_cast<Collected *>(argument);
    if (OidIsValid(row.database) && row.database != MyDatabaseId)
        return;
    size_t at = 0;
    while (at < all->count && all->rows[at].index != row.index)
        at++;
    if (at == all->count) {
        if (all->count == all->capacity) {
            all->capacity *= 2;
            all->rows = static_cast<IndexTotals *>(repalloc(all->rows, sizeof(IndexTotals) * all->capacity));
        }
        all->rows[all->count++] = {row.index, {}};
    }
    VgStatsAdd(row, &all->rows[at].totals);
}

Datum Count(uint64_t count)
{
    return Int64GetDatum(static_cast<int64>(count));
}

Datum Milliseconds(uint64_t ns)
{
    return Float8GetDatum(static_cast<double>(ns) / 1e6);
}

Datum Histogram(const uint64_t *buckets)
{
    Datum values[kWidthBuckets];
    for (uint32_t i = 0; i < kWidthBuckets; i++)
        values[i] = Count(buckets[i]);
    return PointerGetDatum(
        construct_array(values, kWidthBuckets, INT8OID, sizeof(int64), FLOAT8PASSBYVAL, TYPALIGN_DOUBLE));
}

/* Those that happened, by name. */
Datum Reasons(const uint64_t *fallbacks)
{
    StringInfoData text;
    initStringInfo(&text);
    for (uint32_t i = 0; i < kFallbacks; i++)
        if (fallbacks[i] > 0)
            appendStringInfo(&text, "%s\"%s\": " UINT64_FORMAT, text.len > 0 ? ", " : "{",
                             VgFallbackName(static_cast<VgFallback>(i)), static_cast<uint64>(fallbacks[i]));
    appendStringInfoString(&text, text.len > 0 ? "}" : "{}");
    return DirectFunctionCall1(jsonb_in, CStringGetDatum(text.data));
}

void PutRow(ReturnSetInfo *result, const IndexTotals &row)
{
    const VgTotals &totals = row.totals;
    uint64_t fallbacks = 0;
    for (uint64_t count : totals.fallbacks)
        fallbacks += count;
    if (!OidIsValid(row.index) && totals.queries == 0 && fallbacks == 0)
        return;
    Datum values[] = {ObjectIdGetDatum(row.index),  Count(totals.queries),          Count(totals.batches),
                      Count(totals.width_sum),      Histogram(totals.widths),       Milliseconds(totals.queue_ns),
                      Milliseconds(totals.copy_ns), Milliseconds(totals.kernel_ns), Milliseconds(totals.rerank_ns),
                      Count(totals.candidates),     Count(totals.dropped),          Count(fallbacks),
                      Reasons(totals.fallbacks)};
    bool nulls[lengthof(values)] = {!OidIsValid(row.index)};
    tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
}

bool IsGone(const VgStatsRow &row)
{
    if (row.database == MyDatabaseId)
        return !SearchSysCacheExists1(RELOID, ObjectIdGetDatum(row.index));
    return !SearchSysCacheExists1(DATABASEOID, ObjectIdGetDatum(row.database));
}

/* The argument: an index, or an invalid one for all of this database. */
void Reset(const VgStatsRow &row, void *argument)
{
    Oid index = *static_cast<const Oid *>(argument);
    if (OidIsValid(index)) {
        if (row.database == MyDatabaseId && row.index == index)
            VgStatsZero(row);
    } else if (!OidIsValid(row.database)) {
        VgStatsZero(row);
    } else if (IsGone(row)) {
        VgStatsFree(row);
    } else if (row.database == MyDatabaseId) {
        VgStatsZero(row);
    }
}

/* By the catalog alone: statistics of an index that somebody has locked can be reset. */
void CheckIsOurs(Oid oid)
{
    HeapTuple tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(oid));
    if (!HeapTupleIsValid(tuple))
        ereport(ERROR, (errcode(ERRCODE_UNDEFINED_OBJECT), errmsg("relation with OID %u does not exist", oid)));
    Form_pg_class form = reinterpret_cast<Form_pg_class>(GETSTRUCT(tuple));
    if (form->relkind != RELKIND_INDEX || form->relam != get_index_am_oid("vecgpu", false))
        ereport(ERROR,
                (errcode(ERRCODE_WRONG_OBJECT_TYPE), errmsg("\"%s\" is not a vecgpu index", NameStr(form->relname))));
    ReleaseSysCache(tuple);
}

/* Null unless it can be read at once: it is one of ours, is built, has a file here, and nobody changes it. */
Relation OpenForEpoch(Oid oid)
{
    if (!ConditionalLockRelationOid(oid, AccessShareLock))
        return nullptr;
    HeapTuple tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(oid));
    bool ours = false;
    if (HeapTupleIsValid(tuple)) {
        Form_pg_class form = reinterpret_cast<Form_pg_class>(GETSTRUCT(tuple));
        ours = form->relkind == RELKIND_INDEX && form->relam == get_index_am_oid("vecgpu", true) &&
               form->relpersistence != RELPERSISTENCE_TEMP &&
               (form->relpersistence == RELPERSISTENCE_PERMANENT || !RecoveryInProgress());
        ReleaseSysCache(tuple);
    }
    if (ours) {
        Relation index = index_open(oid, NoLock);
        if (index->rd_index->indisready && RelationGetNumberOfBlocks(index) > 0)
            return index;
        index_close(index, NoLock);
    }
    UnlockRelationOid(oid, AccessShareLock);
    return nullptr;
}

} // namespace

} // namespace vecgpu

extern "C" {

Datum vecgpu_stat(PG_FUNCTION_ARGS)
{
    using namespace vecgpu;
    InitMaterializedSRF(fcinfo, 0);
    ReturnSetInfo *result = reinterpret_cast<ReturnSetInfo *>(fcinfo->resultinfo);
    Collected all = {static_cast<IndexTotals *>(palloc(sizeof(IndexTotals) * 16)), 0, 16};
    VgStatsVisit(Collect, &all);
    for (size_t i = 0; i < all.count; i++)
        PutRow(result, all.rows[i]);
    return static_cast<Datum>(0);
}

Datum vecgpu_stat_reset(PG_FUNCTION_ARGS)
{
    using namespace vecgpu;
    Oid index = InvalidOid;
    if (!PG_ARGISNULL(0)) {
        index = PG_GETARG_OID(0);
        CheckIsOurs(index);
    }
    VgStatsVisit(Reset, &index);
    PG_RETURN_VOID();
}

Datum vecgpu_epoch(PG_FUNCTION_ARGS)
{
    using namespace vecgpu;
    Relation index = OpenForEpoch(PG_GETARG_OID(0));
    if (index == nullptr)
        PG_RETURN_NULL();
    Meta meta;
    VgReadMeta(index, &meta);
    index_close(index, AccessShareLock);
    PG_RETURN_INT64(static_cast<int64>(meta.epoch));
}
}
