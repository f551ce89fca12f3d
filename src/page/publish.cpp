/*
 * publish.cpp: see publish.h.
 */
#include "page/publish.h"

#include "page/parked.h"
#include "page/region.h"

namespace vecgpu {

void VgInitChanged(ChangedBlocks *changed, uint32_t capacity)
{
    changed->capacity = capacity;
    changed->block = static_cast<BlockNumber *>(palloc(changed->capacity * sizeof(BlockNumber)));
    changed->count = 0;
    changed->overflow = false;
}

void VgNoteChanged(ChangedBlocks *changed, BlockNumber block)
{
    /* One page's worth of entries spans at most two journal pages, which with the metapage fit one WAL record. */
    if (changed->count == changed->capacity)
        changed->overflow = true;
    else
        changed->block[changed->count++] = block;
}

void VgCreateJournal(Relation index, Meta *meta)
{
    if (meta->journal_block != kNoBlock)
        return;
    LockRelationForExtension(index, ExclusiveLock);
    BlockNumber first = RelationGetNumberOfBlocks(index);
    for (uint32_t i = 0; i < kJournalPages; i++) {
        Buffer buffer = ReadBufferExtended(index, MAIN_FORKNUM, P_NEW, RBM_ZERO_AND_LOCK, nullptr);
        GenericXLogState *state = GenericXLogStart(index);
        Page page = GenericXLogRegisterBuffer(state, buffer, GENERIC_XLOG_FULL_IMAGE);
        VgInitPage(page, PageKind::Journal, 0, 0, meta->epoch);
        SetPayloadUsed(page, kJournalPerPage * sizeof(JournalEntry));
        GenericXLogFinish(state);
        UnlockReleaseBuffer(buffer);
    }
    UnlockRelationForExtension(index, ExclusiveLock);
    meta->journal_block = first;
    meta->journal_count = 0;
    meta->journal_floor = meta->epoch;
}

static uint32_t JournalPage(uint64_t entry)
{
    return static_cast<uint32_t>(entry % kJournalEntries) / kJournalPerPage;
}

static void Publish(Relation index, Meta *meta, const DeltaEnd *ends, ChangedBlocks *changed, const Extent *retired,
                    uint32_t retired_count)
{
    VgCreateJournal(index, meta);
    Buffer buffer = VgReadPage(index, 0, BUFFER_LOCK_EXCLUSIVE);
    const Meta *current = VgCheckMeta(index, BufferGetPage(buffer));
    uint64_t epoch = current->epoch + 1;

    Buffer parked = InvalidBuffer;
    if (retired != nullptr)
        parked = VgReadPage(index, current->parked_block, BUFFER_LOCK_EXCLUSIVE);

    /* Ring positions that this batch writes: at most two pages. */
    uint64_t first = meta->journal_count;
    uint32_t entries = changed->overflow ? 0 : changed->count;
    Buffer journal[2] = {InvalidBuffer, InvalidBuffer};
    uint32_t pages = 0;
    if (entries > 0) {
        journal[pages++] = VgReadPage(index, meta->journal_block + JournalPage(first), BUFFER_LOCK_EXCLUSIVE);
        if (JournalPage(first + entries - 1) != JournalPage(first))
            journal[pages++] =
                VgReadPage(index, meta->journal_block + JournalPage(first + entries - 1), BUFFER_LOCK_EXCLUSIVE);
    }

    GenericXLogState *state = GenericXLogStart(index);
    Page meta_page = GenericXLogRegisterBuffer(state, buffer, 0);
    Meta *on_page = MetaOf(meta_page);
    if (parked != InvalidBuffer)
        VgSwapParked(GenericXLogRegisterBuffer(state, parked, 0), on_page, retired, retired_count);
    JournalEntry *slots[2] = {nullptr, nullptr};
    for (uint32_t i = 0; i < pages; i++) {
        if (!VgPageIs(BufferGetPage(journal[i]), PageKind::Journal))
            VgCorrupt(index, BufferGetBlockNumber(journal[i]), "not a journal page");
        Page page = GenericXLogRegisterBuffer(state, journal[i], 0);
        Trailer(page)->epoch = epoch;
        slots[i] = reinterpret_cast<JournalEntry *>(Payload(page));
    }
    for (uint32_t i = 0; i < entries; i++) {
        uint64_t at = first + i;
        JournalEntry *entry = &slots[JournalPage(at) == JournalPage(first) ? 0 : 1][at % kJournalPerPage];
        if (at >= kJournalEntries) {
            /* The overwritten entry's epoch: its low half, completed from ours. */
            uint64_t lost = (epoch & ~static_cast<uint64_t>(UINT32_MAX)) | entry->epoch_low;
            if (lost > epoch)
                lost -= static_cast<uint64_t>(1) << 32;
            if (lost > meta->journal_floor)
                meta->journal_floor = lost;
        }
        *entry = {static_cast<uint32_t>(epoch), changed->block[i]};
    }
    meta->journal_count += entries;
    if (changed->overflow)
        meta->journal_floor = epoch;

    /* What inserts own stays; all else comes from the working copy. */
    DeltaChain chains[kDeltaChains];
    memcpy(chains, on_page->chains, sizeof(chains));
    meta->delta_sequence = on_page->delta_sequence;
    meta->parked = on_page->parked;
    meta->parked_block = on_page->parked_block;
    meta->max_error = on_page->max_error;
    meta->epoch = epoch;
    for (uint32_t i = 0; ends != nullptr && i < kDeltaChains; i++) {
        if (ends[i].block == kNoBlock)
            continue;
        /* A count that is off (it only steers flushes) must not wrap. */
        chains[i].pages = chains[i].pages > ends[i].passed ? chains[i].pages - ends[i].passed : 1;
        chains[i].head_block = ends[i].block;
        chains[i].head_sequence = ends[i].sequence;
        chains[i].head_row = ends[i].rows;
    }
    memcpy(meta->chains, chains, sizeof(chains));
    memcpy(on_page, meta, sizeof(Meta));
    Trailer(meta_page)->epoch = epoch;
    SetPayloadUsed(meta_page, sizeof(Meta));
    GenericXLogFinish(state);
    for (uint32_t i = 0; i < pages; i++)
        UnlockReleaseBuffer(journal[i]);
    if (parked != InvalidBuffer)
        UnlockReleaseBuffer(parked);
    UnlockReleaseBuffer(buffer);
    changed->count = 0;
    changed->overflow = false;
}

void VgPublish(Relation index, Meta *meta, const DeltaEnd *ends, ChangedBlocks *changed)
{
    Publish(index, meta, ends, changed, nullptr, 0);
}

void VgPublishRebuild(Relation index, Meta *meta, const DeltaEnd *ends, ChangedBlocks *changed, const Extent *retired,
                      uint32_t count)
{
    Publish(index, meta, ends, changed, retired, count);
}

bool VgReadJournal(Relation index, const Meta &meta, uint64_t epoch, ChangedBlocks *changed)
{
    if (epoch == meta.epoch)
        return true;
    if (meta.journal_block == kNoBlock || epoch < meta.journal_floor)
        return false;
    uint64_t oldest = meta.journal_count > kJournalEntries ? meta.journal_count - kJournalEntries : 0;
    for (uint32_t p = 0; p < kJournalPages; p++) {
        Buffer buffer = VgReadPage(index, meta.journal_block + p, BUFFER_LOCK_SHARE);
        Page page = BufferGetPage(buffer);
        if (!VgPageIs(page, PageKind::Journal))
            VgCorrupt(index, meta.journal_block + p, "not a journal page");
        const JournalEntry *entries = reinterpret_cast<const JournalEntry *>(Payload(page));
        for (uint32_t i = 0; i < kJournalPerPage; i++) {
            uint64_t ring = static_cast<uint64_t>(p) * kJournalPerPage + i;
            /* Written yet? The newest number with this ring position. */
            uint64_t number = oldest / kJournalEntries * kJournalEntries + ring;
            if (number < oldest)
                number += kJournalEntries;
            if (number >= meta.journal_count)
                continue;
            if (entries[i].epoch_low - static_cast<uint32_t>(epoch) - 1 < static_cast<uint32_t>(meta.epoch - epoch))
                VgNoteChanged(changed, entries[i].block);
        }
        UnlockReleaseBuffer(buffer);
    }
    return !changed->overflow;
}

} // namespace vecgpu
