/*
 * overlay.cpp: see overlay.h.
 */
#include <algorithm>

#include "page/overlay.h"

namespace vecgpu {

void VgOpenOverlay(Overlay *overlay, Relation index, const Meta *meta)
{
    VgOpenRegions(&overlay->regions, index, meta);
    overlay->context = AllocSetContextCreate(CurrentMemoryContext, "vecgpu overlay", ALLOCSET_DEFAULT_SIZES);
    HASHCTL control;
    memset(&control, 0, sizeof(control));
    control.keysize = sizeof(BlockNumber);
    control.entrysize = sizeof(OverlayPage);
    control.hcxt = overlay->context;
    overlay->pages = hash_create("vecgpu overlay", 1024, &control, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
    overlay->count = 0;
}

static BlockNumber BlockOf(const Overlay *overlay, Region region, uint32_t page)
{
    BlockNumber block = region_block(Directory(overlay->regions, region), page);
    if (block == kNoBlock)
        VgCorrupt(overlay->regions.index, 0, "record beyond the end of its region");
    return block;
}

void VgOverlayRead(Overlay *overlay, Region region, uint32_t record, void *out)
{
    const RegionShape &shape = Shape(overlay->regions, region);
    RecordAddress at = record_address(shape, record);
    uint8_t *to = static_cast<uint8_t *>(out);
    uint32_t left = shape.record_bytes;
    while (left > 0) {
        uint32_t part = kPayloadBytes - at.offset < left ? kPayloadBytes - at.offset : left;
        BlockNumber block = BlockOf(overlay, region, at.page);
        const OverlayPage *page =
            static_cast<const OverlayPage *>(hash_search(overlay->pages, &block, HASH_FIND, nullptr));
        if (page != nullptr) {
            memcpy(to, page->payload + at.offset, part);
        } else {
            Buffer buffer = VgReadRegionPage(overlay->regions, region, at.page);
            memcpy(to, Payload(BufferGetPage(buffer)) + at.offset, part);
            UnlockReleaseBuffer(buffer);
        }
        to += part;
        left -= part;
        at.page++;
        at.offset = 0;
    }
}

static OverlayPage *PageToChange(Overlay *overlay, Region region, uint32_t number)
{
    BlockNumber block = BlockOf(overlay, region, number);
    bool found;
    OverlayPage *page = static_cast<OverlayPage *>(hash_search(overlay->pages, &block, HASH_ENTER, &found));
    if (found)
        return page;
    page->payload = static_cast<uint8_t *>(MemoryContextAlloc(overlay->context, kPayloadBytes));
    page->region = region;
    Buffer buffer = VgReadRegionPage(overlay->regions, region, number);
    Page content = BufferGetPage(buffer);
    memcpy(page->payload, Payload(content), kPayloadBytes);
    page->is_new = reinterpret_cast<PageHeader>(content)->pd_lower <= kPageHeaderBytes;
    UnlockReleaseBuffer(buffer);
    overlay->count++;
    return page;
}

void VgOverlayWrite(Overlay *overlay, Region region, uint32_t record, uint32_t offset, const void *data, uint32_t bytes)
{
    RecordAddress at = record_address(Shape(overlay->regions, region), record);
    uint64_t start = static_cast<uint64_t>(at.page) * kPayloadBytes + at.offset + offset;
    const uint8_t *from = static_cast<const uint8_t *>(data);
    while (bytes > 0) {
        uint32_t number = static_cast<uint32_t>(start / kPayloadBytes);
        uint32_t in_page = static_cast<uint32_t>(start % kPayloadBytes);
        uint32_t part = kPayloadBytes - in_page < bytes ? kPayloadBytes - in_page : bytes;
        memcpy(PageToChange(overlay, region, number)->payload + in_page, from, part);
        from += part;
        start += part;
        bytes -= part;
    }
}

void VgApplyOverlay(Overlay *overlay, uint64_t epoch, ChangedBlocks *changed)
{
    /* In block order: sequential for the disk, and the one order in which pages are ever locked. */
    OverlayPage **pages = static_cast<OverlayPage **>(
        MemoryContextAllocHuge(overlay->context, sizeof(OverlayPage *) * (overlay->count + 1)));
    uint64_t n = 0;
    HASH_SEQ_STATUS status;
    hash_seq_init(&status, overlay->pages);
    while (void *entry = hash_seq_search(&status))
        pages[n++] = static_cast<OverlayPage *>(entry);
    std::sort(pages, pages + n, [](const OverlayPage *a, const OverlayPage *b) { return a->block < b->block; });

    Relation index = overlay->regions.index;
    for (uint64_t i = 0; i < n; i++) {
        CHECK_FOR_INTERRUPTS();
        Buffer buffer = VgReadPage(index, pages[i]->block, BUFFER_LOCK_EXCLUSIVE);
        GenericXLogState *state = GenericXLogStart(index);
        Page page = GenericXLogRegisterBuffer(state, buffer, pages[i]->is_new ? GENERIC_XLOG_FULL_IMAGE : 0);
        memcpy(Payload(page), pages[i]->payload, kPayloadBytes);
        SetPayloadUsed(page, kPayloadBytes);
        Trailer(page)->epoch = epoch;
        GenericXLogFinish(state);
        UnlockReleaseBuffer(buffer);
        VgNoteChanged(changed, pages[i]->block);
    }
    MemoryContextDelete(overlay->context);
    overlay->context = nullptr;
    overlay->pages = nullptr;
}

} // namespace vecgpu
