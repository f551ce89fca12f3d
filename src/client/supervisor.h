/*
 * supervisor.h: how sessions find and start the worker that runs the engine. The worker itself is worker/supervisor.cpp.
 */
#pragma once

#include "pg/pg.h"

namespace vecgpu {

/*
 * One supervisor in a cluster: it holds this lock, in session mode, as long as it runs. False if another one does. The caller has a
 * PGPROC; no database is needed.
 */
bool VgTryLockSupervisor(void);

bool VgSupervisorRuns(void);

/* Asks the postmaster for a supervisor unless one runs; at most once a second in a session. False if none can be had. */
bool VgStartSupervisor(void);

/* To be called from _PG_init() under shared_preload_libraries. */
void VgRegisterSupervisor(void);

} // namespace vecgpu
