/*
 * bench.h: vecgpu-engine --bench.
 */
#pragma once

#include "engine/options.h"

namespace vecgpu {

/* Prints its figures. Returns an exit status. */
int bench(const Options &options);

} // namespace vecgpu
