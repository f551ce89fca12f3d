/*
 * open.h: how workers open the index that they were started for.
 */
#pragma once

#include "am/am.h"

namespace vecgpu {

/* Null unless the index is there, is one of ours, and can be locked without waiting. */
Relation VgOpenWithoutWaiting(Oid oid, LOCKMODE mode);

} // namespace vecgpu
