/*
 * control.cpp: see control.h.
 */
#include "engine/control.h"

#include <cstdio>
#include <cstring>

#include "engine/ending.h"
#include "engine/log.h"
#include "engine/respond.h"

namespace vecgpu {

const char *ControlWork::refuse(const Request &request) const
{
    switch (request.op) {
        case Op::LoadBegin:
        case Op::LoadWrite:
        case Op::LoadEnd:
        case Op::Evict:
        case Op::ListMirrors:
        case Op::ListDevices:
            return nullptr;
        case Op::Search:
            break;
    }
    return "not a request for this lane";
}

TaskQueue::SameClass ControlWork::same_class() const
{
    /* All are one class, so that they are served in their order; a worker takes one at a time. */
    return [](const Request &, const Request &) { return true; };
}

uint64_t ControlWork::class_hash(const Request &) const
{
    return 0;
}

uint32_t ControlWork::share(uint32_t, uint32_t) const
{
    return 1;
}

void ControlWork::run(uint32_t number, CallClock &clock, std::span<const Task> batch) noexcept
{
    for (const Task &task : batch) {
        Slot &slot = area_.slot[task.slot];
        /* An end that nobody waits for still has to be done: it is the end of a load. */
        if (task.request.op != Op::LoadEnd && !slot_wanted(slot.control, task.claim)) {
            if (task.request.op == Op::LoadWrite)
                loader_.spoil(session_of(task.claim), task.request.write);
            slot_finish<SharedFutex>(slot.control, task.claim);
            continue;
        }
        Response response = {};
        try {
            response.status = execute(workers_[number], clock, task, slot, &response);
        } catch (const std::exception &problem) {
            response = {};
            response.status = Status::DeviceError;
            snprintf(response.message, sizeof response.message, "%s", problem.what());
        }
        memcpy(&slot.response, &response, sizeof response);
        slot_finish<SharedFutex>(slot.control, task.claim);
        if (response.status == Status::DeviceLost) {
            log_line(LogLevel::Warning, "a device is lost: %s", response.message);
            end_now(Ending::DeviceLost);
        }
    }
}

Status ControlWork::execute(Loader::Worker &worker, CallClock &clock, const Task &task, Slot &slot, Response *response)
{
    const Request &request = task.request;
    uint32_t session = session_of(task.claim);
    switch (request.op) {
        case Op::LoadBegin: {
            Status status = loader_.begin(clock, session, request.begin, slot.payload, response);
            /* A load that nobody knows of would keep others from loading. */
            if (status == Status::Ok && !slot_wanted(slot.control, task.claim)) {
                Response unread = {};
                loader_.end(worker, clock, session, {response->begin.load, 1, 0}, &unread);
                mirrors_.sweep();
            }
            return status;
        }
        case Op::LoadWrite: {
            Status status = loader_.write(worker, clock, session, request.write, slot.payload, response);
            if (!slot_wanted(slot.control, task.claim))
                loader_.spoil(session, request.write);
            return status;
        }
        case Op::LoadEnd: {
            Status status = loader_.end(worker, clock, session, request.end, response);
            mirrors_.sweep(); /* what it replaced */
            return status;
        }
        case Op::Evict:
            response->end.bytes = mirrors_.evict(request.evict.index);
            return Status::Ok;
        case Op::ListMirrors: {
            MirrorEntry *entries = reinterpret_cast<MirrorEntry *>(slot.payload);
            response->count = mirrors_.list(request.list, {entries, kQueryBytes / sizeof(MirrorEntry)},
                                            &response->list.total);
            return Status::Ok;
        }
        case Op::ListDevices: {
            DeviceEntry *entries = reinterpret_cast<DeviceEntry *>(slot.payload);
            response->count = list_devices(request.list.first, entries, kQueryBytes / sizeof(DeviceEntry),
                                           &response->list.total);
            return Status::Ok;
        }
        case Op::Search:
            break;
    }
    return Status::BadRequest;
}

uint32_t ControlWork::list_devices(uint32_t first, DeviceEntry *out, uint32_t room, uint32_t *total)
{
    uint32_t count = 0;
    *total = static_cast<uint32_t>(devices_.all().size());
    for (uint32_t i = first; i < *total && count < room; i++) {
        const OpenDevice &device = *devices_.all()[i];
        DeviceEntry &entry = out[count++];
        entry = {};
        memcpy(entry.name, device.info.name, sizeof entry.name);
        entry.lane = device.lane;
        entry.number = device.number;
        entry.memory = device.info.memory;
        entry.memory_limit = device.memory_limit;
        entry.memory_used = device.memory_used.load();
        entry.mirrors = mirrors_.count(device);
        entry.threads = threads_[static_cast<uint32_t>(device.lane)];
    }
    return count;
}

} // namespace vecgpu
