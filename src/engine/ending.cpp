/*
 * ending.cpp: see ending.h.
 */
#include "engine/ending.h"

#include <unistd.h>

namespace vecgpu {

namespace {

Area *shared_area = nullptr;
const char *socket_file = nullptr;

} // namespace

void set_ending(Area *area, const char *socket_path)
{
    shared_area = area;
    socket_file = socket_path;
}

void keep_beating(uint64_t now)
{
    if (shared_area == nullptr)
        return;
    /* Another thread may be about to end the process: its 0 has the last word. */
    uint64_t last = shared_area->heartbeat_ns.load();
    if (last != 0)
        shared_area->heartbeat_ns.compare_exchange_strong(last, now);
}

void announce_ending()
{
    if (shared_area != nullptr)
        shared_area->heartbeat_ns.store(0);
    if (socket_file != nullptr)
        unlink(socket_file);
}

void end_now(Ending ending)
{
    announce_ending();
    _exit(static_cast<int>(ending));
}

} // namespace vecgpu
