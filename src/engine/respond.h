/*
 * respond.h: the end of a request that has no result to speak of.
 */
#pragma once

#include <cstdio>

#include "protocol/message.h"
#include "protocol/system.h"

namespace vecgpu {

/* `message` may be null or empty. Writes only what the claim still covers: a taken slot is the engine's until it is finished. */
inline void respond(Slot &slot, SlotWord claim, Status status, const char *message)
{
    slot.response.status = status;
    slot.response.count = 0;
    snprintf(slot.response.message, sizeof slot.response.message, "%s", message != nullptr ? message : "");
    slot_finish<SharedFutex>(slot.control, claim);
}

} // namespace vecgpu
