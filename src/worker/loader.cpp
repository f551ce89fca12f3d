/*
 * loader.cpp: a background worker that loads the mirror of one index into the engine, while queries are answered from the pages.
 *
 * It runs no code of users: it reads pages of the index. It takes only a lock that it gets at once, and the engine lets one session at a
 * time load an index, so a second worker ends at once.
 */
#include "am/mirror.h"
#include "client/settings.h"
#include "worker/open.h"

extern "C" PGDLLEXPORT void vecgpu_load_worker(Datum argument)
{
    using namespace vecgpu;
    Oid oid = DatumGetObjectId(argument);
    LoadRequest request;
    memcpy(&request, MyBgworkerEntry->bgw_extra, sizeof(request));

    pqsignal(SIGTERM, die);
    BackgroundWorkerUnblockSignals();
    BackgroundWorkerInitializeConnectionByOid(request.database, InvalidOid, 0);
    vg_device = request.lane == Lane::Host ? kDeviceHost : kDeviceGpu;

    SetCurrentStatementStartTimestamp();
    StartTransactionCommand();
    PushActiveSnapshot(GetTransactionSnapshot());
    Relation index = VgOpenWithoutWaiting(oid, AccessShareLock);
    if (index != nullptr) {
        pgstat_report_activity(STATE_RUNNING, "vecgpu: loading a mirror");
        Lane lane;
        MirrorLoad load;
        VgFallback failed = VgReachEngine(VgPatience::Look, &lane);
        if (failed == VgFallback::None)
            failed = VgLoadMirror(index, request.lane, false, &load);
        if (failed == VgFallback::None && !load.current)
            ereport(DEBUG1, (errmsg("loaded index \"%s\" into the vecgpu engine: %llu bytes of pages",
                                    RelationGetRelationName(index), static_cast<unsigned long long>(load.sent))));
        else if (failed != VgFallback::None && failed != VgFallback::Loading)
            ereport(DEBUG1, (errmsg("could not load index \"%s\" into the vecgpu engine: %s",
                                    RelationGetRelationName(index), VgFallbackName(failed))));
        index_close(index, AccessShareLock);
    }
    PopActiveSnapshot();
    CommitTransactionCommand();
    pgstat_report_stat(true);
}
