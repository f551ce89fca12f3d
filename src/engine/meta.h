/*
 * meta.h: what a session's copy of a metapage says about the mirror to make. Nothing of it is believed before it was checked.
 */
#pragma once

#include "engine/device.h"

namespace vecgpu {

/* What is wrong with it, or null. Later arithmetic relies on all that this looks at. */
const char *meta_fault(const Meta &meta, const IndexKey &key);

/* With room to grow, so that the next rows do not need a new mirror. */
MirrorShape shape_with_slack(const Meta &meta, Storage storage);

/* Whether the mirror's records are those of this index, and it has room for all of them. Storage may differ. */
bool shape_holds(const MirrorShape &shape, const Meta &meta);

MirrorState state_of_meta(const Meta &meta);

} // namespace vecgpu
