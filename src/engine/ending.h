/*
 * ending.h: how the engine ends, from any thread: sessions learn of it at once and nothing is left in the file system.
 */
#pragma once

#include "protocol/message.h"

namespace vecgpu {

/* Exit statuses. */
enum class Ending : int {
    Clean = 0,
    Failed = 1,     /* could not start */
    Usage = 2,
    Stalled = 3,    /* a device call did not return */
    DeviceLost = 4,
    Broken = 5,     /* an exception where none may come */
};

/* What announce_ending() works on. Before threads start; nulls: nothing. */
void set_ending(Area *area, const char *socket_path);

/* The heart has beaten, unless the end was announced. */
void keep_beating(uint64_t now);

/* No more heartbeats, no socket. */
void announce_ending();

[[noreturn]] void end_now(Ending ending);

} // namespace vecgpu
