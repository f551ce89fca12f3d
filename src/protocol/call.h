/*
 * call.h: the session's side of one request: claim, submit, spin, sleep, release.
 *
 * PostgreSQL-free, header only. Nothing here allocates or throws. The order of calls:
 *
 *   call_claim(); fill call.slot->request (op and its part) and payload; call_submit();
 *   if (!call_spin()) while (!call_wait(…, 10 ms)) { interrupts, deadline, engine alive? else call_abandon() and done }
 *   read call.slot->response and hits; call_release()
 *
 * A spin saves two context switches, about 10 us, where the answer takes less than that or little more. It is worth the core only
 * if the core has nothing better to do, so it depends on what this session's answers took lately and on how many
 * others wait at the same time, which the engine counts in the area.
 */
#pragma once

#include <sched.h>

#include "protocol/message.h"
#include "protocol/system.h"

namespace vecgpu {

constexpr int64_t kSpinLimitNs = 100000;  /* no longer than this */
constexpr int64_t kSpinWorthNs = 60000;   /* and not at all where answers take longer */
constexpr int64_t kSpinSlackNs = 4000;

struct Caller {
    Area *area = nullptr;
    uint32_t session = 0;
    uint32_t slots = 0;
    uint32_t hint = 0;  /* the slot used last: its lines are in this core's cache */
    uint32_t cores = 1; /* that this process may run on */
    int64_t expected_ns[kLanes] = {}; /* from submit to answer, a moving mean */
};

struct Call {
    Slot *slot = nullptr;
    uint32_t number = 0; /* of the slot */
    SlotWord claim = 0;
    uint64_t submitted_ns = 0;
    Lane lane = Lane::Host;
};

inline void caller_init(Caller *caller, Area *area, uint32_t session, uint32_t slots)
{
    *caller = Caller();
    caller->area = area;
    caller->session = session;
    caller->slots = slots;
    caller->hint = session % slots;
    cpu_set_t set;
    CPU_ZERO(&set);
    int cores = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    caller->cores = cores > 0 ? static_cast<uint32_t>(cores) : 1;
}

/* False: every slot is taken. */
inline bool call_claim(Caller *caller, Call *call)
{
    uint32_t number = caller->hint;
    for (uint32_t tried = 0; tried < caller->slots; tried++) {
        Slot &slot = caller->area->slot[number];
        if (slot_claim(slot.control, caller->session, &call->claim)) {
            call->slot = &slot;
            call->number = number;
            caller->hint = number;
            return true;
        }
        number = number + 1 < caller->slots ? number + 1 : 0;
    }
    call->slot = nullptr;
    return false;
}

/* The request and its payload are filled, but for op's neighbours lane and time. */
inline void call_submit(Caller *caller, Call *call, Lane lane)
{
    Slot *slot = call->slot;
    call->lane = lane;
    call->submitted_ns = now_ns();
    slot->request.lane = lane;
    slot->request.submitted_ns = call->submitted_ns;
    slot_submit(slot->control, call->claim);
    bell_ring<SharedFutex>(caller->area->bells[static_cast<uint32_t>(lane)], call->number);
}

inline bool call_done(const Call &call)
{
    return slot_done(call.slot->control, call.claim);
}

/* How long a spin is worth it; 0: sleep at once. */
inline int64_t call_spin_budget(const Caller &caller, Lane lane)
{
    if (lane == Lane::Control)
        return 0;
    int64_t expected = caller.expected_ns[static_cast<uint32_t>(lane)];
    if (expected > kSpinWorthNs)
        return 0;
    /* The engine needs cores, and those who ask need one each between their requests. This request may be among the counted. */
    uint32_t waiting = caller.area->in_flight[static_cast<uint32_t>(lane)].load(std::memory_order_relaxed);
    if (waiting > 1 && waiting > caller.cores / 4)
        return 0;
    int64_t budget = 2 * expected + kSpinSlackNs;
    return budget < kSpinLimitNs ? budget : kSpinLimitNs;
}

inline bool call_spin(const Caller &caller, const Call &call)
{
    int64_t budget = call_spin_budget(caller, call.lane);
    while (budget > 0) {
        for (int i = 0; i < 16; i++) {
            if (call_done(call))
                return true;
            cpu_pause();
        }
        if (static_cast<int64_t>(now_ns() - call.submitted_ns) > budget)
            break;
        /* Who is to answer may be waiting for this very core. */
        sched_yield();
    }
    return call_done(call);
}

/* Sleeps until the answer is there, the time is over or a signal came. True: it is there. */
inline bool call_wait(const Call &call, int64_t timeout_ns)
{
    slot_wait<SharedFutex>(call.slot->control, call.claim, timeout_ns);
    return call_done(call);
}

/* The answer has been read. */
inline void call_release(Caller *caller, Call *call)
{
    /* One stall must not end spinning for long. */
    constexpr int64_t kMost = 4 * kSpinWorthNs;
    int64_t took = static_cast<int64_t>(now_ns() - call->submitted_ns);
    int64_t &expected = caller->expected_ns[static_cast<uint32_t>(call->lane)];
    expected += ((took < kMost ? took : kMost) - expected) / 8;
    slot_release(call->slot->control, call->claim);
    call->slot = nullptr;
}

/* Gives up a call in whatever state it is. Not to be touched afterwards: request, response, payload, hits. */
inline void call_abandon(Call *call)
{
    if (call->slot != nullptr)
        slot_abandon(call->slot->control, call->claim);
    call->slot = nullptr;
}

} // namespace vecgpu
