/*
 * device.cpp: SQL functions about the engine: prewarm, evict, mirrors, devices.
 */
#include "am/mirror.h"
#include "client/settings.h"

extern "C" {
PG_FUNCTION_INFO_V1(vecgpu_prewarm);
PG_FUNCTION_INFO_V1(vecgpu_evict);
PG_FUNCTION_INFO_V1(vecgpu_mirrors);
PG_FUNCTION_INFO_V1(vecgpu_devices);
}

namespace vecgpu {

namespace {

constexpr long kAskTimeoutMs = 5000;

[[noreturn]] void Fail(const char *what, VgFallback reason)
{
    if (reason == VgFallback::NoDevice)
        ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE), errmsg("no GPU can be used"),
                        errdetail("%s", VgNoGpuReason())));
    ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
                    errmsg("%s: %s", what, VgFallbackName(reason))));
    pg_unreachable();
}

/* Calls visit(entry) for each entry that a List* request yields; `ef` and `k` as in ListRequest. */
template <class Entry, class Visit>
VgFallback ForEntries(Op op, uint32_t ef, uint32_t k, Visit visit)
{
    /* Room first: no error may come between an answer and the release of its slot. */
    constexpr uint32_t most = kQueryBytes / sizeof(Entry);
    Entry *entries = static_cast<Entry *>(palloc(most * sizeof(Entry)));
    VgFallback failed = VgFallback::None;
    for (uint32_t first = 0, total = 1; first < total && failed == VgFallback::None;) {
        CHECK_FOR_INTERRUPTS();
        Call call;
        failed = VgOpenCall(&call);
        if (failed != VgFallback::None)
            break;
        call.slot->request.op = op;
        call.slot->request.list = {first, ef, k, 0};
        VgSubmitCall(&call, Lane::Control);
        failed = VgWaitCall(&call, kAskTimeoutMs);
        if (failed != VgFallback::None)
            break;
        failed = VgFallbackOf(call.slot->response.status);
        uint32_t count = call.slot->response.count;
        total = call.slot->response.list.total;
        if (count > most)
            failed = VgFallback::WrongAnswer;
        if (failed == VgFallback::None)
            memcpy(entries, call.slot->payload, sizeof(Entry) * count);
        VgCloseCall(&call);
        if (failed != VgFallback::None || count == 0)
            break;
        for (uint32_t i = 0; i < count; i++)
            visit(entries[i]);
        first += count;
    }
    pfree(entries);
    return failed;
}

const char *LaneName(Lane lane)
{
    return lane == Lane::Host ? "host" : "gpu";
}

bool DeviceWanted(void)
{
    return vg_device == kDeviceGpu || vg_device == kDeviceHost || (vg_device == kDeviceAuto && VgGpuModuleInstalled());
}

bool EngineThere(VgPatience patience)
{
    Lane lane;
    VgFallback reason = VgReachEngine(patience, &lane);
    return reason == VgFallback::None || reason == VgFallback::NoDevice;
}

} // namespace

bool VgFindMirror(Relation index, const Meta &meta, uint32_t ef, uint32_t k, MirrorEntry *entry)
{
    Lane lane;
    if (!DeviceWanted() || VgReachEngine(VgPatience::Look, &lane) != VgFallback::None)
        return false;
    IndexKey key = VgIndexKey(index, meta);
    bool found = false;
    VgFallback failed = ForEntries<MirrorEntry>(Op::ListMirrors, ef, k, [&](const MirrorEntry &one) {
        if (one.index == key && one.lane == lane && one.phase == MirrorPhase::Ready) {
            *entry = one;
            found = true;
        }
    });
    return failed == VgFallback::None && found;
}

} // namespace vecgpu

extern "C" {

Datum vecgpu_prewarm(PG_FUNCTION_ARGS)
{
    using namespace vecgpu;
    Relation index = VgOpenIndex(PG_GETARG_OID(0), AccessShareLock, true);
    if (!DeviceWanted())
        ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE), errmsg("searches of this session do not use a device"),
                        errhint(vg_device == kDeviceCpu ? "Set vecgpu.device to auto or gpu."
                                                        : "No GPU module is installed.")));
    TimestampTz started = GetCurrentTimestamp();
    Lane lane;
    VgFallback failed = VgReachEngine(VgPatience::Wait, &lane);
    MirrorLoad load;
    memset(&load, 0, sizeof(load));
    if (failed == VgFallback::None)
        failed = VgLoadMirror(index, lane, true, &load);
    if (failed != VgFallback::None)
        Fail("could not load the index into the engine", failed);

    TupleDesc description;
    if (get_call_result_type(fcinfo, nullptr, &description) != TYPEFUNC_COMPOSITE)
        elog(ERROR, "return type must be a row type");
    Datum values[4] = {CStringGetTextDatum(LaneName(lane)), Int64GetDatum(static_cast<int64>(load.sent)),
                       Int64GetDatum(static_cast<int64>(load.bytes)),
                       Float8GetDatum(static_cast<double>(GetCurrentTimestamp() - started) / 1000.0)};
    bool nulls[4] = {false, false, load.current, false};
    index_close(index, AccessShareLock);
    PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(description), values, nulls)));
}

Datum vecgpu_evict(PG_FUNCTION_ARGS)
{
    using namespace vecgpu;
    Relation index = VgOpenIndex(PG_GETARG_OID(0), AccessShareLock, true);
    int64 bytes = 0;
    if (EngineThere(VgPatience::Look)) { /* one that does not run has no mirrors */
        Meta meta;
        VgReadMeta(index, &meta);
        Call call;
        VgFallback failed = VgOpenCall(&call);
        if (failed == VgFallback::None) {
            call.slot->request.op = Op::Evict;
            call.slot->request.evict.index = VgIndexKey(index, meta);
            VgSubmitCall(&call, Lane::Control);
            failed = VgWaitCall(&call, kAskTimeoutMs);
        }
        if (failed == VgFallback::None) {
            failed = VgFallbackOf(call.slot->response.status);
            bytes = static_cast<int64>(call.slot->response.end.bytes);
            VgCloseCall(&call);
        }
        if (failed == VgFallback::Cold)
            bytes = 0;
        else if (failed != VgFallback::None)
            Fail("could not drop the mirror", failed);
    }
    index_close(index, AccessShareLock);
    PG_RETURN_INT64(bytes);
}

Datum vecgpu_mirrors(PG_FUNCTION_ARGS)
{
    using namespace vecgpu;
    InitMaterializedSRF(fcinfo, 0);
    ReturnSetInfo *result = reinterpret_cast<ReturnSetInfo *>(fcinfo->resultinfo);
    if (!EngineThere(VgPatience::Look))
        return static_cast<Datum>(0);
    VgFallback failed = ForEntries<MirrorEntry>(Op::ListMirrors, kUsualK, kUsualK, [&](const MirrorEntry &entry) {
        if (entry.index.database != MyDatabaseId)
            return;
        Interval *idle = static_cast<Interval *>(palloc0(sizeof(Interval)));
        idle->time = static_cast<TimeOffset>(entry.idle_ns / 1000);
        Datum values[9] = {ObjectIdGetDatum(entry.index_oid),
                           CStringGetTextDatum(LaneName(entry.lane)),
                           CStringGetTextDatum(entry.phase == MirrorPhase::Ready ? "ready" : "loading"),
                           CStringGetTextDatum(VgStorageName(entry.storage)),
                           Int64GetDatum(static_cast<int64>(entry.bytes)),
                           Int64GetDatum(static_cast<int64>(entry.epoch)),
                           Int64GetDatum(static_cast<int64>(entry.nodes)),
                           IntervalPGetDatum(idle),
                           Int32GetDatum(entry.exact_from <= kUsualK ? 1 : static_cast<int32>(entry.exact_from))};
        bool nulls[9] = {};
        nulls[8] = entry.exact_from == 0;
        tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
    });
    if (failed != VgFallback::None)
        ereport(DEBUG1, (errmsg_internal("could not ask the vecgpu engine: %s", VgFallbackName(failed))));
    return static_cast<Datum>(0);
}

Datum vecgpu_devices(PG_FUNCTION_ARGS)
{
    using namespace vecgpu;
    InitMaterializedSRF(fcinfo, 0);
    ReturnSetInfo *result = reinterpret_cast<ReturnSetInfo *>(fcinfo->resultinfo);
    if (!EngineThere(DeviceWanted() ? VgPatience::Wait : VgPatience::Look))
        return static_cast<Datum>(0);
    int gpus = 0;
    VgFallback failed = ForEntries<DeviceEntry>(Op::ListDevices, 0, 0, [&](DeviceEntry entry) {
        entry.name[sizeof(entry.name) - 1] = '\0';
        Datum values[9] = {CStringGetTextDatum(LaneName(entry.lane)),
                           Int32GetDatum(static_cast<int32>(entry.number)),
                           CStringGetTextDatum(entry.name),
                           Int64GetDatum(static_cast<int64>(entry.memory)),
                           Int64GetDatum(static_cast<int64>(entry.memory_limit)),
                           Int64GetDatum(static_cast<int64>(entry.memory_used)),
                           Int32GetDatum(static_cast<int32>(entry.mirrors)),
                           Int32GetDatum(static_cast<int32>(entry.threads)),
                           static_cast<Datum>(0)};
        bool nulls[9] = {};
        nulls[3] = entry.memory == 0;
        nulls[8] = true;
        gpus += entry.lane == Lane::Gpu;
        tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
    });
    if (failed != VgFallback::None)
        Fail("could not ask the vecgpu engine", failed);
    if (gpus == 0) {
        Datum values[9] = {CStringGetTextDatum(LaneName(Lane::Gpu))};
        bool nulls[9] = {false, true, true, true, true, true, true, true, false};
        values[8] = CStringGetTextDatum(VgNoGpuReason());
        tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
    }
    return static_cast<Datum>(0);
}
}
