/*
 * verify.h: checks every page of an index against what the metapage says; raises index_corrupted at the first fault.
 */
#pragma once

#include "page/page.h"

namespace vecgpu {

/*
 * Takes the structure lock on a primary, so that no flush moves things meanwhile; on a standby it works with one copy of the
 * metapage, which replay may overtake only by what later copies cover.
 */
void VgVerify(Relation index);

} // namespace vecgpu
