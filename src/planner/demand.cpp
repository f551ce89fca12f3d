/*
 * demand.cpp: see demand.h.
 *
 * Entries live in the memory of their query and leave the list when that memory is freed, whatever way the query ends.
 */
#include "planner/demand.h"

namespace vecgpu {

namespace {

/* What a plan node's parent does with its rows. */
enum class Use {
    Unknown,
    Top, /* all, if the portal runs to the end */
    All,
};

struct Entry {
    Entry *next;
    IndexScanState *scan;
    LimitState *limit; /* directly above the scan */
    Use use;
    MemoryContextCallback callback;
};

Entry *entries = nullptr;
ambeginscan_function our_begin_scan = nullptr;
bool run_to_end = false; /* the innermost ExecutorRun has no row count */

ExecutorStart_hook_type previous_start = nullptr;
ExecutorRun_hook_type previous_run = nullptr;

void Forget(void *argument)
{
    for (Entry **at = &entries; *at != nullptr; at = &(*at)->next) {
        if (*at == argument) {
            *at = (*at)->next;
            return;
        }
    }
}

bool IsOurs(IndexScanState *state)
{
    return state->iss_RelationDesc != nullptr && state->iss_NumOrderByKeys == 1 &&
           state->iss_RelationDesc->rd_indam->ambeginscan == our_begin_scan;
}

void Note(IndexScanState *state, LimitState *limit, Use use)
{
    if (!IsOurs(state))
        return;
    MemoryContext context = state->ss.ps.state->es_query_cxt;
    Entry *entry = static_cast<Entry *>(MemoryContextAlloc(context, sizeof(Entry)));
    entry->scan = state;
    entry->limit = limit;
    entry->use = use;
    entry->next = entries;
    entry->callback.func = Forget;
    entry->callback.arg = entry;
    MemoryContextRegisterResetCallback(context, &entry->callback);
    entries = entry;
}

void Walk(PlanState *state, LimitState *limit, Use use);

void WalkAll(PlanState **states, int count, Use use)
{
    for (int i = 0; i < count; i++)
        Walk(states[i], nullptr, use);
}

/* `limit`: set if `state` is the direct child of a Limit. */
void Walk(PlanState *state, LimitState *limit, Use use)
{
    if (state == nullptr)
        return;
    check_stack_depth();
    switch (nodeTag(state)) {
        case T_IndexScanState:
            Note(reinterpret_cast<IndexScanState *>(state), limit, use);
            break;
        case T_LimitState:
            Walk(outerPlanState(state), reinterpret_cast<LimitState *>(state), Use::Unknown);
            break;
        case T_SortState:
        case T_AggState:
        case T_HashState:
            /* These read their input to the end before their first row, or hold it all. */
            Walk(outerPlanState(state), nullptr,
                 nodeTag(state) == T_AggState && reinterpret_cast<AggState *>(state)->aggstrategy == AGG_SORTED
                     ? use
                     : Use::All);
            break;
        case T_ResultState:
        case T_ProjectSetState:
        case T_ModifyTableState:
        case T_LockRowsState:
        case T_WindowAggState:
        case T_UniqueState:
            Walk(outerPlanState(state), nullptr, use);
            break;
        case T_SubqueryScanState:
            Walk(reinterpret_cast<SubqueryScanState *>(state)->subplan, nullptr, use);
            break;
        case T_AppendState:
            WalkAll(reinterpret_cast<AppendState *>(state)->appendplans,
                    reinterpret_cast<AppendState *>(state)->as_nplans, use);
            break;
        case T_MergeAppendState:
            WalkAll(reinterpret_cast<MergeAppendState *>(state)->mergeplans,
                    reinterpret_cast<MergeAppendState *>(state)->ms_nplans, use);
            break;
        case T_NestLoopState:
            Walk(outerPlanState(state), nullptr, use);
            Walk(innerPlanState(state), nullptr,
                 reinterpret_cast<NestLoopState *>(state)->js.single_match ? Use::Unknown : use);
            break;
        default:
            /* Hash joins, materialisation and the rest: their scans are found, their demand is not known. */
            Walk(outerPlanState(state), nullptr, Use::Unknown);
            Walk(innerPlanState(state), nullptr, Use::Unknown);
            break;
    }
    ListCell *cell;
    foreach (cell, state->initPlan)
        Walk(static_cast<SubPlanState *>(lfirst(cell))->planstate, nullptr, Use::Unknown);
    foreach (cell, state->subPlan)
        Walk(static_cast<SubPlanState *>(lfirst(cell))->planstate, nullptr, Use::Unknown);
}

void NoteScans(QueryDesc *query)
{
    if (query->planstate != nullptr)
        Walk(query->planstate, nullptr, Use::Top);
}

#if PG_VERSION_NUM >= 180000
void Run(QueryDesc *query, ScanDirection direction, uint64 count)
#else
void Run(QueryDesc *query, ScanDirection direction, uint64 count, bool once)
#endif
{
    bool before = run_to_end;
    run_to_end = count == 0;
    PG_TRY();
    {
#if PG_VERSION_NUM >= 180000
        (previous_run != nullptr ? previous_run : standard_ExecutorRun)(query, direction, count);
#else
        (previous_run != nullptr ? previous_run : standard_ExecutorRun)(query, direction, count, once);
#endif
    }
    PG_FINALLY();
    {
        run_to_end = before;
    }
    PG_END_TRY();
}

void Start(QueryDesc *query, int flags)
{
    (previous_start != nullptr ? previous_start : standard_ExecutorStart)(query, flags);
    if (!(flags & EXEC_FLAG_EXPLAIN_ONLY))
        NoteScans(query);
}

} // namespace

void VgInitDemand(ambeginscan_function begin_scan)
{
    our_begin_scan = begin_scan;
    previous_start = ExecutorStart_hook;
    ExecutorStart_hook = Start;
    previous_run = ExecutorRun_hook;
    ExecutorRun_hook = Run;
}

/* Share of the table that the planner expects to pass the filter. */
static double Passing(const IndexScanState *scan)
{
    double total = scan->ss.ss_currentRelation->rd_rel->reltuples;
    double rows = scan->ss.ps.plan->plan_rows;
    if (scan->ss.ps.qual == nullptr || total < 1 || rows >= total)
        return 1;
    return rows > 1 ? rows / total : 1 / total;
}

Demand VgDemandOf(IndexScanDesc scan)
{
    for (const Entry *entry = entries; entry != nullptr; entry = entry->next) {
        if (entry->scan->iss_ScanDesc != scan)
            continue;
        if (entry->use == Use::All || (entry->use == Use::Top && run_to_end))
            return {true, 0, 1};
        const LimitState *limit = entry->limit;
        /* The Limit node has worked out its numbers before it asks for the first row. */
        if (limit == nullptr || limit->count < 0 || limit->offset < 0)
            return {false, 0, 1};
        if (limit->noCount)
            return {run_to_end, 0, 1};
        return {false, static_cast<uint64_t>(limit->count) + static_cast<uint64_t>(limit->offset),
                Passing(entry->scan)};
    }
    return {false, 0, 1};
}

} // namespace vecgpu
