/*
 * request.cpp: an insert that finds the delta large asks for a flush: by a background worker, or by itself.
 */
#include "am/am.h"

namespace vecgpu {

/* Starts a worker for the index. False if none can be had (no free slot, or nobody else may see the index yet). */
static bool StartFlushWorker(Relation index)
{
    /* An index or file node of this transaction is locked or invisible for anyone else. */
    if (index->rd_createSubid != InvalidSubTransactionId || VgNewFileInTransaction(index) ||
        index->rd_rel->relpersistence == RELPERSISTENCE_TEMP)
        return false;
    BackgroundWorker worker;
    memset(&worker, 0, sizeof(worker));
    worker.bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
    worker.bgw_start_time = BgWorkerStart_RecoveryFinished;
    worker.bgw_restart_time = BGW_NEVER_RESTART;
    strlcpy(worker.bgw_library_name, "vecgpu", sizeof(worker.bgw_library_name));
    strlcpy(worker.bgw_function_name, "vecgpu_flush_worker", sizeof(worker.bgw_function_name));
    strlcpy(worker.bgw_type, "vecgpu flush worker", sizeof(worker.bgw_type));
    snprintf(worker.bgw_name, sizeof(worker.bgw_name), "vecgpu flush worker for index %u", RelationGetRelid(index));
    worker.bgw_main_arg = ObjectIdGetDatum(RelationGetRelid(index));
    FlushRequest request = {MyDatabaseId, vg_flush_rows};
    memcpy(worker.bgw_extra, &request, sizeof(request));
    return RegisterDynamicBackgroundWorker(&worker, nullptr);
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
