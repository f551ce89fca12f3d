/*
 * region.h: arrays of records over extents of pages: read, write, grow, free.
 *
 * Only the holder of the structure lock writes or grows regions (dead hints on slots excepted, see RowState).
 */
#pragma once

#include "page/page.h"
#include "page/recent.h"

namespace vecgpu {

/* A view of the regions as one copy of the metapage describes them. */
struct Regions {
    Relation index;
    const Meta *meta; /* not owned; must outlive the view */
    RecentBuffers *recent; /* may be null */
    RegionShape shape[kRegions];
};

void VgOpenRegions(Regions *regions, Relation index, const Meta *meta);

inline const RegionShape &Shape(const Regions &regions, Region region)
{
    return regions.shape[static_cast<int>(region)];
}

inline const RegionDirectory &Directory(const Regions &regions, Region region)
{
    return regions.meta->regions[static_cast<int>(region)];
}

/* Share-locks a page of a region; an error if it is not one of this generation. */
Buffer VgReadRegionPage(const Regions &regions, Region region, uint32_t page);

/* Copies one record, which may span pages. */
void VgReadRecord(const Regions &regions, Region region, uint32_t record, void *out);

/*
 * Makes room for `records` records. Updates the metapage and *meta alike, in a WAL record of its own, so that
 * a crash never leaks the pages. Needs the structure lock.
 */
void VgGrowRegion(Relation index, Meta *meta, Region region, uint64_t records);

/*
 * Takes `pages` consecutive pages, from parked extents past the horizon or from the end of the file, initialised as pages of
 * the region and generation and WAL-logged. The extent is not in any directory yet. Needs the structure lock.
 */
Extent VgTakeExtent(Relation index, Region region, uint32_t generation, uint64_t epoch, uint32_t pages);

/* One free page for the delta, exclusively locked: from the free space map or the end of the file. */
Buffer VgTakePage(Relation index);

/* Marks a page as free and tells the free space map. The caller holds no lock on it. */
void VgFreePage(Relation index, BlockNumber block);

} // namespace vecgpu
