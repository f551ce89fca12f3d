/*
 * supervisor.cpp: see supervisor.h.
 */
#include "client/supervisor.h"

namespace vecgpu {

/*
 * An advisory lock of database 0, where no session can take one. Of the lock methods only the user one lets go of session locks
 * however a process ends.
 */
static void SupervisorTag(LOCKTAG *tag)
{
    SET_LOCKTAG_ADVISORY(*tag, InvalidOid, 0x76656367, 0x7570, 2);
}

bool VgTryLockSupervisor(void)
{
    LOCKTAG tag;
    SupervisorTag(&tag);
    return LockAcquire(&tag, ExclusiveLock, true, true) != LOCKACQUIRE_NOT_AVAIL;
}

bool VgSupervisorRuns(void)
{
    LOCKTAG tag;
    SupervisorTag(&tag);
    if (LockAcquire(&tag, ShareLock, true, true) == LOCKACQUIRE_NOT_AVAIL)
        return true;
    LockRelease(&tag, ShareLock, true);
    return false;
}

static void Describe(BackgroundWorker *worker)
{
    memset(worker, 0, sizeof(*worker));
    worker->bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
    worker->bgw_start_time = BgWorkerStart_ConsistentState; /* standbys have engines of their own */
    worker->bgw_restart_time = BGW_NEVER_RESTART;
    strlcpy(worker->bgw_library_name, "vecgpu", sizeof(worker->bgw_library_name));
    strlcpy(worker->bgw_function_name, "vecgpu_supervisor", sizeof(worker->bgw_function_name));
    strlcpy(worker->bgw_type, "vecgpu supervisor", sizeof(worker->bgw_type));
    strlcpy(worker->bgw_name, "vecgpu supervisor", sizeof(worker->bgw_name));
}

void VgRegisterSupervisor(void)
{
    BackgroundWorker worker;
    Describe(&worker);
    worker.bgw_restart_time = 1; /* in seconds, after an error */
    RegisterBackgroundWorker(&worker);
}

bool VgStartSupervisor(void)
{
    static TimestampTz last = 0;
    TimestampTz now = GetCurrentTimestamp();
    if (!TimestampDifferenceExceeds(last, now, 1000) || VgSupervisorRuns())
        return true;
    last = now;
    BackgroundWorker worker;
    Describe(&worker);
    return RegisterDynamicBackgroundWorker(&worker, nullptr);
}

} // namespace vecgpu
