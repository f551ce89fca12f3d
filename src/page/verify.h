/*
 * verify.h: checks every page of an index against what the metapage says; raises index_corrupted at the first fault.
 */
#pragma once

#include "page/page.h"

namespace vecgpu {

/*
 * Takes the structure lock on a primary, so that no flush moves things meanwhile. On a standby a run goes by its copy of the
 * metapage, which replay may overtake: a fault counts if the next run finds one too and the metapage has not changed;
 * otherwise the index is looked at again, up to 100 times (then it is ERRCODE_T_R_SERIALIZATION_FAILURE).
 */
void VgVerify(Relation index);

} // namespace vecgpu
