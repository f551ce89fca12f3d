/*
 * settings.cpp: see settings.h.
 */
#include <dlfcn.h>
#include <unistd.h>

#include "client/settings.h"

namespace vecgpu {

int vg_device = kDeviceAuto;
int vg_device_form = kFormAuto;
bool vg_fallback = true;
bool vg_log_fallbacks = false;
int vg_engine_timeout = 2000;
int vg_gpu_memory_limit = 0;
int vg_engine_slots = 0;

static const config_enum_entry device_values[] = {{"auto", kDeviceAuto, false},
                                                  {"gpu", kDeviceGpu, false},
                                                  {"cpu", kDeviceCpu, false},
                                                  {"host", kDeviceHost, false},
                                                  {nullptr, 0, false}};

static const config_enum_entry form_values[] = {
    {"auto", kFormAuto, false}, {"exact", kFormExact, false}, {"graph", kFormGraph, false}, {nullptr, 0, false}};

void VgInitSettings(void)
{
    DefineCustomEnumVariable("vecgpu.device", "Where index searches run.",
                             "auto takes a GPU where there is one. cpu never asks the engine. host is the engine on its CPU "
                             "device.",
                             &vg_device, kDeviceAuto, device_values, PGC_USERSET, 0, nullptr, nullptr, nullptr);
    DefineCustomEnumVariable("vecgpu.device_form", "How a device searches an index with a graph.",
                             "auto takes what was measured to be faster when the index was loaded, by ef_search; "
                             "vecgpu_info() tells.",
                             &vg_device_form, kFormAuto, form_values, PGC_USERSET, 0, nullptr, nullptr, nullptr);
    DefineCustomBoolVariable("vecgpu.fallback", "Answers from the pages when the device cannot.",
                             "off waits for the device to be ready, and raises an error where it fails.", &vg_fallback,
                             true, PGC_USERSET, 0, nullptr, nullptr, nullptr);
    DefineCustomBoolVariable("vecgpu.log_fallbacks", "Logs searches that the device could not answer.", nullptr,
                             &vg_log_fallbacks, false, PGC_SUSET, 0, nullptr, nullptr, nullptr);
    DefineCustomIntVariable("vecgpu.engine_timeout", "Time that a search waits for the device.", nullptr,
                            &vg_engine_timeout, 2000, 1, 600000, PGC_USERSET, GUC_UNIT_MS, nullptr, nullptr, nullptr);
    DefineCustomIntVariable("vecgpu.gpu_memory_limit", "Device memory for mirrors of indexes.",
                            "0 takes nine tenths of the device. Read when the engine starts.", &vg_gpu_memory_limit, 0, 0,
                            INT_MAX, PGC_SIGHUP, GUC_UNIT_MB, nullptr, nullptr, nullptr);
    DefineCustomIntVariable("vecgpu.engine_slots", "Searches that can be with the engine at one time.",
                            "0 takes max_connections and some. Read when the engine starts.", &vg_engine_slots, 0, 0,
                            4096, PGC_SIGHUP, 0, nullptr, nullptr, nullptr);
}

const char *VgModuleFolder(void)
{
    static char folder[MAXPGPATH] = "";
    Dl_info info;
    if (folder[0] == '\0' && dladdr(reinterpret_cast<void *>(VgModuleFolder), &info) != 0 && info.dli_fname != nullptr) {
        strlcpy(folder, info.dli_fname, sizeof(folder));
        get_parent_directory(folder);
    }
    return folder;
}

bool VgGpuModuleInstalled(void)
{
    static int installed = -1;
    if (installed < 0) {
        char path[MAXPGPATH];
        snprintf(path, sizeof(path), "%s/vecgpu_cuda.so", VgModuleFolder());
        installed = access(path, R_OK) == 0;
    }
    return installed != 0;
}

} // namespace vecgpu
