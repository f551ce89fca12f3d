/*
 * verify.cpp: see verify.h.
 */
#include <algorithm>
#include <cmath>

#include "core/build.h"
#include "page/delta.h"
#include "page/graph.h"
#include "page/publish.h"
#include "page/verify.h"

namespace vecgpu {

namespace {

struct Verifier {
    Relation index;
    Meta meta;
    Regions regions;
    BlockNumber blocks;
    uint8_t *owned; /* one bit a block */
    float *decoded;
    bool again; /* a standby: replay has moved on under us */

    [[noreturn]] void fail(BlockNumber block, const char *reason) { VgCorrupt(index, block, reason); }

    void own(BlockNumber block)
    {
        if (block >= blocks)
            fail(0, "a page lies beyond the end of the file");
        if (owned[block / 8] & (1 << (block % 8)))
            fail(block, "the block is used twice");
        owned[block / 8] |= static_cast<uint8_t>(1 << (block % 8));
    }

    void own_extents()
    {
        own(0);
        for (const RegionDirectory &directory : meta.regions)
            for (uint32_t i = 0; i < directory.extents; i++)
                for (uint32_t p = 0; p < directory.extent[i].pages; p++)
                    own(directory.extent[i].first_block + p);
        if (meta.journal_block != kNoBlock)
            for (uint32_t p = 0; p < kJournalPages; p++) {
                own(meta.journal_block + p);
                check_kind(meta.journal_block + p, PageKind::Journal);
            }
        if (meta.parked_block == kNoBlock)
            return;
        own(meta.parked_block);
        check_kind(meta.parked_block, PageKind::Parked);
        Buffer buffer = VgReadPage(index, meta.parked_block, BUFFER_LOCK_SHARE);
        ParkedExtent *list = static_cast<ParkedExtent *>(palloc(kMaxParked * sizeof(ParkedExtent)));
        memcpy(list, Payload(BufferGetPage(buffer)), kMaxParked * sizeof(ParkedExtent));
        UnlockReleaseBuffer(buffer);
        for (uint32_t i = 0; i < meta.parked; i++)
            for (uint32_t p = 0; p < list[i].pages; p++)
                own(list[i].first_block + p);
        pfree(list);
    }

    /* What a mirror would read: blocks of this file. On a standby replay may be ahead of our copy of the metapage. */
    void check_journal()
    {
        if (meta.journal_block == kNoBlock || RecoveryInProgress())
            return;
        ChangedBlocks changed;
        VgInitChanged(&changed, kJournalEntries);
        if (!VgReadJournal(index, meta, meta.journal_floor, &changed))
            fail(meta.journal_block, "the journal does not reach back to its floor");
        for (uint32_t i = 0; i < changed.count; i++)
            if (changed.block[i] == 0 || changed.block[i] >= blocks)
                fail(meta.journal_block, "the journal names a block beyond the end of the file");
        pfree(changed.block);
    }

    void check_kind(BlockNumber block, PageKind kind)
    {
        Buffer buffer = VgReadPage(index, block, BUFFER_LOCK_SHARE);
        if (!VgPageIs(BufferGetPage(buffer), kind))
            fail(block, "the page is of another kind");
        UnlockReleaseBuffer(buffer);
    }

    void check_region_pages()
    {
        for (int r = 0; r < kRegions; r++) {
            Region region = static_cast<Region>(r);
            for (uint32_t p = 0; p < Directory(regions, region).pages; p++) {
                CHECK_FOR_INTERRUPTS();
                UnlockReleaseBuffer(VgReadRegionPage(regions, region, p));
            }
        }
    }

    BlockNumber block_of(Region region, uint32_t record)
    {
        return region_block(Directory(regions, region), record_address(Shape(regions, region), record).page);
    }

    void check_finite(const uint8_t *row, BlockNumber block)
    {
        decode_row(meta.storage, row, meta.dimensions, decoded);
        for (uint32_t i = 0; i < meta.dimensions; i++)
            if (!std::isfinite(decoded[i]))
                fail(block, "a vector has a component that is not finite");
    }

    void check_row(const RowId &row, uint16_t state, BlockNumber block)
    {
        if ((state & kRowStateMask) != kRowLive && (state & kRowStateMask) != kRowDead)
            fail(block, "a row is neither live nor dead");
        if (row.offset == 0)
            fail(block, "a row has an invalid TID");
    }

    /* A list: no gap, no repetition, no link to itself. Returns its length. */
    uint32_t check_list(const uint8_t *cells, uint32_t count, uint32_t self, uint32_t *ids, BlockNumber block)
    {
        uint32_t n = 0;
        for (uint32_t i = 0; i < count; i++) {
            uint32_t id = load_cell(cells, i, meta.cell_width);
            if (id == kNone) {
                for (; i < count; i++)
                    if (load_cell(cells, i, meta.cell_width) != kNone)
                        fail(block, "a list of links has a gap");
                break;
            }
            if (id == self)
                fail(block, "a node links to itself");
            ids[n++] = id;
        }
        std::sort(ids, ids + n);
        for (uint32_t i = 1; i < n; i++)
            if (ids[i] == ids[i - 1])
                fail(block, "a list of links holds a node twice");
        return n;
    }

    void check_slots(uint8_t *has_twins)
    {
        uint8_t *row = static_cast<uint8_t *>(palloc(Shape(regions, Region::Vectors).record_bytes));
        uint8_t *links = static_cast<uint8_t *>(palloc(Shape(regions, Region::Links).record_bytes));
        uint32_t *ids = static_cast<uint32_t *>(palloc(sizeof(uint32_t) * 2 * meta.m));
        for (uint32_t slot = 0; slot < meta.nodes; slot++) {
            CHECK_FOR_INTERRUPTS();
            SlotRecord record;
            VgReadSlot(regions, slot, &record);
            check_row(record.row, record.meta, block_of(Region::Slots, slot));
            VgReadRecord(regions, Region::Vectors, slot, row);
            check_finite(row, block_of(Region::Vectors, slot));
            if (record.meta & kRowHasTwins)
                has_twins[slot / 8] |= static_cast<uint8_t>(1 << (slot % 8));
            if (meta.kind == IndexKind::Flat)
                continue;
            VgReadRecord(regions, Region::Links, slot, links);
            check_list(links, 2u * meta.m - (record.meta & kRowHasTwins ? 1 : 0), slot, ids,
                       block_of(Region::Links, slot));
        }
        pfree(row);
        pfree(links);
        pfree(ids);
    }

    /* Every twin hangs in the chain of its slot, once. */
    void check_twins(const uint8_t *has_twins)
    {
        uint64_t reached = 0;
        for (uint32_t slot = 0; slot < meta.nodes; slot++) {
            if (!(has_twins[slot / 8] & (1 << (slot % 8))))
                continue;
            CHECK_FOR_INTERRUPTS();
            uint32_t before = 0;
            bool first = true;
            for (uint32_t twin = VgFirstTwin(regions, slot); twin < meta.twins;) {
                TwinRecord record;
                VgReadRecord(regions, Region::Twins, twin, &record);
                if (record.slot != slot)
                    break;
                check_row(record.row, record.meta, block_of(Region::Twins, twin));
                if (!first && twin <= before)
                    fail(block_of(Region::Twins, twin), "a chain of twins runs backwards");
                first = false;
                before = twin;
                reached++;
                twin = record.next;
            }
        }
        if (reached != meta.twins && !RecoveryInProgress())
            fail(0, "twins are missing from their chains");
    }

    void check_upper()
    {
        if (meta.kind == IndexKind::Flat)
            return;
        uint8_t *record = static_cast<uint8_t *>(palloc(Shape(regions, Region::Upper).record_bytes));
        uint8_t *levels = static_cast<uint8_t *>(
            MemoryContextAllocHuge(CurrentMemoryContext, static_cast<size_t>(meta.upper) + 1));
        uint32_t *ids = static_cast<uint32_t *>(palloc(sizeof(uint32_t) * meta.m));
        UpperRecord last = {kNone, 0, {0, 0, 0}};
        for (uint32_t i = 0; i < meta.upper; i++) {
            CHECK_FOR_INTERRUPTS();
            VgReadRecord(regions, Region::Upper, i, record);
            UpperRecord header;
            memcpy(&header, record, sizeof(header));
            BlockNumber block = block_of(Region::Upper, i);
            if (header.slot >= meta.nodes || header.level < 1 || header.level > kMaxLevel)
                fail(block, "an upper record names no node or no level");
            if (header.level > 1 && (last.slot != header.slot || last.level != header.level - 1))
                fail(block, "upper records of a node are not consecutive");
            last = header;
            levels[i] = header.level;
        }
        for (uint32_t i = 0; i < meta.upper; i++) {
            CHECK_FOR_INTERRUPTS();
            VgReadRecord(regions, Region::Upper, i, record);
            BlockNumber block = block_of(Region::Upper, i);
            uint32_t n = check_list(record + sizeof(UpperRecord), meta.m, i, ids, block);
            for (uint32_t j = 0; j < n && ids[j] < meta.upper; j++)
                if (levels[ids[j]] != levels[i] && !RecoveryInProgress())
                    fail(block, "an upper record links to another level");
        }
        if (graph_count_records(meta.incarnation, meta.m, 0, meta.nodes) != meta.upper)
            fail(0, "the number of upper records is not that of the nodes");
        if (meta.entry_handle != kNone && meta.entry_level > 0 && levels[meta.entry_handle] != meta.entry_level)
            fail(0, "the entry point is on another level");
        if (meta.nodes > 0 && meta.entry_handle == kNone)
            fail(0, "there are nodes but no entry point");
        pfree(record);
        pfree(levels);
        pfree(ids);
    }

    static bool VisitDelta(void *context, const DeltaVisit &visit)
    {
        Verifier *self = static_cast<Verifier *>(context);
        self->check_row(visit.id, visit.meta, visit.block);
        self->check_finite(visit.vector, visit.block);
        return true;
    }

    void check_delta()
    {
        for (uint32_t i = 0; i < kDeltaChains; i++) {
            const DeltaChain &chain = meta.chains[i];
            if ((chain.head_block == kNoBlock) != (chain.tail_block == kNoBlock))
                fail(0, "a delta chain has only one end");
            uint32_t block = chain.head_block;
            uint32_t sequence = chain.head_sequence;
            bool tail = block == kNoBlock;
            uint32_t pages = 0;
            while (block != kNoBlock) {
                CHECK_FOR_INTERRUPTS();
                if (block < blocks || block >= RelationGetNumberOfBlocks(index))
                    own(block); /* else it was added after we looked */
                Buffer buffer = VgReadPage(index, block, BUFFER_LOCK_SHARE);
                Page page = BufferGetPage(buffer);
                bool ours = VgPageIs(page, PageKind::Delta) && Trailer(page)->sequence == sequence;
                DeltaHeader header = {};
                if (ours)
                    memcpy(&header, Payload(page), sizeof(header));
                UnlockReleaseBuffer(buffer);
                if (!ours || header.chain != i) {
                    again = RecoveryInProgress();
                    if (again)
                        return;
                    fail(block, "not a page of its delta chain");
                }
                if (!tail)
                    pages++;
                tail = tail || block == chain.tail_block;
                if (header.next_block != kNoBlock && static_cast<int32_t>(header.next_sequence - sequence) <= 0)
                    fail(block, "a delta page links backwards");
                block = header.next_block;
                sequence = header.next_sequence;
            }
            if (!tail)
                fail(chain.tail_block, "a delta chain does not reach its tail");
            if (pages != chain.pages)
                fail(0, "a delta chain has another number of pages than the metapage says");
            if (!VgDeltaScan(index, meta, i, true, VisitDelta, this, nullptr)) {
                again = RecoveryInProgress();
                if (again)
                    return;
                fail(chain.head_block, "a delta page or its overflow is missing");
            }
        }
    }

    void run()
    {
        VgReadMeta(index, &meta);
        blocks = RelationGetNumberOfBlocks(index);
        const char *fault = VgMetaFault(meta, blocks);
        if (fault != nullptr)
            fail(0, fault);
        again = false;
        VgOpenRegions(&regions, index, &meta);
        owned = static_cast<uint8_t *>(
            MemoryContextAllocExtended(CurrentMemoryContext, blocks / 8 + 1, MCXT_ALLOC_HUGE | MCXT_ALLOC_ZERO));
        own_extents();
        check_journal();
        if (meta.dimensions == 0)
            return;
        decoded = static_cast<float *>(palloc(sizeof(float) * meta.dimensions));
        check_region_pages();
        uint8_t *has_twins = static_cast<uint8_t *>(MemoryContextAllocExtended(
            CurrentMemoryContext, meta.nodes / 8 + 1, MCXT_ALLOC_HUGE | MCXT_ALLOC_ZERO));
        check_slots(has_twins);
        check_twins(has_twins);
        check_upper();
        check_delta();
    }
};

} // namespace

/*
 * On a standby replay moves on under a run, which goes by its copy of the metapage, so a fault may be none: it is
 * returned, in `keep`, with all pages that the run had locked let go. Null: there is none.
 */
static ErrorData *RunUnderReplay(Verifier *verifier, MemoryContext keep)
{
    MemoryContext context = CurrentMemoryContext;
    ResourceOwner owner = CurrentResourceOwner;
    ErrorData *volatile fault = nullptr;
    BeginInternalSubTransaction(nullptr);
    MemoryContextSwitchTo(context);
    PG_TRY();
    {
        verifier->run();
        ReleaseCurrentSubTransaction();
    }
    PG_CATCH();
    {
        MemoryContextSwitchTo(keep);
        fault = CopyErrorData();
        FlushErrorState();
        RollbackAndReleaseCurrentSubTransaction();
    }
    PG_END_TRY();
    MemoryContextSwitchTo(context);
    CurrentResourceOwner = owner;
    if (fault != nullptr && fault->sqlerrcode != ERRCODE_INDEX_CORRUPTED)
        ReThrowError(fault);
    return fault;
}

void VgVerify(Relation index)
{
    constexpr int kTries = 100;
    bool lock = !RecoveryInProgress();
    if (lock)
        VgLockStructure(index);
    MemoryContext context = AllocSetContextCreate(CurrentMemoryContext, "vecgpu check", ALLOCSET_DEFAULT_SIZES);
    MemoryContext old = MemoryContextSwitchTo(context);
    Meta last = {};
    for (int tries = 0;; tries++) {
        CHECK_FOR_INTERRUPTS();
        MemoryContextReset(context);
        Verifier verifier;
        memset(static_cast<void *>(&verifier), 0, sizeof(verifier));
        verifier.index = index;
        ErrorData *fault = nullptr;
        if (lock)
            verifier.run();
        else
            fault = RunUnderReplay(&verifier, old);
        if (fault == nullptr && !verifier.again)
            break;
        /*
         * Blocks change hands only when the metapage changes. If it is the run's copy, and was so when the run before
         * failed, this is no race with replay.
         */
        Meta now;
        VgReadMeta(index, &now);
        if (memcmp(&now, &verifier.meta, sizeof(Meta)) == 0 && memcmp(&now, &last, sizeof(Meta)) == 0) {
            if (fault != nullptr)
                ReThrowError(fault);
            VgCorrupt(index, 0, "a delta chain is broken");
        }
        memcpy(&last, &now, sizeof(Meta));
        if (tries == kTries)
            ereport(ERROR, (errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
                            errmsg("could not check index \"%s\" because replay kept changing it",
                                   RelationGetRelationName(index)),
                            errhint("Please check it while replay is paused, or on the primary.")));
        if (fault != nullptr)
            FreeErrorData(fault);
    }
    MemoryContextSwitchTo(old);
    MemoryContextDelete(context);
    if (lock)
        VgUnlockStructure(index);
}

} // namespace vecgpu
