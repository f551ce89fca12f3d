/*
 * server.h: the control thread: sessions, heartbeats, watchdog, the end.
 */
#pragma once

#include "engine/ending.h"
#include "engine/options.h"

namespace vecgpu {

/* Serves until it is told to stop or has to. On the calling thread; signals that end it should be blocked before. */
Ending serve(const Options &options);

/* SIGTERM and SIGINT for serve() to read, no SIGPIPE, files for our user only. Before any thread starts. */
void prepare_process();

} // namespace vecgpu
