/*
 * maintenance.cpp: a background worker that flushes one index. am/request.cpp starts it when the delta is large.
 *
 * It runs no code of users: a flush reads and writes pages of the index and calls no function of the table. It
 * connects as the bootstrap superuser, takes only locks that it gets at once, and ends when its work is done.
 */
#include "am/am.h"

namespace vecgpu {

/* Null unless the index is there, is one of ours, and can be locked without waiting. */
static Relation OpenForFlush(Oid oid)
{
    if (!ConditionalLockRelationOid(oid, RowExclusiveLock))
        return nullptr;
    HeapTuple tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(oid));
    bool ours = false;
    if (HeapTupleIsValid(tuple)) {
        Form_pg_class form = reinterpret_cast<Form_pg_class>(GETSTRUCT(tuple));
        ours = form->relkind == RELKIND_INDEX && form->relam == get_index_am_oid("vecgpu", true);
        ReleaseSysCache(tuple);
    }
    if (ours)
        return index_open(oid, NoLock);
    UnlockRelationOid(oid, RowExclusiveLock);
    return nullptr;
}

} // namespace vecgpu

extern "C" PGDLLEXPORT void vecgpu_flush_worker(Datum argument)
{
    using namespace vecgpu;
    Oid oid = DatumGetObjectId(argument);
    Oid database;
    memcpy(&database, MyBgworkerEntry->bgw_extra, sizeof(database));

    pqsignal(SIGTERM, die);
    pqsignal(SIGHUP, SignalHandlerForConfigReload);
    BackgroundWorkerUnblockSignals();
    BackgroundWorkerInitializeConnectionByOid(database, InvalidOid, 0);

    SetCurrentStatementStartTimestamp();
    StartTransactionCommand();
    PushActiveSnapshot(GetTransactionSnapshot());
    pgstat_report_activity(STATE_RUNNING, "vecgpu: flushing waiting rows");
    Relation index = OpenForFlush(oid);
    if (index != nullptr) {
        /* Someone else at it is as good. */
        if (VgTryLockStructure(index)) {
            VgFlush(index);
            VgUnlockStructure(index);
        }
        index_close(index, RowExclusiveLock);
    }
    PopActiveSnapshot();
    CommitTransactionCommand();
    pgstat_report_activity(STATE_IDLE, nullptr);
}
