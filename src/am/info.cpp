/*
 * info.cpp: vecgpu_info(), and how SQL functions open an index.
 */
#include <algorithm>
#include <initializer_list>

#include "am/mirror.h"
#include "client/settings.h"
#include "page/delta.h"
#include "page/parked.h"
#include "page/verify.h"

extern "C" {
PG_FUNCTION_INFO_V1(vecgpu_info);
PG_FUNCTION_INFO_V1(vecgpu_check);
}

namespace vecgpu {

Relation VgOpenIndex(Oid oid, LOCKMODE mode, bool owner_only)
{
    /* Lock the table before the index, as every statement does, or we could deadlock with one. */
    Oid heap = IndexGetRelation(oid, true);
    if (!OidIsValid(heap)) {
        char *name = get_rel_name(oid);
        if (name == nullptr)
            ereport(ERROR, (errcode(ERRCODE_UNDEFINED_OBJECT), errmsg("relation with OID %u does not exist", oid)));
        ereport(ERROR, (errcode(ERRCODE_WRONG_OBJECT_TYPE), errmsg("\"%s\" is not an index", name)));
    }
    LockRelationOid(heap, mode);
    Relation index = index_open(oid, mode);
    if (index->rd_rel->relkind != RELKIND_INDEX || index->rd_rel->relam != get_index_am_oid("vecgpu", false))
        ereport(ERROR, (errcode(ERRCODE_WRONG_OBJECT_TYPE),
                        errmsg("\"%s\" is not a vecgpu index", RelationGetRelationName(index))));
    if (RELATION_IS_OTHER_TEMP(index))
        ereport(ERROR, (errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
                        errmsg("cannot access temporary indexes of other sessions")));
    if (owner_only && !VgOwnsClass(heap))
        aclcheck_error(ACLCHECK_NOT_OWNER, OBJECT_INDEX, RelationGetRelationName(index));
    return index;
}

static const char *MetricName(Metric metric)
{
    return metric == Metric::L2 ? "l2" : metric == Metric::InnerProduct ? "ip" : "cosine";
}

/* µs of the reference batches. */
static Datum Times(const float *us)
{
    Datum values[kReferenceBatches];
    for (uint32_t i = 0; i < kReferenceBatches; i++)
        values[i] = Float4GetDatum(us[i]);
    return PointerGetDatum(construct_array(values, kReferenceBatches, FLOAT4OID, sizeof(float4), true, TYPALIGN_INT));
}

} // namespace vecgpu

extern "C" {

Datum vecgpu_info(PG_FUNCTION_ARGS)
{
    using namespace vecgpu;
    Relation index = VgOpenIndex(PG_GETARG_OID(0), AccessShareLock, false);
    AclResult acl = pg_class_aclcheck(index->rd_index->indrelid, GetUserId(), ACL_SELECT);
    if (acl != ACLCHECK_OK && !VgOwnsClass(index->rd_index->indrelid))
        aclcheck_error(acl, OBJECT_INDEX, RelationGetRelationName(index));
    Meta meta;
    VgReadMeta(index, &meta);
    int64 delta_rows = static_cast<int64>(VgDeltaRows(index, meta));
    int64 delta_pages = 0;
    for (const DeltaChain &chain : meta.chains)
        delta_pages += chain.pages;
    int64 dead = static_cast<int64>(meta.dead_nodes) + meta.dead_twins;

    TupleDesc description;
    if (get_call_result_type(fcinfo, nullptr, &description) != TYPEFUNC_COMPOSITE)
        elog(ERROR, "return type must be a row type");
    description = BlessTupleDesc(description);
    int at = 0;
    Datum values[26];
    bool nulls[26] = {};
    values[at++] = CStringGetTextDatum(meta.kind == IndexKind::Hnsw ? "hnsw" : "flat");
    values[at++] = CStringGetTextDatum(MetricName(meta.metric));
    values[at++] = CStringGetTextDatum(VgStorageName(meta.storage));
    nulls[at] = meta.dimensions == 0;
    values[at++] = Int32GetDatum(static_cast<int32>(meta.dimensions));
    values[at++] = Int32GetDatum(meta.m);
    values[at++] = Int32GetDatum(meta.ef_construction);
    values[at++] = Int64GetDatum(static_cast<int64>(meta.nodes) + meta.twins + delta_rows - dead);
    values[at++] = Int64GetDatum(delta_rows);
    values[at++] = Int64GetDatum(dead);
    values[at++] = Int64GetDatum(static_cast<int64>(meta.nodes));
    values[at++] = Int64GetDatum(static_cast<int64>(meta.twins));
    values[at++] = Int64GetDatum(static_cast<int64>(meta.upper));
    values[at++] = Int32GetDatum(meta.entry_handle == kNone ? 0 : meta.entry_level);
    values[at++] = Int64GetDatum(static_cast<int64>(meta.generation));
    values[at++] = Int64GetDatum(static_cast<int64>(meta.epoch));
    for (Region region : {Region::Vectors, Region::Links, Region::Slots, Region::Twins, Region::Upper})
        values[at++] = Int64GetDatum(static_cast<int64>(meta.regions[static_cast<int>(region)].pages));
    values[at++] = Int64GetDatum(delta_pages);
    values[at++] = Int64GetDatum(static_cast<int64>(VgParkedPages(index, meta)));
    values[at++] = Int64GetDatum(static_cast<int64>(RelationGetNumberOfBlocks(index)));

    MirrorEntry mirror;
    uint32_t ef = static_cast<uint32_t>(VgEfSearch(index));
    bool loaded = VgFindMirror(index, meta, std::max(ef, kUsualK), kUsualK, &mirror);
    bool exact = loaded && (vg_device_form == kFormAuto ? mirror.form : SearchForm::Graph) == SearchForm::Exact;
    if (vg_device_form == kFormExact || meta.kind == IndexKind::Flat)
        exact = true;
    nulls[at] = !loaded;
    values[at++] = CStringGetTextDatum(exact ? "exact" : "graph");
    for (const float *us : {mirror.exact_us, mirror.graph_us}) {
        nulls[at] = !loaded || us[0] == 0;
        values[at] = nulls[at] ? static_cast<Datum>(0) : Times(us);
        at++;
    }
    index_close(index, AccessShareLock);
    PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(description, values, nulls)));
}

Datum vecgpu_check(PG_FUNCTION_ARGS)
{
    using namespace vecgpu;
    Relation index = VgOpenIndex(PG_GETARG_OID(0), AccessShareLock, false);
    VgVerify(index);
    index_close(index, AccessShareLock);
    PG_RETURN_VOID();
}
}
