/*
 * call.cpp: see call.h.
 */
#include "client/call.h"

#include "client/settings.h"
#include "client/supervisor.h"
#include "protocol/session.h"

namespace vecgpu {

namespace {

constexpr int kConnectMs = 250;
constexpr int64_t kWaitSliceNs = 10 * 1000000;
constexpr uint64_t kAskIntervalNs = 200 * 1000000ull; /* a worker needs some time to start and load */
constexpr uint64_t kFeedIntervalNs = 10 * 1000000ull;
constexpr long kRetryMs = 50, kLongestRetryMs = 1000;
constexpr long kStartMs = 20000; /* that a caller who waits gives an engine to come up */

Connection connection;
Caller caller;
bool have_fd = false; /* counted as an external descriptor */
VgFallback last_failure = VgFallback::None;
TimestampTz next_try = 0;
long retry_ms = kRetryMs;

void CloseConnection(void)
{
    if (connection.fd >= 0)
        connection_close(&connection);
    if (have_fd)
        ReleaseExternalFD();
    have_fd = false;
}

/* Not again at once: every query would pay for it. */
VgFallback Failed(VgFallback reason)
{
    CloseConnection();
    next_try = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), retry_ms);
    retry_ms = retry_ms * 2 < kLongestRetryMs ? retry_ms * 2 : kLongestRetryMs;
    last_failure = reason;
    return reason;
}

VgFallback Connect(VgPatience patience)
{
    if (!AcquireExternalFD())
        return Failed(VgFallback::NoEngine);
    have_fd = true;
    int error = connection_open(&connection, kEngineSocket, kConnectMs);
    if (error == 0) {
        caller_init(&caller, connection.area, connection.session, connection.slots);
        retry_ms = kRetryMs;
        last_failure = VgFallback::None;
        return VgFallback::None;
    }
    /* Nobody listens: there is no engine yet. */
    if (error == ENOENT || error == ECONNREFUSED) {
        if (patience == VgPatience::Look) {
            CloseConnection();
            return VgFallback::NoEngine;
        }
        return Failed(VgStartSupervisor() ? VgFallback::Starting : VgFallback::NoEngine);
    }
    if (error == EPROTO && connection.status == Status::BadVersion) {
        static bool told = false;
        if (!told && patience != VgPatience::Look)
            ereport(LOG, (errmsg("the vecgpu engine that runs speaks version %u of the protocol, this module version %u",
                                 connection.version, kProtocolVersion),
                          errhint("Restart the server after an update.")));
        told = told || patience != VgPatience::Look;
        return Failed(VgFallback::Version);
    }
    ereport(DEBUG1, (errmsg_internal("could not connect to the vecgpu engine: %s", strerror(error))));
    return Failed(error == ETIMEDOUT ? VgFallback::Hung : VgFallback::NoEngine);
}

bool Hangs(void)
{
    uint64_t beat = connection.area->heartbeat_ns.load();
    uint64_t now = now_ns();
    return now > beat && now - beat > kHungNs;
}

/* After a sign of trouble: is the engine that we are connected to gone? */
VgFallback Trouble(void)
{
    if (socket_is_closed(connection.fd))
        return VgFallback::Lost;
    return Hangs() ? VgFallback::Hung : VgFallback::None;
}

VgFallback Reach(VgPatience patience)
{
    if (connection.fd < 0) {
        if (next_try != 0 && GetCurrentTimestamp() < next_try)
            return last_failure;
        return Connect(patience);
    }
    if (!Hangs())
        return VgFallback::None;
    /* An engine that ended takes its heartbeat along. */
    if (socket_is_closed(connection.fd)) {
        CloseConnection();
        return Connect(patience);
    }
    return VgFallback::Hung;
}

} // namespace

VgFallback VgReachEngine(VgPatience patience, Lane *lane)
{
    *lane = vg_device == kDeviceHost ? Lane::Host : Lane::Gpu;
    VgFallback reason = Reach(patience);
    bool wait = patience == VgPatience::Wait && reason != VgFallback::None;
    TimestampTz until = wait ? TimestampTzPlusMilliseconds(GetCurrentTimestamp(), kStartMs) : 0;
    while (wait && reason != VgFallback::None && reason != VgFallback::Version &&
           GetCurrentTimestamp() < until) {
        CHECK_FOR_INTERRUPTS();
        (void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, 10, PG_WAIT_EXTENSION);
        ResetLatch(MyLatch);
        next_try = 0;
        reason = Reach(patience);
    }
    if (reason == VgFallback::None && *lane == Lane::Gpu && connection.area->gpus == 0)
        return VgFallback::NoDevice;
    return reason;
}

const char *VgNoGpuReason(void)
{
    static char reason[sizeof(Area::gpu_reason)];
    if (connection.fd < 0)
        return "The engine does not run.";
    memcpy(reason, connection.area->gpu_reason, sizeof(reason));
    reason[sizeof(reason) - 1] = '\0';
    return reason;
}

void VgDisconnectEngine(void)
{
    CloseConnection();
}

VgFallback VgOpenCall(Call *call)
{
    *call = Call();
    if (connection.fd < 0)
        return VgFallback::Lost;
    return call_claim(&caller, call) ? VgFallback::None : VgFallback::NoSlot;
}

void VgSubmitCall(Call *call, Lane lane)
{
    call_submit(&caller, call, lane);
}

static uint32 WaitEvent(Lane lane)
{
    static uint32 search = 0, load = 0;
    if (search == 0) {
        search = VgNewWaitEvent("VecgpuSearch");
        load = VgNewWaitEvent("VecgpuLoad");
    }
    return lane == Lane::Control ? load : search;
}

VgFallback VgWaitCall(Call *call, long timeout_ms)
{
    if (call_spin(caller, *call))
        return VgFallback::None;
    VgFallback failed = VgFallback::None;
    uint64_t deadline = call->submitted_ns + static_cast<uint64_t>(timeout_ms) * 1000000;
    pgstat_report_wait_start(WaitEvent(call->lane));
    PG_TRY();
    {
        while (!call_wait(*call, kWaitSliceNs)) {
            CHECK_FOR_INTERRUPTS();
            failed = Trouble();
            if (failed == VgFallback::None && now_ns() > deadline)
                failed = VgFallback::Timeout;
            /* The answer may have come with the trouble. */
            if (failed != VgFallback::None && !call_done(*call))
                break;
            failed = VgFallback::None;
        }
    }
    PG_CATCH();
    {
        call_abandon(call);
        PG_RE_THROW();
    }
    PG_END_TRY();
    pgstat_report_wait_end();
    if (failed == VgFallback::None)
        return failed;
    call_abandon(call);
    if (failed == VgFallback::Lost)
        Failed(failed);
    return failed;
}

void VgCloseCall(Call *call)
{
    if (call->slot == nullptr)
        return;
    if (call_done(*call))
        call_release(&caller, call);
    else
        call_abandon(call);
}

/* True for one of all sessions in interval_ns. */
static bool MyTurn(std::atomic<uint64_t> &last_ns, uint64_t interval_ns)
{
    uint64_t last = last_ns.load();
    uint64_t now = now_ns();
    return (now < last || now - last > interval_ns) && last_ns.compare_exchange_strong(last, now);
}

static uint32_t AskedEntry(const IndexKey &index)
{
    return (index.file ^ index.generation) % kAskedEntries;
}

bool VgMayAskForLoad(const IndexKey &index)
{
    return connection.fd >= 0 && MyTurn(connection.area->load_asked_ns[AskedEntry(index)], kAskIntervalNs);
}

bool VgMayFeed(const IndexKey &index)
{
    return connection.fd >= 0 && MyTurn(connection.area->feed_tried_ns[AskedEntry(index)], kFeedIntervalNs);
}

VgFallback VgFallbackOf(Status status)
{
    switch (status) {
        case Status::Ok:
        case Status::Current:
            return VgFallback::None;
        case Status::Cold:
            return VgFallback::Cold;
        case Status::Behind:
            return VgFallback::Behind;
        case Status::Busy:
            return VgFallback::Loading;
        case Status::NoMemory:
            return VgFallback::Memory;
        case Status::NoDevice:
            return VgFallback::NoDevice;
        case Status::BadVersion:
            return VgFallback::Version;
        case Status::Full:
            return VgFallback::NoSlot;
        case Status::BadRequest:
        case Status::Unsupported:
            return VgFallback::Unsupported;
        case Status::DeviceLost:
            return VgFallback::Lost; /* the engine ends with its device */
        case Status::DeviceError:
            break;
    }
    return VgFallback::DeviceError;
}

uint8_t *VgStaging(void)
{
    if (connection.fd < 0)
        return nullptr;
    if (connection.staging == nullptr) {
        int error = connection_stage(&connection, kStagingBytes, kConnectMs);
        if (error != 0) {
            ereport(DEBUG1, (errmsg_internal("no staging memory for the vecgpu engine: %s", strerror(error))));
            CloseConnection();
            return nullptr;
        }
    }
    return static_cast<uint8_t *>(connection.staging);
}

} // namespace vecgpu
