/*
 * scan.h: rules of a scan that the planner's cost function shares.
 */
#pragma once

#include "page/layout.h"

namespace vecgpu {

/*
 * An exact pass over all rows in page order beats the walk when there are few nodes for each of the ef wanted: a walk computes some
 * 20 distances for each, and one in order costs about a quarter of a scattered one.
 */
inline bool VgSweepsAtOnce(const Meta &meta, uint64_t ef)
{
    return meta.kind == IndexKind::Flat || meta.nodes / 32 <= ef;
}

} // namespace vecgpu
