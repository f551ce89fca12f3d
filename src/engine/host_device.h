/*
 * host_device.h: the device that every machine has: its own CPU.
 *
 * The reference of device.h, in plain C++: what test/device/ compares other devices with, what a server without a GPU can run the
 * whole path of a query on, and where faults are injected for tests (fault.h).
 */
#pragma once

#include "engine/device.h"

namespace vecgpu {

/*
 * One device, number 0. `streams` is the number of CPUs that the process may use, 1 to 16; a search runs on the thread that calls
 * it. Never null; lives as long as the process. Beyond device.h:
 * - BadRequest: a shape or parameter out of range, another number of dimensions, records beyond the capacity, a region of twins;
 *   for an index without a graph also links and upper records. Its Graph form is the Exact form.
 * - NoMemory: the system refuses memory. A search may have finished some of its queries before: those are good.
 * - `filter` must cover the nodes of the committed state.
 */
const DeviceApi *host_device_api();

} // namespace vecgpu
