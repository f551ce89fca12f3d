/*
 * module.cpp: what PostgreSQL sees when it loads the library.
 */
#include "am/am.h"
#include "client/settings.h"
#include "client/supervisor.h"
#include "planner/demand.h"

extern "C" {
PG_MODULE_MAGIC;
PGDLLEXPORT void _PG_init(void);
}

void _PG_init(void)
{
    vecgpu::VgInitSettings();
    vecgpu::VgInitOptions(); /* reserves the prefix of the settings */
    vecgpu::VgInitDemand(vecgpu::VgBeginScan);
    if (process_shared_preload_libraries_in_progress)
        vecgpu::VgRegisterSupervisor();
}
