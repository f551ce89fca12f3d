/*
 * overlay.h: region pages as a flush wants them, before they are written.
 *
 * A batch changes a page many times; the overlay takes the changes in private memory and writes each page once. Readers go
 * through it, so that a batch sees itself. Needs the structure lock from the first read to the last write: then
 * nobody else changes region pages, except for dead hints, which a write may lose.
 */
#pragma once

#include "page/publish.h"
#include "page/region.h"

namespace vecgpu {

struct OverlayPage {
    BlockNumber block; /* hash key */
    uint8_t *payload;
    Region region;
    bool is_new; /* not written since its extent was formatted: log it whole */
};

struct Overlay {
    Regions regions; /* regions.meta is the batch's working copy, which grows */
    HTAB *pages;
    MemoryContext context;
    uint64_t count;
};

void VgOpenOverlay(Overlay *overlay, Relation index, const Meta *meta);

/* Reads a record, as changed so far. */
void VgOverlayRead(Overlay *overlay, Region region, uint32_t record, void *out);

/* Changes `bytes` bytes at `offset` of a record; its page must exist (VgGrowRegion). */
void VgOverlayWrite(Overlay *overlay, Region region, uint32_t record, uint32_t offset, const void *data, uint32_t bytes);

/* Writes all pages, stamped with `epoch`, and forgets them. */
void VgApplyOverlay(Overlay *overlay, uint64_t epoch, ChangedBlocks *changed);

} // namespace vecgpu
