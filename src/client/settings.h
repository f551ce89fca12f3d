/*
 * settings.h: the settings that decide where a search runs.
 */
#pragma once

#include "pg/pg.h"

namespace vecgpu {

enum VgDeviceSetting {
    kDeviceAuto, /* a GPU where there is one */
    kDeviceGpu,
    kDeviceCpu,  /* the session's own process, over the pages */
    kDeviceHost, /* the engine's CPU device: for tests */
};

/* Forms in which a device searches an index with a graph. */
enum VgFormSetting {
    kFormAuto, /* what the engine measured to be faster */
    kFormExact,
    kFormGraph,
};

extern int vg_device;
extern int vg_device_form;
extern bool vg_fallback;       /* what goes wrong with the device is answered from the pages; off: is an error */
extern bool vg_log_fallbacks;
extern int vg_engine_timeout;  /* ms that a query waits for the device */
extern int vg_gpu_memory_limit; /* MB for mirrors; 0: nine tenths of the device */
extern int vg_engine_slots;    /* requests at once; 0: by max_connections */

/* The socket of the engine, relative to the data directory: in a folder that base backups leave out. */
constexpr char kEngineSocket[] = "pg_stat_tmp/vecgpu.sock";

/* Defines them. Before VgInitOptions(), which reserves the prefix. */
void VgInitSettings(void);

/* Folder of the module, where the engine and devices lie too. */
const char *VgModuleFolder(void);

/* Whether a GPU can be hoped for: its device module is installed. Looks once in a session. */
bool VgGpuModuleInstalled(void);

} // namespace vecgpu
