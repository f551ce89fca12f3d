/*
 * request.cpp: how a session asks for work in the background: an insert that finds the delta large, for a flush; a search that finds
 * no mirror, for a load.
 */
#include "am/mirror.h"

namespace vecgpu {

/* Starts a worker for the index. False if none can be had (no free slot, or nobody else may see the index yet). */
static bool StartWorker(Relation index, const char *function, const char *type, BgWorkerStartTime start, const void *extra,
                        size_t extra_bytes)
{
    /* An index or file node of this transaction is locked or invisible for anyone else. */
    if (index->rd_createSubid != InvalidSubTransactionId || VgNewFileInTransaction(index) ||
        index->rd_rel->relpersistence == RELPERSISTENCE_TEMP)
        return false;
    BackgroundWorker worker;
    memset(&worker, 0, sizeof(worker));
    worker.bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
    worker.bgw_start_time = start;
    worker.bgw_restart_time = BGW_NEVER_RESTART;
    strlcpy(worker.bgw_library_name, "vecgpu", sizeof(worker.bgw_library_name));
    strlcpy(worker.bgw_function_name, function, sizeof(worker.bgw_function_name));
    strlcpy(worker.bgw_type, type, sizeof(worker.bgw_type));
    snprintf(worker.bgw_name, sizeof(worker.bgw_name), "%s for index %u", type, RelationGetRelid(index));
    worker.bgw_main_arg = ObjectIdGetDatum(RelationGetRelid(index));
    memcpy(worker.bgw_extra, extra, extra_bytes);
    return RegisterDynamicBackgroundWorker(&worker, nullptr);
}

static bool StartFlushWorker(Relation index)
{
    FlushRequest request = {MyDatabaseId, vg_flush_rows};
    return StartWorker(index, "vecgpu_flush_worker", "vecgpu flush worker", BgWorkerStart_RecoveryFinished, &request,
                       sizeof(request));
}

bool VgStartLoader(Relation index, Lane lane)
{
    LoadRequest request = {MyDatabaseId, lane};
    return StartWorker(index, "vecgpu_load_worker", "vecgpu load worker", BgWorkerStart_ConsistentState, &request,
                       sizeof(request));
}

/*
 * Block 1 names the worker of an index, as block 0 names its structure. Of the lock methods only the user one lets go of session
 * locks however a process ends.
 */
static void WorkerTag(LOCKTAG *tag, Relation index)
{
    SET_LOCKTAG_PAGE(*tag, MyDatabaseId, RelationGetRelid(index), 1);
    tag->locktag_lockmethodid = USER_LOCKMETHOD;
}

bool VgTryLockWorker(Relation index)
{
    LOCKTAG tag;
    WorkerTag(&tag, index);
    return LockAcquire(&tag, ExclusiveLock, true, true) != LOCKACQUIRE_NOT_AVAIL;
}

bool VgWorkerRuns(Relation index)
{
    LOCKTAG tag;
    WorkerTag(&tag, index);
    if (LockAcquire(&tag, ExclusiveLock, true, true) == LOCKACQUIRE_NOT_AVAIL)
        return true;
    LockRelease(&tag, ExclusiveLock, true);
    return false;
}

void VgRequestFlush(Relation index, bool urgent)
{
    /* One request in a while is enough: a worker takes all that waits, and stays a while for more. */
    static TimestampTz last_request = 0;
    TimestampTz now = GetCurrentTimestamp();
    bool recently = !TimestampDifferenceExceeds(last_request, now, 100);
    if (recently && !urgent)
        return;
    if (VgWorkerRuns(index))
        return;
    if (!recently) {
        last_request = now;
        if (StartFlushWorker(index) || !urgent)
            return;
    }
    /* Whoever holds the structure lock flushes, or will let a later request through. */
    if (!VgTryLockStructure(index))
        return;
    VgFlush(index, nullptr);
    VgUnlockStructure(index);
}

} // namespace vecgpu
