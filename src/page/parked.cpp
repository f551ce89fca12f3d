/*
 * parked.cpp: see parked.h.
 */
#include "page/parked.h"

#include "page/region.h"

namespace vecgpu {

static ParkedExtent *ListOf(Page page)
{
    return reinterpret_cast<ParkedExtent *>(Payload(page));
}

/* Locks the list page of a metapage that has one. */
static Buffer ReadList(Relation index, const Meta &meta, int mode)
{
    Buffer buffer = VgReadPage(index, meta.parked_block, mode);
    if (!VgPageIs(BufferGetPage(buffer), PageKind::Parked))
        VgCorrupt(index, meta.parked_block, "not a list of parked extents");
    return buffer;
}

static void Remove(ParkedExtent *list, Meta *meta, uint32_t i)
{
    list[i] = list[--meta->parked];
}

static void Add(ParkedExtent *list, Meta *meta, Extent extent, uint64_t xid)
{
    if (extent.pages == 0)
        return;
    /* Neighbours become one, or pieces would pile up over many rebuilds. The younger horizon holds for both. */
    for (uint32_t i = 0; i < meta->parked && xid != kPendingXid;) {
        bool before = list[i].first_block + list[i].pages == extent.first_block;
        bool after = extent.first_block + extent.pages == list[i].first_block;
        if (list[i].xid == kPendingXid || (!before && !after)) {
            i++;
            continue;
        }
        if (before)
            extent.first_block = list[i].first_block;
        extent.pages += list[i].pages;
        if (list[i].xid > xid)
            xid = list[i].xid;
        Remove(list, meta, i);
        i = 0;
    }
    if (meta->parked < kMaxParked) {
        list[meta->parked++] = {xid, extent.first_block, extent.pages};
        return;
    }
    /* The list is full: the smallest extent is given up until the next REINDEX. */
    uint32_t smallest = 0;
    for (uint32_t i = 1; i < kMaxParked; i++)
        if (list[i].pages < list[smallest].pages)
            smallest = i;
    if (list[smallest].pages < extent.pages)
        list[smallest] = {xid, extent.first_block, extent.pages};
}

static uint64_t NextXid(void)
{
    return U64FromFullTransactionId(ReadNextFullTransactionId());
}

bool VgTakeParked(Relation index, uint32_t pages, Extent *taken)
{
    Meta meta;
    VgReadMeta(index, &meta);
    if (meta.parked == 0 || meta.parked_block == kNoBlock)
        return false;

    Buffer meta_buffer = VgReadPage(index, 0, BUFFER_LOCK_EXCLUSIVE);
    Buffer buffer = ReadList(index, meta, BUFFER_LOCK_EXCLUSIVE);
    const ParkedExtent *list = ListOf(BufferGetPage(buffer));
    int best = -1;
    for (uint32_t i = 0; i < meta.parked; i++) {
        if (list[i].xid != kPendingXid && list[i].pages >= pages && (best < 0 || list[i].pages < list[best].pages) &&
            GlobalVisCheckRemovableFullXid(nullptr, FullTransactionIdFromU64(list[i].xid)))
            best = static_cast<int>(i);
    }
    if (best >= 0) {
        GenericXLogState *state = GenericXLogStart(index);
        Meta *changed = MetaOf(GenericXLogRegisterBuffer(state, meta_buffer, 0));
        ParkedExtent *entries = ListOf(GenericXLogRegisterBuffer(state, buffer, 0));
        *taken = {entries[best].first_block, pages};
        entries[best].first_block += pages;
        entries[best].pages -= pages;
        if (entries[best].pages == 0)
            Remove(entries, changed, static_cast<uint32_t>(best));
        GenericXLogFinish(state);
    }
    UnlockReleaseBuffer(buffer);
    UnlockReleaseBuffer(meta_buffer);
    return best >= 0;
}

void VgParkExtents(Relation index, const Extent *extents, uint32_t count, bool pending)
{
    if (count == 0)
        return;
    uint64_t xid = pending ? kPendingXid : NextXid();

    /* Under the structure lock nobody else sets parked_block; a new page is locked first since no one else can reach it. */
    Meta meta;
    VgReadMeta(index, &meta);
    bool is_new = meta.parked_block == kNoBlock;
    Buffer buffer = is_new ? VgTakePage(index) : InvalidBuffer;
    Buffer meta_buffer = VgReadPage(index, 0, BUFFER_LOCK_EXCLUSIVE);
    if (!is_new)
        buffer = ReadList(index, meta, BUFFER_LOCK_EXCLUSIVE);

    GenericXLogState *state = GenericXLogStart(index);
    Meta *changed = MetaOf(GenericXLogRegisterBuffer(state, meta_buffer, 0));
    Page page = GenericXLogRegisterBuffer(state, buffer, is_new ? GENERIC_XLOG_FULL_IMAGE : 0);
    if (is_new) {
        VgInitPage(page, PageKind::Parked, 0, 0, changed->epoch);
        SetPayloadUsed(page, kMaxParked * sizeof(ParkedExtent));
        changed->parked_block = BufferGetBlockNumber(buffer);
    }
    for (uint32_t i = 0; i < count; i++)
        Add(ListOf(page), changed, extents[i], xid);
    GenericXLogFinish(state);
    UnlockReleaseBuffer(buffer);
    UnlockReleaseBuffer(meta_buffer);
}

/* Takes the pending entries off the list; writes them to `found` (kMaxParked) and returns how many. */
static uint32_t RemovePending(ParkedExtent *list, Meta *meta, Extent *found)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < meta->parked;) {
        if (list[i].xid != kPendingXid) {
            i++;
            continue;
        }
        found[n++] = {list[i].first_block, list[i].pages};
        Remove(list, meta, i);
    }
    return n;
}

void VgPrepareParked(Relation index)
{
    Meta meta;
    VgReadMeta(index, &meta);
    if (meta.parked_block == kNoBlock) {
        Extent none = {0, 0};
        VgParkExtents(index, &none, 1, false); /* makes the page */
        return;
    }
    Buffer meta_buffer = VgReadPage(index, 0, BUFFER_LOCK_EXCLUSIVE);
    Buffer buffer = ReadList(index, meta, BUFFER_LOCK_EXCLUSIVE);
    GenericXLogState *state = GenericXLogStart(index);
    Meta *changed = MetaOf(GenericXLogRegisterBuffer(state, meta_buffer, 0));
    ParkedExtent *list = ListOf(GenericXLogRegisterBuffer(state, buffer, 0));
    Extent found[kMaxParked];
    uint32_t n = RemovePending(list, changed, found);
    for (uint32_t i = 0; i < n; i++)
        Add(list, changed, found[i], NextXid());
    if (n > 0)
        GenericXLogFinish(state);
    else
        GenericXLogAbort(state);
    UnlockReleaseBuffer(buffer);
    UnlockReleaseBuffer(meta_buffer);
}

void VgSwapParked(Page page, Meta *meta, const Extent *retired, uint32_t count)
{
    Extent in_use[kMaxParked];
    RemovePending(ListOf(page), meta, in_use);
    for (uint32_t i = 0; i < count; i++)
        Add(ListOf(page), meta, retired[i], NextXid());
}

uint64_t VgParkedPages(Relation index, const Meta &meta)
{
    if (meta.parked == 0)
        return 0;
    Buffer buffer = ReadList(index, meta, BUFFER_LOCK_SHARE);
    const ParkedExtent *list = ListOf(BufferGetPage(buffer));
    uint64_t pages = 0;
    for (uint32_t i = 0; i < meta.parked; i++)
        pages += list[i].pages;
    UnlockReleaseBuffer(buffer);
    return pages;
}

} // namespace vecgpu
