/*
 * module.cpp: what PostgreSQL sees when it loads the library.
 */
#include "am/am.h"
#include "planner/demand.h"

extern "C" {
PG_MODULE_MAGIC;
PGDLLEXPORT void _PG_init(void);
}

void _PG_init(void)
{
    vecgpu::VgInitOptions();
    vecgpu::VgInitDemand(vecgpu::VgBeginScan);
}
