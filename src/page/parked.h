/*
 * parked.h: extents that no metapage refers to any more, or not yet.
 *
 * A retired extent keeps its bytes until no snapshot can still be reading it, then new regions take it. An extent that a rebuild
 * has taken and not yet published is on the list as pending: a rebuild that ends early, however, leaks nothing.
 * The list is one page, changed under the structure lock.
 */
#pragma once

#include "page/page.h"

namespace vecgpu {

constexpr uint64_t kPendingXid = UINT64_MAX;

/* Takes pages out of an extent that every snapshot is past, smallest fit first; false if there is none. */
bool VgTakeParked(Relation index, uint32_t pages, Extent *taken);

/* Adds extents: retired now, or pending. */
void VgParkExtents(Relation index, const Extent *extents, uint32_t count, bool pending);

/* Before a rebuild: makes the list page, and retires pending extents of one that never published. */
void VgPrepareParked(Relation index);

/*
 * The step that a publish takes on its image of the list: pending extents are in use from now on, and `retired` ones are added.
 * The list page exists (VgPrepareParked).
 */
void VgSwapParked(Page list, Meta *meta, const Extent *retired, uint32_t count);

/* Pages of all parked extents. */
uint64_t VgParkedPages(Relation index, const Meta &meta);

} // namespace vecgpu
