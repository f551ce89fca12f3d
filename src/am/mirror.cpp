/*
 * mirror.cpp: see mirror.h.
 *
 * The bytes go through the session's staging memory in two halves: while the engine takes one, the other is filled from shared
 * buffers. A load works with one copy of the metapage. Pages that change meanwhile carry a later stamp, so the next catch-up
 * takes them again; what a search makes of a page that is newer than the mirror's state is what it makes of it on the pages
 * themselves (src/README.md, claim 3).
 */
#include <algorithm>

#include "am/mirror.h"
#include "client/settings.h"
#include "page/publish.h"
#include "page/region.h"

namespace vecgpu {

namespace {

constexpr Region kMirrored[] = {Region::Vectors, Region::Links, Region::Slots, Region::Upper};
constexpr size_t kHalf = kStagingBytes / 2;
constexpr long kLoadTimeoutMs = 60000;  /* for one half of the staging memory, or a commit */
constexpr uint32_t kInlineBlocks = 256; /* a search sends so many pages by itself: half a millisecond */

struct Loader {
    Relation index;
    const Meta *meta;
    Regions regions;
    BufferAccessStrategy strategy;
    Lane lane;
    uint8_t *staging;
    uint64_t load;   /* the engine's name for it */
    uint64_t epoch;  /* of the mirror: pages stamped later are sent */
    uint32_t nodes;  /* of the mirror: vectors from here on are sent */
    const bool *wanted[kRegions]; /* by page of the region; null: look at the stamps */

    Call call; /* a half that the engine is working on */
    uint32_t half;   /* which is being filled */
    size_t used;
    Run runs[kMaxRuns];
    uint32_t run_count;
    uint64_t sent;
    VgFallback failed;
};

uint64_t Records(const Meta &meta, Region region)
{
    return region == Region::Upper ? meta.upper : meta.nodes;
}

/* The answer to the half that is under way. */
bool Settle(Loader *loader)
{
    if (loader->failed != VgFallback::None)
        return false;
    if (loader->call.slot == nullptr)
        return true;
    loader->failed = VgWaitCall(&loader->call, kLoadTimeoutMs);
    if (loader->failed == VgFallback::None) {
        loader->failed = VgFallbackOf(loader->call.slot->response.status);
        VgCloseCall(&loader->call);
    } else {
        VgDisconnectEngine(); /* it may still read the memory that we would fill next */
    }
    return loader->failed == VgFallback::None;
}

/* Hands the filled half over. */
bool Send(Loader *loader)
{
    if (loader->run_count == 0)
        return loader->failed == VgFallback::None;
    if (!Settle(loader))
        return false;
    loader->failed = VgOpenCall(&loader->call);
    if (loader->failed != VgFallback::None)
        return false;
    Request &request = loader->call.slot->request;
    request.op = Op::LoadWrite;
    request.write = {loader->load, loader->run_count, 0};
    memcpy(loader->call.slot->payload, loader->runs, sizeof(Run) * loader->run_count);
    VgSubmitCall(&loader->call, Lane::Control);
    loader->sent += loader->used;
    loader->half = 1 - loader->half;
    loader->used = 0;
    loader->run_count = 0;
    return true;
}

/* Room for `count` records from `first` on; null if the load has failed. */
uint8_t *Room(Loader *loader, Region region, uint64_t first, uint64_t count, size_t bytes)
{
    if ((loader->used + bytes > kHalf || loader->run_count == kMaxRuns) && !Send(loader))
        return nullptr;
    size_t offset = loader->half * kHalf + loader->used;
    Run *last = loader->run_count > 0 ? &loader->runs[loader->run_count - 1] : nullptr;
    if (last != nullptr && last->region == static_cast<uint32_t>(region) && last->first + last->count == first)
        last->count += static_cast<uint32_t>(count);
    else
        loader->runs[loader->run_count++] = {static_cast<uint32_t>(region), static_cast<uint32_t>(first),
                                             static_cast<uint32_t>(count), 0, offset};
    loader->used += bytes;
    return loader->staging + offset;
}

Buffer ReadRegionPage(const Loader *loader, Region region, uint32_t page)
{
    BlockNumber block = region_block(Directory(loader->regions, region), page);
    if (block == kNoBlock)
        VgCorrupt(loader->index, 0, "record beyond the end of its region");
    Buffer buffer = ReadBufferExtended(loader->index, MAIN_FORKNUM, block, RBM_NORMAL, loader->strategy);
    LockBuffer(buffer, BUFFER_LOCK_SHARE);
    if (!IsRegionPage(BufferGetPage(buffer), region, loader->meta->generation)) {
        UnlockReleaseBuffer(buffer);
        VgRecycled(loader->index, block, "not a page of the expected region");
    }
    return buffer;
}

/* Records that span pages, from `first` on, in pieces that fit into a half. */
bool SendPacked(Loader *loader, Region region, uint64_t first, uint64_t end)
{
    uint64_t bytes = Shape(loader->regions, region).record_bytes;
    while (first < end) {
        uint64_t room = (kHalf - loader->used) / bytes;
        if (room == 0) {
            if (!Send(loader))
                return false;
            continue;
        }
        uint64_t count = std::min(end - first, room);
        uint8_t *out = Room(loader, region, first, count, count * bytes);
        if (out == nullptr)
            return false;
        uint64_t at = first * bytes;
        uint64_t stop = (first + count) * bytes;
        while (at < stop) {
            CHECK_FOR_INTERRUPTS();
            uint32_t offset = static_cast<uint32_t>(at % kPayloadBytes);
            uint64_t part = std::min<uint64_t>(kPayloadBytes - offset, stop - at);
            Buffer buffer = ReadRegionPage(loader, region, static_cast<uint32_t>(at / kPayloadBytes));
            memcpy(out, Payload(BufferGetPage(buffer)) + offset, part);
            UnlockReleaseBuffer(buffer);
            out += part;
            at += part;
        }
        first += count;
    }
    return true;
}

/* Pages with whole records: those that changed since the mirror's epoch. */
bool SendPages(Loader *loader, Region region)
{
    const RegionShape &shape = Shape(loader->regions, region);
    const bool *wanted = loader->wanted[static_cast<int>(region)];
    uint64_t end = Records(*loader->meta, region);
    for (uint64_t first = 0, page = 0; first < end; first += shape.per_page, page++) {
        if (wanted != nullptr && !wanted[page])
            continue;
        CHECK_FOR_INTERRUPTS();
        uint64_t count = std::min<uint64_t>(shape.per_page, end - first);
        Buffer buffer = ReadRegionPage(loader, region, static_cast<uint32_t>(page));
        Page content = BufferGetPage(buffer);
        bool fresh = wanted != nullptr || Trailer(content)->epoch > loader->epoch || loader->epoch == 0;
        if (fresh) {
            size_t bytes = count * shape.record_bytes;
            /* Sending waits for the engine, which is no time to hold a page. */
            if (loader->used + bytes > kHalf || loader->run_count == kMaxRuns) {
                UnlockReleaseBuffer(buffer);
                if (!Send(loader))
                    return false;
                buffer = ReadRegionPage(loader, region, static_cast<uint32_t>(page));
                content = BufferGetPage(buffer);
            }
            uint8_t *out = Room(loader, region, first, count, bytes);
            memcpy(out, Payload(content), bytes);
        }
        UnlockReleaseBuffer(buffer);
    }
    return true;
}

/* The pages that the journal names; false if it does not reach back to `epoch`, or names too many. */
bool FromJournal(Loader *loader, uint64_t epoch, uint32_t most)
{
    ChangedBlocks changed;
    VgInitChanged(&changed, kJournalEntries);
    if (!VgReadJournal(loader->index, *loader->meta, epoch, &changed) || changed.count > most)
        return false;
    /* Entries that were overwritten while we read them moved the floor. */
    Meta now;
    VgReadMeta(loader->index, &now);
    if (epoch < now.journal_floor)
        return false;
    for (Region region : {Region::Links, Region::Slots, Region::Upper}) {
        const RegionDirectory &directory = Directory(loader->regions, region);
        uint64_t pages = region_pages(Shape(loader->regions, region), Records(*loader->meta, region));
        bool *wanted = static_cast<bool *>(palloc0(pages + 1));
        uint64_t start = 0;
        for (uint32_t e = 0; e < directory.extents; e++) {
            const Extent &extent = directory.extent[e];
            for (uint32_t i = 0; i < changed.count; i++) {
                uint64_t page = static_cast<uint64_t>(changed.block[i]) - extent.first_block;
                if (changed.block[i] >= extent.first_block && page < extent.pages && start + page < pages)
                    wanted[start + page] = true;
            }
            start += extent.pages;
        }
        loader->wanted[static_cast<int>(region)] = wanted;
    }
    return true;
}

/* LoadBegin. None and *current: nothing to do. */
VgFallback Begin(Loader *loader, bool *current)
{
    *current = false;
    char path[MAXPGPATH];
    VgCopyPath(loader->index, path, sizeof(path));
    Call call;
    VgFallback failed = VgOpenCall(&call);
    if (failed != VgFallback::None)
        return failed;
    Request &request = call.slot->request;
    request.op = Op::LoadBegin;
    request.begin = {VgIndexKey(loader->index, *loader->meta), loader->lane, RelationGetRelid(loader->index)};
    memcpy(call.slot->payload, loader->meta, sizeof(Meta));
    memcpy(call.slot->payload + sizeof(Meta), path, sizeof(path));
    VgSubmitCall(&call, Lane::Control);
    failed = VgWaitCall(&call, kLoadTimeoutMs);
    if (failed != VgFallback::None)
        return failed;
    Response response = call.slot->response;
    VgCloseCall(&call);
    if (response.status == Status::Current) {
        *current = true;
        return VgFallback::None;
    }
    loader->load = response.begin.load;
    loader->epoch = response.begin.epoch;
    loader->nodes = response.begin.nodes;
    return VgFallbackOf(response.status);
}

VgFallback End(Loader *loader, bool abort, uint64_t *bytes)
{
    Call call;
    VgFallback failed = VgOpenCall(&call);
    if (failed != VgFallback::None)
        return failed;
    Request &request = call.slot->request;
    request.op = Op::LoadEnd;
    request.end = {loader->load, abort, 0};
    VgSubmitCall(&call, Lane::Control);
    failed = VgWaitCall(&call, kLoadTimeoutMs);
    if (failed != VgFallback::None)
        return failed;
    failed = VgFallbackOf(call.slot->response.status);
    *bytes = call.slot->response.end.bytes;
    VgCloseCall(&call);
    return failed;
}

/* Between Begin() and End(). */
void SendAll(Loader *loader)
{
    for (Region region : kMirrored) {
        if (loader->meta->kind == IndexKind::Flat && (region == Region::Links || region == Region::Upper))
            continue;
        /* Within a generation vectors are only ever added. */
        bool whole = region == Region::Vectors ? SendPacked(loader, region, loader->nodes, loader->meta->nodes)
                                               : SendPages(loader, region);
        if (!whole)
            return;
    }
    if (Send(loader))
        Settle(loader);
}

/* `journal`: 0, or the most pages to send, with the journal's help. */
VgFallback Load(Loader *loader, uint32_t journal, MirrorLoad *result)
{
    bool current;
    VgFallback failed = Begin(loader, &current);
    if (failed != VgFallback::None || current) {
        result->current = current;
        return failed;
    }
    PG_TRY();
    {
        bool possible = true;
        if (loader->epoch > 0) {
            bool told = FromJournal(loader, loader->epoch, journal > 0 ? journal : kJournalEntries);
            possible = told || journal == 0;
        } else {
            possible = journal == 0;
        }
        if (!possible)
            loader->failed = VgFallback::Behind;
        else
            SendAll(loader);
    }
    PG_CATCH();
    {
        VgCloseCall(&loader->call);
        VgDisconnectEngine();
        PG_RE_THROW();
    }
    PG_END_TRY();
    VgCloseCall(&loader->call);
    failed = loader->failed;
    VgFallback ended = End(loader, failed != VgFallback::None, &result->bytes);
    result->sent = loader->sent;
    result->nodes = loader->meta->nodes;
    return failed != VgFallback::None ? failed : ended;
}

Loader *NewLoader(Relation index, const Meta *meta, Lane lane)
{
    Loader *loader = static_cast<Loader *>(palloc0(sizeof(Loader)));
    loader->index = index;
    loader->meta = meta;
    loader->lane = lane;
    VgOpenRegions(&loader->regions, index, meta);
    loader->failed = VgFallback::None;
    loader->staging = VgStaging();
    return loader;
}

} // namespace

IndexKey VgIndexKey(Relation index, const Meta &meta)
{
    IndexKey key;
    memset(&key, 0, sizeof(key));
    key.database = VgDatabaseOf(index);
    key.tablespace = VgTablespaceOf(index);
    key.file = VgFileNumberOf(index);
    key.generation = meta.generation;
    key.incarnation = meta.incarnation;
    return key;
}

VgFallback VgLoadMirror(Relation index, Lane lane, bool wait, MirrorLoad *load)
{
    memset(load, 0, sizeof(*load));
    if (RelationUsesLocalBuffers(index))
        return VgFallback::Unsupported;
    MemoryContext context = AllocSetContextCreate(CurrentMemoryContext, "vecgpu mirror", ALLOCSET_DEFAULT_SIZES);
    MemoryContext old = MemoryContextSwitchTo(context);
    VgFallback failed = VgFallback::None;
    int narrowed = 0;
    for (;;) {
        CHECK_FOR_INTERRUPTS();
        Meta *meta = static_cast<Meta *>(palloc(sizeof(Meta)));
        VgReadMeta(index, meta);
        if (meta->dimensions == 0) {
            load->current = true; /* nothing but a delta, which searches read from the pages */
            break;
        }
        Loader *loader = NewLoader(index, meta, lane);
        if (loader->staging == nullptr) {
            failed = VgFallback::NoEngine;
            break;
        }
        /* A large index should not push everything else out of the buffers. */
        if (RelationGetNumberOfBlocks(index) > static_cast<BlockNumber>(NBuffers) / 2)
            loader->strategy = GetAccessStrategy(BAS_BULKREAD);
        failed = Load(loader, 0, load);
        /* A vector did not fit into the narrower storage that memory had room for: the next load takes another. */
        bool narrow = failed == VgFallback::Unsupported && ++narrowed <= 2;
        if (!narrow && (failed != VgFallback::Loading || !wait))
            break;
        MemoryContextReset(context);
        if (narrow)
            continue;
        (void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, 5, PG_WAIT_EXTENSION);
        ResetLatch(MyLatch);
    }
    MemoryContextSwitchTo(old);
    MemoryContextDelete(context);
    return failed;
}

void VgRequestMirror(Relation index, const Meta &meta, Lane lane)
{
    if (VgMayAskForLoad(VgIndexKey(index, meta)))
        VgStartLoader(index, lane);
}

void VgCatchUpMirror(Relation index, Lane lane, uint64_t epoch)
{
    Meta meta;
    VgReadMeta(index, &meta);
    /* On a standby, replay may recycle pages of an old generation: an error that the search itself need not meet. */
    if (epoch < meta.journal_floor || RecoveryInProgress()) {
        VgRequestMirror(index, meta, lane);
        return;
    }
    if (!VgMayFeed(VgIndexKey(index, meta)))
        return;
    MemoryContext context = AllocSetContextCreate(CurrentMemoryContext, "vecgpu mirror", ALLOCSET_DEFAULT_SIZES);
    MemoryContext old = MemoryContextSwitchTo(context);
    Loader *loader = NewLoader(index, &meta, lane);
    MirrorLoad load;
    memset(&load, 0, sizeof(load));
    VgFallback failed = loader->staging == nullptr ? VgFallback::NoEngine : Load(loader, kInlineBlocks, &load);
    MemoryContextSwitchTo(old);
    MemoryContextDelete(context);
    if (failed == VgFallback::Behind)
        VgRequestMirror(index, meta, lane);
}

} // namespace vecgpu
