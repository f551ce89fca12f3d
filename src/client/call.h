/*
 * call.h: requests of this session to the engine.
 *
 * A call claims a slot, fills it, rings, and waits; nothing is allocated and no socket is touched. Everything that goes wrong
 * comes back as a VgFallback, and the caller goes on without the engine. Cancel and termination of the session are
 * answered while it waits (at most kWaitSliceMs late): the call is abandoned and the engine frees the slot.
 */
#pragma once

#include "client/fallback.h"
#include "pg/pg.h"
#include "protocol/call.h"

namespace vecgpu {

/* How much a caller wants the engine. */
enum class VgPatience {
    Look, /* only if it runs */
    Ask,  /* have it started if it does not run, for the next time */
    Wait, /* have it started, and wait until it is there */
};

/* Connects if need be and finds the lane for the setting vecgpu.device. None if a call can be opened. */
VgFallback VgReachEngine(VgPatience patience, Lane *lane);

/* Ends the connection: the engine forgets all that this session has under way. The next call makes a new one. */
void VgDisconnectEngine(void);

/* Why there is no GPU, in the engine's words; after VgReachEngine() said NoDevice. */
const char *VgNoGpuReason(void);

/* Claims a slot. NoSlot if all are taken. */
VgFallback VgOpenCall(Call *call);

/* Hands the filled request over. */
void VgSubmitCall(Call *call, Lane lane);

/*
 * Waits for the answer, at most timeout_ms. None: call->slot->response is there, whatever its status, until VgCloseCall(). Otherwise the
 * call is given up and closed. Raises an error only where CHECK_FOR_INTERRUPTS() does; the call is closed then too.
 */
VgFallback VgWaitCall(Call *call, long timeout_ms);

/* Gives the slot back, in whatever state the call is. */
void VgCloseCall(Call *call);

/* True for one session of all in a while: the one that asks for a load of this index, or sends what its mirror lacks. */
bool VgMayAskForLoad(const IndexKey &index);
bool VgMayFeed(const IndexKey &index);

/* What a status of the engine means for a search; None for Ok. */
VgFallback VgFallbackOf(Status status);

/*
 * Memory for bulk data, shared with the engine; made at the first use in a connection. Null if it cannot be had. The same memory
 * for all calls of the session.
 */
uint8_t *VgStaging(void);
constexpr size_t kStagingBytes = 16 * 1024 * 1024;

} // namespace vecgpu
