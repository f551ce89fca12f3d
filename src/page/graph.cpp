/*
 * graph.cpp: see graph.h.
 */
#include <algorithm>

#include "page/graph.h"

namespace vecgpu {

void PageSource::init(Relation index, const Meta *meta, const float *vector)
{
    VgOpenRegions(&regions, index, meta);
    null_query = vector == nullptr;
    if (vector != nullptr)
        query = make_query(vector, meta->dimensions, meta->metric, meta->storage);
    width = meta->cell_width;
    scratch = record = nullptr;
    if (meta->dimensions > 0) {
        scratch = static_cast<uint8_t *>(palloc(Shape(regions, Region::Vectors).record_bytes));
        uint32_t links = Shape(regions, Region::Links).record_bytes;
        uint32_t upper = Shape(regions, Region::Upper).record_bytes;
        record = static_cast<uint8_t *>(palloc(links > upper ? links : upper));
    }
}

uint32_t PageSource::links(uint32_t slot, uint32_t *out)
{
    VgReadRecord(regions, Region::Links, slot, record);
    uint32_t n = 0;
    /*
     * A full list of a node with twins ends in the number of a twin. It passes for a neighbour here, as any wrong number
     * would: telling it apart would cost a look at the slot of every node of the walk.
     */
    uint32_t cells = max_links();
    for (uint32_t i = 0; i < cells; i++) {
        uint32_t id = load_cell(record, i, width);
        if (id == kNone)
            break;
        out[n++] = id;
    }
    return n;
}

uint32_t PageSource::upper_links(uint32_t handle, uint32_t *out)
{
    if (handle >= regions.meta->upper)
        return 0;
    VgReadRecord(regions, Region::Upper, handle, record);
    uint32_t n = 0;
    for (uint32_t i = 0; i < regions.meta->m; i++) {
        uint32_t id = load_cell(record + sizeof(UpperRecord), i, width);
        if (id == kNone)
            break;
        out[n++] = id;
    }
    return n;
}

uint32_t PageSource::upper_slot(uint32_t handle)
{
    if (handle >= regions.meta->upper)
        return kNone;
    VgReadRecord(regions, Region::Upper, handle, record);
    return reinterpret_cast<const UpperRecord *>(record)->slot;
}

uint32_t PageSource::upper_down(int level, uint32_t handle)
{
    if (level == 1)
        return upper_slot(handle);
    return handle == 0 ? kNone : handle - 1;
}

void PageSource::keys(const uint32_t *slots, uint32_t n, float *keys)
{
    if (null_query) {
        for (uint32_t i = 0; i < n; i++)
            keys[i] = 0;
        return;
    }
    const RegionShape &shape = Shape(regions, Region::Vectors);
    const RegionDirectory &directory = Directory(regions, Region::Vectors);
    uint32_t bytes = shape.record_bytes;
    /*
     * Ask for some rows ahead of the one that is computed: the lines arrive meanwhile. Longer rows need fewer: the CPU
     * fetches the rest of a row by itself once it runs through it.
     */
    constexpr uint32_t ahead = 8;
    constexpr uint32_t longest = 1024;
    uint32_t fetched = 0;
    for (uint32_t i = 0; i < n; i++) {
        for (; fetched < n && fetched < i + ahead; fetched++) {
            RecordAddress at = record_address(shape, slots[fetched]);
            BlockNumber block = region_block(directory, at.page);
            uint32_t part = bytes < kPayloadBytes - at.offset ? bytes : kPayloadBytes - at.offset;
            if (block != kNoBlock)
                VgPrefetch(regions.recent, block, kPageHeaderBytes + at.offset, part < longest ? part : longest);
        }
        RecordAddress at = record_address(shape, slots[i]);
        if (at.offset + bytes > kPayloadBytes) {
            VgReadRecord(regions, Region::Vectors, slots[i], scratch);
            keys[i] = key(query, scratch);
            continue;
        }
        Buffer buffer = VgReadRegionPage(regions, Region::Vectors, at.page);
        keys[i] = key(query, Payload(BufferGetPage(buffer)) + at.offset);
        UnlockReleaseBuffer(buffer);
    }
}

void VgReadSlot(const Regions &regions, uint32_t slot, SlotRecord *out)
{
    VgReadRecord(regions, Region::Slots, slot, out);
}

uint32_t VgFirstTwin(const Regions &regions, uint32_t slot)
{
    const RegionShape &shape = Shape(regions, Region::Links);
    RecordAddress at = record_address(shape, slot);
    Buffer buffer = VgReadRegionPage(regions, Region::Links, at.page);
    uint32_t twin = load_cell(Payload(BufferGetPage(buffer)) + at.offset, 2u * regions.meta->m - 1,
                              regions.meta->cell_width);
    UnlockReleaseBuffer(buffer);
    return twin;
}

void VgKillRows(const Regions &regions, KilledRow *rows, uint32_t count)
{
    std::sort(rows, rows + count, [](const KilledRow &a, const KilledRow &b) {
        return a.twin != b.twin ? b.twin : a.number < b.number;
    });
    for (uint32_t i = 0; i < count;) {
        Region region = rows[i].twin ? Region::Twins : Region::Slots;
        const RegionShape &shape = Shape(regions, region);
        uint32_t page_number = rows[i].number / shape.per_page;
        BlockNumber block = region_block(Directory(regions, region), page_number);
        if (block == kNoBlock)
            return;
        Buffer buffer = VgReadPage(regions.index, block, BUFFER_LOCK_EXCLUSIVE);
        Page page = BufferGetPage(buffer);
        bool ours = VgPageIs(page, PageKind::Region, static_cast<uint16_t>(region)) &&
                    Trailer(page)->sequence == regions.meta->generation;
        GenericXLogState *state = nullptr;
        for (; i < count && rows[i].twin == (region == Region::Twins) && rows[i].number / shape.per_page == page_number;
             i++) {
            if (!ours)
                continue;
            uint8_t *at = Payload(page) + rows[i].number % shape.per_page * shape.record_bytes + sizeof(RowId);
            uint16_t meta;
            memcpy(&meta, at, sizeof(meta));
            if ((meta & kRowStateMask) != kRowLive || (meta & kRowKilled))
                continue;
            if (state == nullptr) {
                state = GenericXLogStart(regions.index);
                page = GenericXLogRegisterBuffer(state, buffer, 0);
                at = Payload(page) + rows[i].number % shape.per_page * shape.record_bytes + sizeof(RowId);
            }
            meta |= kRowKilled;
            memcpy(at, &meta, sizeof(meta));
        }
        if (state != nullptr)
            GenericXLogFinish(state);
        UnlockReleaseBuffer(buffer);
    }
}

} // namespace vecgpu
