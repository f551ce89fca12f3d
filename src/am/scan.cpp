/*
 * scan.cpp: ORDER BY column <operator> query.
 *
 * A scan works with one copy of the metapage. It reads the delta of that copy first, with exact keys, and then merges
 * the delta, nearest first, with the nodes of the graph (nodes.h). Because a flush moves rows from the delta to the graph in
 * one WAL record of the metapage, a row is in exactly one of the two for every copy (src/README.md).
 *
 * Rows come out by (key, TID). A node that the graph finds after a farther row went out is missed: it waits, and comes out after
 * everything else, if the executor wants that much. Many missed nodes mean that the graph is a poor guide here: then
 * the scan looks at all vectors and is exact from there on.
 */
#include <algorithm>
#include <cfloat>
#include <cmath>

#include "am/heapvec.h"
#include "am/nodes.h"
#include "am/scan.h"
#include "page/allocator.h"
#include "page/delta.h"
#include "page/graph.h"
#include "planner/demand.h"

namespace vecgpu {

namespace {

constexpr uint32_t kMaxGroup = 65536; /* nodes of equal key that are put in order */
constexpr uint32_t kMaxKilled = 64;

/* One row that the scan may return. */
struct RowHit {
    float key;
    double distance; /* of the SQL operator where the key is too coarse to order by, else the key */
    RowId row;
    uint16_t kind; /* 0 slot, 1 twin, 2 delta */
    uint32_t number;
};

/* A hit with its exact distance from the heap. */
struct ExactHit {
    double distance;
    RowHit hit;
};

struct Scan {
    MemoryContext context; /* of one execution; reset by a rescan */
    const VgOpclass *opclass;
    bool started;
    bool have_returned;

    Meta meta;
    PageSource source;
    Nodes nodes;
    float *query; /* null: a NULL query, rows in any order */

    RowHit *delta; /* min-heap: few of its rows are ever asked for */
    uint32_t delta_count, delta_capacity;

    bool head_ready, head_done; /* next node of the stream */
    uint32_t head_slot;
    float head_key;

    RowHit *group;
    uint32_t group_count, group_next, group_capacity;
    float last_key;

    uint64_t unexpected; /* nodes after which the filter is not what the planner took it for */

    uint64_t *missed; /* nodes found too late: key bits and slot, in the order of arrival */
    uint64_t missed_count, missed_next, missed_capacity;

    /* narrow storage only */
    bool rerank;
    bool heap_open;
    HeapVectors vectors;
    ExactHit *exact; /* min-heap by (distance, row) */
    uint32_t exact_count, exact_capacity;
    double query_norm;
    bool peeked, peeked_end; /* the hit after those in the heap */
    RowHit peek;
    double last_distance;
    ExactHit *exact_missed; /* nearer than what was returned before them: they come last */
    uint32_t exact_missed_count, exact_missed_next, exact_missed_capacity;

    RowHit returned;
    KilledRow killed[kMaxKilled];
    uint32_t killed_count;
};

bool RowLess(const RowId &a, const RowId &b)
{
    if (a.block_high != b.block_high)
        return a.block_high < b.block_high;
    if (a.block_low != b.block_low)
        return a.block_low < b.block_low;
    return a.offset < b.offset;
}

bool HitLess(const RowHit &a, const RowHit &b)
{
    if (a.key != b.key)
        return a.key < b.key;
    if (a.distance != b.distance)
        return a.distance < b.distance;
    return RowLess(a.row, b.row);
}

/* For std heaps, whose top is the greatest. */
bool HitGreater(const RowHit &a, const RowHit &b)
{
    return HitLess(b, a);
}

/*
 * The operator's value as the final order needs it. A key is a float32; the operator's value is a double that two rows of
 * equal key may differ in: under cosine always, elsewhere where the sum of squares left the range of float32.
 */
bool IsCoarse(const vecgpu::Query &query, float key)
{
    return query.storage == Storage::Float32 &&
           (query.metric == Metric::Cosine || key >= FLT_MAX || key <= -FLT_MAX || std::fabs(key) < 1e-29f);
}

/* The same for exact hits; undefined distances (NaN) are the greatest. */
bool ExactGreater(const ExactHit &a, const ExactHit &b)
{
    bool a_undefined = std::isnan(a.distance);
    bool b_undefined = std::isnan(b.distance);
    if (a_undefined != b_undefined)
        return a_undefined;
    if (a_undefined)
        return RowLess(b.hit.row, a.hit.row);
    if (a.distance != b.distance)
        return a.distance > b.distance;
    return RowLess(b.hit.row, a.hit.row);
}

Scan *ScanOf(IndexScanDesc scan)
{
    return static_cast<Scan *>(scan->opaque);
}

bool AddDelta(void *context, const DeltaVisit &visit)
{
    Scan *so = static_cast<Scan *>(context);
    if ((visit.meta & kRowStateMask) != kRowLive)
        return true;
    if (so->delta_count == so->delta_capacity) {
        so->delta_capacity *= 2;
        so->delta = static_cast<RowHit *>(repalloc_huge(so->delta, sizeof(RowHit) * so->delta_capacity));
    }
    float row_key = so->query == nullptr ? 0 : key(so->source.query, visit.vector) + 0.0f;
    double distance = row_key;
    if (so->query != nullptr && IsCoarse(so->source.query, row_key))
        distance = exact_distance(so->source.query, visit.vector);
    so->delta[so->delta_count++] = {row_key, distance, visit.id, 2, 0};
    return true;
}

void CheckQuery(const Meta &meta, const VgVector &vector)
{
    if (meta.dimensions != 0)
        VgCheckDimensions(meta.dimensions, vector.dimensions);
    VgCheckFinite(vector.data, vector.dimensions);
}

/* Reads metapage and delta, and sets up the stream. */
void Start(IndexScanDesc scan)
{
    Scan *so = ScanOf(scan);
    Relation index = scan->indexRelation;
    MemoryContext old = MemoryContextSwitchTo(so->context);

    so->opclass = VgOpclassOf(index);
    so->query = nullptr;
    VgVector vector = {nullptr, 0, nullptr};
    if (!(scan->orderByData->sk_flags & SK_ISNULL))
        vector = so->opclass->read(scan->orderByData->sk_argument);

    /* A search parameter never caps the answer: what a LIMIT wants is wanted of the search too. */
    uint64_t ef = static_cast<uint64_t>(VgEfSearch(index));
    Demand demand = VgDemandOf(scan);
    if (demand.rows > ef)
        ef = demand.rows;
    DeltaChain stale = {kNoBlock, 0, 0, kNoBlock, 0, 0};
    uint32_t stale_chain = 0;
    double fetched = static_cast<double>(demand.rows) / demand.passing;
    for (;;) {
        CHECK_FOR_INTERRUPTS();
        VgReadMeta(index, &so->meta);
        if (vector.data != nullptr) {
            CheckQuery(so->meta, vector);
            so->query = const_cast<float *>(vector.data);
        }
        so->source.init(index, &so->meta, so->query);
        so->delta_count = 0;
        so->delta_capacity = 64;
        so->delta = static_cast<RowHit *>(palloc(sizeof(RowHit) * so->delta_capacity));
        bool whole = true;
        uint32_t chain = 0;
        for (; chain < kDeltaChains && whole; chain++) {
            /* A page is freed only after its chain's head moved on; if it did not, the page is damaged. */
            if (stale.head_block != kNoBlock && chain == stale_chain &&
                memcmp(&stale, &so->meta.chains[chain], offsetof(DeltaChain, tail_block)) == 0)
                VgCorrupt(index, stale.head_block, "the delta chain that starts here is broken");
            whole = VgDeltaScan(index, so->meta, chain, so->query != nullptr, AddDelta, so, nullptr);
        }
        if (whole)
            break;
        stale_chain = chain - 1;
        stale = so->meta.chains[stale_chain];
        MemoryContextReset(so->context);
        if (vector.data != nullptr)
            vector = so->opclass->read(scan->orderByData->sk_argument);
    }
    std::make_heap(so->delta, so->delta + so->delta_count, HitGreater);

    /* Past a quarter of the nodes, looking at all of them in order is cheaper than to walk on. */
    uint64_t sweep_after = so->meta.nodes / 4;
    if (so->query == nullptr || demand.all || VgSweepsAtOnce(so->meta, ef) || fetched > so->meta.nodes / 32.0) {
        sweep_after = 0;
        ef = 1;
    }
    bool known = demand.rows > 0 && fetched < 1e15;
    so->nodes.init(index, &so->meta, &so->source, so->context,
                   {static_cast<uint32_t>(ef), sweep_after, known ? static_cast<uint64_t>(fetched) : 0, demand.all,
                    vg_iterative_scan == kStrictOrder});
    so->head_ready = so->head_done = false;
    so->group_capacity = 64;
    so->group = static_cast<RowHit *>(palloc(sizeof(RowHit) * so->group_capacity));
    so->group_count = so->group_next = 0;
    so->last_key = -FLT_MAX;
    so->unexpected = known ? 64 + 8 * static_cast<uint64_t>(fetched) : UINT64_MAX;
    so->missed = nullptr;
    so->missed_count = so->missed_next = so->missed_capacity = 0;
    so->rerank = so->meta.storage != Storage::Float32 && so->query != nullptr;
    if (so->rerank) {
        so->exact_capacity = 64;
        so->exact = static_cast<ExactHit *>(palloc(sizeof(ExactHit) * so->exact_capacity));
        so->query_norm = 0;
        for (uint32_t i = 0; i < so->meta.dimensions; i++)
            so->query_norm += static_cast<double>(so->query[i]) * so->query[i];
        so->query_norm = std::sqrt(so->query_norm);
        so->peeked = so->peeked_end = false;
        so->exact_count = 0;
        so->last_distance = -DBL_MAX;
        so->exact_missed_count = so->exact_missed_next = 0;
        so->exact_missed_capacity = 16;
        so->exact_missed = static_cast<ExactHit *>(palloc(sizeof(ExactHit) * so->exact_missed_capacity));
        if (!so->heap_open) {
            MemoryContextSwitchTo(old);
            VgOpenHeapVectors(&so->vectors, scan->heapRelation, index);
            so->heap_open = true;
        }
    }
    MemoryContextSwitchTo(old);
    so->started = true;
}

void AddToGroup(Scan *so, const RowHit &hit)
{
    if (so->group_count == so->group_capacity) {
        so->group_capacity *= 2;
        so->group = static_cast<RowHit *>(repalloc_huge(so->group, sizeof(RowHit) * so->group_capacity));
    }
    so->group[so->group_count++] = hit;
}

bool Returnable(IndexScanDesc scan, uint16_t meta)
{
    if ((meta & kRowStateMask) != kRowLive)
        return false;
    return !(meta & kRowKilled) || !scan->ignore_killed_tuples;
}

/* The rows of a node: its own and its twins. */
void AddNode(IndexScanDesc scan, uint32_t slot, float key)
{
    Scan *so = ScanOf(scan);
    const Regions &regions = so->source.regions;
    SlotRecord record;
    VgReadSlot(regions, slot, &record);
    double distance = key;
    if (so->query != nullptr && IsCoarse(so->source.query, key)) {
        VgReadRecord(regions, Region::Vectors, slot, so->source.scratch);
        distance = exact_distance(so->source.query, so->source.scratch);
    }
    if (Returnable(scan, record.meta))
        AddToGroup(so, {key, distance, record.row, 0, slot});
    if (!(record.meta & kRowHasTwins))
        return;
    uint32_t steps = 0;
    for (uint32_t twin = VgFirstTwin(regions, slot); twin < so->meta.twins;) {
        CHECK_FOR_INTERRUPTS();
        TwinRecord entry;
        VgReadRecord(regions, Region::Twins, twin, &entry);
        if (entry.slot != slot)
            break;
        if (Returnable(scan, entry.meta))
            AddToGroup(so, {key, distance, entry.row, 1, twin});
        if (++steps > so->meta.twins)
            VgCorrupt(scan->indexRelation, 0, "a chain of twins runs in a circle");
        twin = entry.next;
    }
}

void Miss(Scan *so, uint32_t slot, float key)
{
    if (so->missed_count == so->missed_capacity) {
        uint64_t capacity = so->missed_capacity == 0 ? 64 : so->missed_capacity * 2;
        uint64_t *larger = static_cast<uint64_t *>(MemoryContextAllocHuge(so->context, sizeof(uint64_t) * capacity));
        if (so->missed_count > 0) {
            memcpy(larger, so->missed, sizeof(uint64_t) * so->missed_count);
            pfree(so->missed);
        }
        so->missed = larger;
        so->missed_capacity = capacity;
    }
    so->missed[so->missed_count++] = pack(key, slot);
    if (vg_iterative_scan == kStrictOrder && so->missed_count > 8 + so->nodes.emitted() / 32)
        so->nodes.sweep_soon();
}

/* Looks ahead one node of the stream. */
void FetchHead(Scan *so)
{
    /*
     * A filter that goes against the query turns down row after row. From here on every row counts, and an exact pass costs less
     * than a walk that ends who knows where.
     */
    if (so->nodes.emitted() >= so->unexpected)
        so->nodes.sweep_soon();
    while (!so->head_ready && !so->head_done) {
        if (!so->nodes.next(&so->head_slot, &so->head_key))
            so->head_done = true;
        else if (so->head_key < so->last_key)
            Miss(so, so->head_slot, so->head_key);
        else
            so->head_ready = true;
    }
}

/* Collects the next rows of equal key, in TID order. False when the index is exhausted. */
bool FillGroup(IndexScanDesc scan)
{
    Scan *so = ScanOf(scan);
    so->group_count = so->group_next = 0;
    while (so->group_count == 0) {
        FetchHead(so);
        bool graph = so->head_ready;
        bool delta = so->delta_count > 0;
        if (!graph && !delta) {
            if (so->missed_next == so->missed_count)
                return false;
            if (so->missed_next == 0)
                std::sort(so->missed, so->missed + so->missed_count);
            uint64_t missed = so->missed[so->missed_next++];
            AddNode(scan, slot_of(missed), key_of(missed));
            continue;
        }
        float group_key = graph ? so->head_key : FLT_MAX;
        if (delta && (!graph || so->delta[0].key < group_key))
            group_key = so->delta[0].key;
        so->last_key = group_key;
        while (so->delta_count > 0 && so->delta[0].key <= group_key) {
            std::pop_heap(so->delta, so->delta + so->delta_count, HitGreater);
            AddToGroup(so, so->delta[--so->delta_count]);
        }
        while (so->head_ready && so->head_key <= group_key && so->group_count < kMaxGroup) {
            AddNode(scan, so->head_slot, so->head_key);
            so->head_ready = false;
            FetchHead(so);
        }
    }
    if (so->group_count > 1)
        std::sort(so->group, so->group + so->group_count, HitLess);
    return true;
}

bool NextHit(IndexScanDesc scan, RowHit *hit)
{
    Scan *so = ScanOf(scan);
    if (so->group_next == so->group_count && !FillGroup(scan))
        return false;
    *hit = so->group[so->group_next++];
    return true;
}

void Kill(IndexScanDesc scan, const RowHit &hit)
{
    Scan *so = ScanOf(scan);
    if (hit.kind == 2)
        return; /* delta rows leave soon enough */
    if (so->killed_count == kMaxKilled) {
        VgKillRows(so->source.regions, so->killed, so->killed_count);
        so->killed_count = 0;
    }
    so->killed[so->killed_count++] = {hit.number, hit.kind == 1};
}

/*
 * The least operator value that a row can have whose stored vector has this key: stored vectors are off by at most max_error.
 * It rises with the key, so it bounds all later hits too. The factor covers the rounding of float32 sums.
 */
double LowerBound(const Scan *so, float key)
{
    constexpr double slack = 1e-5;
    double error = so->meta.max_error;
    switch (so->meta.metric) {
        case Metric::L2:
            return std::sqrt(static_cast<double>(key)) * (1 - slack) - error;
        case Metric::InnerProduct:
            return key - std::fabs(key) * slack - so->query_norm * error;
        default:
            /* Unit vectors of x and stored x are at most 2 error apart. */
            return key - slack - 2 * error;
    }
}

/* Exact distance of a hit, into the heap of hits, if its row is visible. */
void FetchExact(IndexScanDesc scan, const RowHit &hit)
{
    Scan *so = ScanOf(scan);
    Datum value;
    bool all_dead = false;
    if (!VgFetchHeapVector(&so->vectors, TidOf(hit.row), scan->xs_snapshot, &value, &all_dead)) {
        if (all_dead && !scan->xactStartedInRecovery)
            Kill(scan, hit);
        return;
    }
    VgVector vector = so->opclass->read(value);
    VgCheckDimensions(so->meta.dimensions, vector.dimensions);
    vecgpu::Query exact = make_query(so->query, vector.dimensions, so->meta.metric, Storage::Float32);
    double distance = exact_distance(exact, vector.data);
    VgReleaseVector(&vector);
    if (so->exact_count == so->exact_capacity) {
        so->exact_capacity *= 2;
        so->exact = static_cast<ExactHit *>(repalloc_huge(so->exact, sizeof(ExactHit) * so->exact_capacity));
    }
    so->exact[so->exact_count++] = {distance, hit};
    std::push_heap(so->exact, so->exact + so->exact_count, ExactGreater);
}

/* As NextHit, in the order of the exact distances of the heap. */
bool NextExact(IndexScanDesc scan, RowHit *hit)
{
    Scan *so = ScanOf(scan);
    for (;;) {
        CHECK_FOR_INTERRUPTS();
        if (!so->peeked && !so->peeked_end) {
            so->peeked = NextHit(scan, &so->peek);
            so->peeked_end = !so->peeked;
        }
        /* Undefined distances (NaN) sort last: they go out only when nothing else is left. */
        if (so->peeked && (so->exact_count == 0 || !(so->exact[0].distance <= LowerBound(so, so->peek.key)))) {
            so->peeked = false;
            FetchExact(scan, so->peek);
            continue;
        }
        if (so->exact_count == 0)
            break;
        std::pop_heap(so->exact, so->exact + so->exact_count, ExactGreater);
        const ExactHit &first = so->exact[--so->exact_count];
        if (first.distance < so->last_distance) {
            if (so->exact_missed_count == so->exact_missed_capacity) {
                so->exact_missed_capacity *= 2;
                so->exact_missed = static_cast<ExactHit *>(
                    repalloc_huge(so->exact_missed, sizeof(ExactHit) * so->exact_missed_capacity));
            }
            so->exact_missed[so->exact_missed_count++] = first;
            continue;
        }
        so->last_distance = first.distance;
        *hit = first.hit;
        return true;
    }
    if (so->exact_missed_next == so->exact_missed_count)
        return false;
    if (so->exact_missed_next == 0)
        std::sort(so->exact_missed, so->exact_missed + so->exact_missed_count,
                  [](const ExactHit &a, const ExactHit &b) { return ExactGreater(b, a); });
    *hit = so->exact_missed[so->exact_missed_next++].hit;
    return true;
}

void FlushKilled(IndexScanDesc scan)
{
    Scan *so = ScanOf(scan);
    if (so->started && so->killed_count > 0)
        VgKillRows(so->source.regions, so->killed, so->killed_count);
    so->killed_count = 0;
}

} // namespace

IndexScanDesc VgBeginScan(Relation index, int nkeys, int norderbys)
{
    IndexScanDesc scan = RelationGetIndexScan(index, nkeys, norderbys);
    Scan *so = static_cast<Scan *>(palloc0(sizeof(Scan)));
    so->context = AllocSetContextCreate(CurrentMemoryContext, "vecgpu scan", ALLOCSET_DEFAULT_SIZES);
    scan->opaque = so;
    return scan;
}

void VgRescan(IndexScanDesc scan, ScanKey keys, int nkeys, ScanKey orderbys, int norderbys)
{
    Scan *so = ScanOf(scan);
    (void) nkeys;
    (void) norderbys;
    FlushKilled(scan);
    if (so->started)
        so->nodes.done();
    so->started = false;
    so->have_returned = false;
    MemoryContextReset(so->context);
    if (keys != nullptr && scan->numberOfKeys > 0)
        memmove(scan->keyData, keys, scan->numberOfKeys * sizeof(ScanKeyData));
    if (orderbys != nullptr && scan->numberOfOrderBys > 0)
        memmove(scan->orderByData, orderbys, scan->numberOfOrderBys * sizeof(ScanKeyData));
}

bool VgGetTuple(IndexScanDesc scan, ScanDirection direction)
{
    Scan *so = ScanOf(scan);
    Assert(ScanDirectionIsForward(direction));
    (void) direction;

    if (!so->started) {
        if (scan->numberOfOrderBys != 1)
            elog(ERROR, "cannot scan index \"%s\" without an order", RelationGetRelationName(scan->indexRelation));
        /*
         * No pin is held on what was returned, so a row's TID may be reused once VACUUM has been here. A new row there is
         * invisible to an MVCC snapshot, and to no other kind.
         */
        if (!IsMVCCSnapshot(scan->xs_snapshot))
            elog(ERROR, "a vecgpu index needs an MVCC snapshot");
        pgstat_count_index_scan(scan->indexRelation);
#if PG_VERSION_NUM >= 180000
        if (scan->instrument != nullptr)
            scan->instrument->nsearches++;
#endif
        Start(scan);
    } else if (scan->kill_prior_tuple && so->have_returned) {
        Kill(scan, so->returned);
    }

    scan->xs_recheck = false;
    scan->xs_recheckorderby = false;
    if (!(so->rerank ? NextExact(scan, &so->returned) : NextHit(scan, &so->returned))) {
        so->have_returned = false;
        return false;
    }
    so->have_returned = true;
    scan->xs_heaptid = TidOf(so->returned.row);
    return true;
}

void VgEndScan(IndexScanDesc scan)
{
    Scan *so = ScanOf(scan);
    FlushKilled(scan);
    if (so->started)
        so->nodes.done();
    if (so->heap_open)
        VgCloseHeapVectors(&so->vectors);
    MemoryContextDelete(so->context);
    pfree(so);
    scan->opaque = nullptr;
}

} // namespace vecgpu
