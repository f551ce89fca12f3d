/*
 * graph.h: the graph on the pages as a node source for core/search.h.
 *
 * Link cells are hints: a page may change between two reads and a record may be read half old, half new where it
 * spans pages, so a cell can name any node. The search skips numbers that the metapage copy does not cover; a wrong
 * but valid number costs one distance. Vectors of slots below Meta.nodes never change within a generation.
 */
#pragma once

#include "core/distance.h"
#include "page/region.h"

namespace vecgpu {

struct PageSource {
    Regions regions;
    Query query;
    bool null_query;     /* every key is 0: rows in any order */
    uint32_t width;      /* of a cell */
    uint8_t *scratch;    /* one row that spans pages */
    uint8_t *record;     /* one link or upper record */

    void init(Relation index, const Meta *meta, const float *vector);

    uint32_t count() const { return regions.meta->nodes; }
    uint32_t max_links() const { return 2u * regions.meta->m; }
    int entry_level() const { return regions.meta->entry_level; }
    uint32_t entry_handle() const { return regions.meta->entry_handle; }
    uint32_t links(uint32_t slot, uint32_t *out);
    uint32_t upper_links(uint32_t handle, uint32_t *out);
    uint32_t upper_slot(uint32_t handle);
    uint32_t upper_down(int level, uint32_t handle);
    void keys(const uint32_t *slots, uint32_t n, float *keys);
    void interrupt() { CHECK_FOR_INTERRUPTS(); }
};

/* Copies a slot's record, its twins excluded. */
void VgReadSlot(const Regions &regions, uint32_t slot, SlotRecord *out);

/* First twin of a slot whose record says kRowHasTwins. */
uint32_t VgFirstTwin(const Regions &regions, uint32_t slot);

/* Sets kRowKilled on rows that the executor found dead to everyone. `twin` entries number twins, the others slots. */
struct KilledRow {
    uint32_t number;
    bool twin;
};
void VgKillRows(const Regions &regions, KilledRow *rows, uint32_t count);

} // namespace vecgpu
