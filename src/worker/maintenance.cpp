/*
 * maintenance.cpp: a background worker that flushes one index. am/request.cpp starts it when the delta is large.
 *
 * It runs no code of users: a flush reads and writes pages of the index and calls no function of the table. It
 * connects as the bootstrap superuser, takes only locks that it gets at once, and ends when no rows came for two seconds.
 * Until then it keeps the graph in memory, so that one flush after another need not load it.
 */
#include "am/bulkflush.h"
#include "worker/open.h"

namespace vecgpu {

namespace {

constexpr long kPollMs = 20;
constexpr long kLingerMs = 2000; /* well below the time that DROP DATABASE waits for sessions to leave */

enum class Round { Gone, Idle, Flushed };

/* One look at the index, in a transaction of its own, so that it holds no lock while it waits. */
Round RunRound(Oid oid, int flush_rows, bool *have_lock, GraphCache *cache)
{
    Round result = Round::Gone;
    SetCurrentStatementStartTimestamp();
    StartTransactionCommand();
    PushActiveSnapshot(GetTransactionSnapshot());
    Relation index = VgOpenWithoutWaiting(oid, RowExclusiveLock);
    if (index != nullptr && !*have_lock)
        *have_lock = VgTryLockWorker(index);
    if (index != nullptr && *have_lock) {
        result = Round::Idle;
        Meta meta;
        VgReadMeta(index, &meta);
        uint64_t pages = 0;
        for (const DeltaChain &chain : meta.chains)
            pages += chain.pages;
        uint64_t rows = meta.dimensions == 0 ? 0 : pages * delta_capacity(static_cast<uint32_t>(
                                                               row_bytes(meta.storage, meta.dimensions)));
        /* Once it is here it keeps the delta shorter than what it takes to call it. */
        if (rows >= static_cast<uint64_t>(flush_rows) / 4 && VgTryLockStructure(index)) {
            pgstat_report_activity(STATE_RUNNING, "vecgpu: flushing waiting rows");
            if (VgFlush(index, cache) > 0)
                result = Round::Flushed;
            VgUnlockStructure(index);
        }
    }
    if (index != nullptr)
        index_close(index, RowExclusiveLock);
    PopActiveSnapshot();
    CommitTransactionCommand();
    pgstat_report_stat(true);
    pgstat_report_activity(STATE_IDLE, nullptr);
    return result;
}

} // namespace

} // namespace vecgpu

extern "C" PGDLLEXPORT void vecgpu_flush_worker(Datum argument)
{
    using namespace vecgpu;
    Oid oid = DatumGetObjectId(argument);
    FlushRequest request;
    memcpy(&request, MyBgworkerEntry->bgw_extra, sizeof(request));

    pqsignal(SIGTERM, die);
    pqsignal(SIGHUP, SignalHandlerForConfigReload);
    BackgroundWorkerUnblockSignals();
    BackgroundWorkerInitializeConnectionByOid(request.database, InvalidOid, 0);

    MemoryContext context = AllocSetContextCreate(TopMemoryContext, "vecgpu flush worker", ALLOCSET_DEFAULT_SIZES);
    MemoryContextSwitchTo(context);
    GraphCache *cache = VgCreateGraphCache();
    bool have_lock = false;
    for (long idle = 0; idle < kLingerMs;) {
        CHECK_FOR_INTERRUPTS();
        if (ConfigReloadPending) {
            ConfigReloadPending = false;
            ProcessConfigFile(PGC_SIGHUP);
        }
        Round round = RunRound(oid, request.flush_rows, &have_lock, cache);
        MemoryContextSwitchTo(context);
        if (round == Round::Gone)
            break; /* dropped, locked by a command that changes it, or another worker is at it */
        idle = round == Round::Flushed ? 0 : idle + kPollMs;
        if (WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, kPollMs, PG_WAIT_EXTENSION) &
            WL_LATCH_SET)
            ResetLatch(MyLatch);
    }
    /* Its session locks go with the process. */
}
