/*
 * publish.h: the step that makes a batch of changes visible, and the change journal.
 *
 * A flush, a vacuum or a rebuild writes its pages first and then publishes: one WAL record changes the counters, the entry
 * point, the delta heads and the epoch in the metapage, and notes the changed blocks in the journal. A reader works
 * with one copy of the metapage, so it sees all of a batch or nothing of it.
 */
#pragma once

#include "page/delta.h"
#include "page/page.h"

namespace vecgpu {

/* Distinct blocks that a batch changed; grows in the current memory context. */
struct ChangedBlocks {
    BlockNumber *block;
    uint32_t count;
    uint32_t capacity;
    bool overflow; /* more than the journal takes in one batch: only the floor moves */
};

/* `capacity`: kJournalPerPage for a batch, kJournalEntries to read the whole journal. */
void VgInitChanged(ChangedBlocks *changed, uint32_t capacity);
void VgNoteChanged(ChangedBlocks *changed, BlockNumber block);

/*
 * Publishes *meta (the caller's working copy: counters, entry, generation, regions, max_norm, cell_width, dimensions) under epoch
 * meta->epoch + 1, which is also set in *meta. `ends`, if not null, has kDeltaChains entries: rows before them leave the
 * delta. Fields that inserts own (chain tails, delta_sequence) and the parked list are kept as they are on the page.
 * Needs the structure lock.
 */
void VgPublish(Relation index, Meta *meta, const DeltaEnd *ends, ChangedBlocks *changed);

/* The same for a rebuild: pending extents (parked.h) are in use from now on, and `retired` ones are parked, in the same record. */
void VgPublishRebuild(Relation index, Meta *meta, const DeltaEnd *ends, ChangedBlocks *changed, const Extent *retired,
                      uint32_t count);

/* Makes the journal's pages, once per index. */
void VgCreateJournal(Relation index, Meta *meta);

/*
 * Blocks changed after `epoch`, for a mirror that is at that epoch; `changed` has room for the whole journal. False if the journal does not reach back so far; then the
 * page stamps must be looked at. Blocks may repeat.
 */
bool VgReadJournal(Relation index, const Meta &meta, uint64_t epoch, ChangedBlocks *changed);

} // namespace vecgpu
