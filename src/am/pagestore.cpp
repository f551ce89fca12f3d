/*
 * pagestore.cpp: see pagestore.h.
 */
#include "am/pagestore.h"

#include "page/allocator.h"

namespace vecgpu {

namespace {

struct UpperEntry {
    uint32_t slot; /* hash key */
    uint32_t record;
};

uint16_t StateOf(const Meta &meta)
{
    return static_cast<uint16_t>(kRowLive | (meta.generation & 0xff) << kRowStampShift);
}

} // namespace

void PageStore::open_overlay(Relation relation, Meta *working)
{
    index = relation;
    meta = working;
    published = meta->nodes;
    upper_of = nullptr;
    VgOpenOverlay(&overlay, index, meta);
    record = static_cast<uint8_t *>(palloc(kPageBytes));
}

void PageStore::open(Relation relation, Meta *working, uint32_t rows)
{
    index = relation;
    meta = working;
    /* Room for every row as a node or as a twin; what is not used serves the next batch. */
    VgGrowRegion(index, meta, Region::Vectors, static_cast<uint64_t>(meta->nodes) + rows);
    VgGrowRegion(index, meta, Region::Slots, static_cast<uint64_t>(meta->nodes) + rows);
    if (meta->kind == IndexKind::Hnsw) {
        uint64_t upper = 0;
        for (uint32_t i = 0; i < rows; i++)
            upper += static_cast<uint64_t>(random_level(meta->incarnation, meta->nodes + i, meta->m));
        VgGrowRegion(index, meta, Region::Links, static_cast<uint64_t>(meta->nodes) + rows);
        VgGrowRegion(index, meta, Region::Upper, meta->upper + upper);
    }
    open_overlay(index, meta);
    if (meta->kind == IndexKind::Hnsw) {
        load_upper();
        inserter.init(this, VgAllocator(CurrentMemoryContext));
    }
}

/* Where the nodes above layer 0 keep their upper records: their share is 1 / m, so this is read as a whole. */
void PageStore::load_upper()
{
    HASHCTL control;
    memset(&control, 0, sizeof(control));
    control.keysize = sizeof(uint32_t);
    control.entrysize = sizeof(UpperEntry);
    control.hcxt = CurrentMemoryContext;
    upper_of = hash_create("vecgpu upper nodes", meta->upper + 64, &control, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
    const RegionShape &shape = Shape(overlay.regions, Region::Upper);
    for (uint32_t first = 0, page = 0; first < meta->upper; first += shape.per_page, page++) {
        CHECK_FOR_INTERRUPTS();
        Buffer buffer = VgReadRegionPage(overlay.regions, Region::Upper, page);
        const uint8_t *at = Payload(BufferGetPage(buffer));
        for (uint32_t i = first; i < meta->upper && i < first + shape.per_page; i++, at += shape.record_bytes) {
            UpperRecord upper;
            memcpy(&upper, at, sizeof(upper));
            if (upper.level != 1)
                continue;
            bool found;
            UpperEntry *entry =
                static_cast<UpperEntry *>(hash_search(upper_of, &upper.slot, HASH_ENTER, &found));
            entry->record = i;
        }
        UnlockReleaseBuffer(buffer);
    }
}

uint32_t PageStore::upper_record(uint32_t slot, int level)
{
    const UpperEntry *entry = static_cast<const UpperEntry *>(hash_search(upper_of, &slot, HASH_FIND, nullptr));
    return entry == nullptr ? kNone : entry->record + static_cast<uint32_t>(level) - 1;
}

const void *PageStore::row(uint32_t slot, void *scratch)
{
    VgOverlayRead(&overlay, Region::Vectors, slot, scratch);
    return scratch;
}

bool PageStore::has_twins(uint32_t slot)
{
    SlotRecord entry;
    VgOverlayRead(&overlay, Region::Slots, slot, &entry);
    return (entry.meta & kRowHasTwins) != 0;
}

uint32_t PageStore::capacity(int level, uint32_t slot)
{
    if (level > 0)
        return meta->m;
    return 2u * meta->m - (slot < meta->nodes && has_twins(slot) ? 1 : 0);
}

uint32_t PageStore::links(int level, uint32_t slot, uint32_t *out)
{
    uint32_t n = 0;
    if (level > 0) {
        uint32_t number = upper_record(slot, level);
        if (number == kNone)
            return 0;
        VgOverlayRead(&overlay, Region::Upper, number, record);
        for (uint32_t i = 0; i < meta->m; i++) {
            uint32_t id = load_cell(record + sizeof(UpperRecord), i, meta->cell_width);
            if (id == kNone)
                break;
            if (id >= meta->upper)
                continue;
            /* The list names upper records; the algorithm wants slots. */
            UpperRecord other;
            uint8_t buffer[sizeof(UpperRecord) + 4 * kUpperCells];
            VgOverlayRead(&overlay, Region::Upper, id, buffer);
            memcpy(&other, buffer, sizeof(other));
            if (other.level == level)
                out[n++] = other.slot;
        }
        return n;
    }
    VgOverlayRead(&overlay, Region::Links, slot, record);
    uint32_t cells = 2u * meta->m;
    if (load_cell(record, cells - 1, meta->cell_width) != kNone && has_twins(slot))
        cells--;
    for (uint32_t i = 0; i < cells; i++) {
        uint32_t id = load_cell(record, i, meta->cell_width);
        if (id == kNone)
            break;
        out[n++] = id;
    }
    return n;
}

void PageStore::set_links(int level, uint32_t slot, const uint32_t *ids, uint32_t n)
{
    uint32_t width = meta->cell_width;
    uint8_t cells[4 * 2 * kUpperCells];
    uint32_t capacity_here = level > 0 ? meta->m : 2u * meta->m;
    uint32_t used = 0;
    for (uint32_t i = 0; i < n && used < capacity_here; i++) {
        uint32_t id = level > 0 ? upper_record(ids[i], level) : ids[i];
        if (id != kNone)
            store_cell(cells, used++, width, id);
    }
    if (level > 0) {
        for (uint32_t i = used; i < capacity_here; i++)
            store_cell(cells, i, width, kNone);
        uint32_t number = upper_record(slot, level);
        if (number != kNone)
            VgOverlayWrite(&overlay, Region::Upper, number, sizeof(UpperRecord), cells, capacity_here * width);
        return;
    }
    uint32_t own = capacity(0, slot); /* the last cell may name a twin: it is not ours to clear */
    for (uint32_t i = used; i < own; i++)
        store_cell(cells, i, width, kNone);
    VgOverlayWrite(&overlay, Region::Links, slot, 0, cells, own * width);
}

void PageStore::entry(uint32_t *slot, int *level)
{
    *slot = meta->entry_handle;
    *level = meta->entry_level;
    if (*slot == kNone || *level == 0)
        return;
    VgOverlayRead(&overlay, Region::Upper, meta->entry_handle, record);
    *slot = reinterpret_cast<const UpperRecord *>(record)->slot;
}

void PageStore::set_entry(uint32_t slot, int level)
{
    meta->entry_level = level;
    meta->entry_handle = level == 0 ? slot : upper_record(slot, level);
}

void PageStore::add_twin(uint32_t head, const RowId &row)
{
    uint32_t width = meta->cell_width;
    uint32_t number = meta->twins;
    VgGrowRegion(index, meta, Region::Twins, static_cast<uint64_t>(number) + 1);
    TwinRecord twin = {row, StateOf(*meta), kNone, head, number};

    SlotRecord slot;
    VgOverlayRead(&overlay, Region::Slots, head, &slot);
    uint32_t first = kNone;
    TwinRecord first_twin = {};
    if (slot.meta & kRowHasTwins) {
        VgOverlayRead(&overlay, Region::Links, head, record);
        first = load_cell(record, 2u * meta->m - 1, width);
        if (first < meta->twins) {
            VgOverlayRead(&overlay, Region::Twins, first, &first_twin);
            if (first_twin.slot != head)
                first = kNone;
        } else {
            first = kNone;
        }
    }
    VgOverlayWrite(&overlay, Region::Twins, number, 0, &twin, sizeof(twin));
    if (first == kNone) {
        uint8_t cell[4];
        store_cell(cell, 0, width, number);
        VgOverlayWrite(&overlay, Region::Links, head, (2u * meta->m - 1) * width, cell, width);
        slot.meta |= kRowHasTwins;
        VgOverlayWrite(&overlay, Region::Slots, head, 0, &slot, sizeof(slot));
    } else {
        /* From the hint to the true end, which is at most what an unfinished flush left behind away. */
        uint32_t last = first_twin.last;
        TwinRecord end = {};
        if (last < meta->twins)
            VgOverlayRead(&overlay, Region::Twins, last, &end);
        if (last >= meta->twins || end.slot != head) {
            last = first;
            end = first_twin;
        }
        while (end.next < meta->twins) {
            TwinRecord next;
            VgOverlayRead(&overlay, Region::Twins, end.next, &next);
            if (next.slot != head)
                break;
            if (end.next <= last)
                VgCorrupt(index, 0, "a chain of twins runs backwards");
            last = end.next;
            end = next;
        }
        VgOverlayWrite(&overlay, Region::Twins, last, offsetof(TwinRecord, next), &number, sizeof(number));
        VgOverlayWrite(&overlay, Region::Twins, first, offsetof(TwinRecord, last), &number, sizeof(number));
    }
    meta->twins = number + 1;
}

void PageStore::put_node(const RowId &row, const uint8_t *vector)
{
    uint32_t slot = meta->nodes++;
    VgOverlayWrite(&overlay, Region::Vectors, slot, 0, vector, Shape(overlay.regions, Region::Vectors).record_bytes);
    SlotRecord entry = {row, StateOf(*meta)};
    VgOverlayWrite(&overlay, Region::Slots, slot, 0, &entry, sizeof(entry));
}

void PageStore::put_upper(uint32_t number, uint32_t slot, int level, const uint32_t *links, const uint32_t *record_of)
{
    UpperRecord header = {slot, static_cast<uint8_t>(level), {0, 0, 0}};
    uint8_t cells[4 * kUpperCells];
    for (uint32_t i = 0; i < meta->m; i++)
        store_cell(cells, i, meta->cell_width,
                   links[i] == kNone ? kNone : record_of[links[i]] + static_cast<uint32_t>(level) - 1);
    VgOverlayWrite(&overlay, Region::Upper, number, 0, &header, sizeof(header));
    VgOverlayWrite(&overlay, Region::Upper, number, sizeof(header), cells, meta->m * meta->cell_width);
}

void PageStore::add(const RowId &row, const uint8_t *vector)
{
    uint32_t slot = meta->nodes;
    /* The node counts from here on; it is taken back if the row turns out to be a twin. */
    put_node(row, vector);
    if (meta->kind == IndexKind::Flat)
        return;

    uint8_t empty[4 * 2 * kUpperCells];
    uint32_t none[kUpperCells];
    memset(empty, 0xff, sizeof(empty));
    memset(none, 0xff, sizeof(none));
    VgOverlayWrite(&overlay, Region::Links, slot, 0, empty, 2u * meta->m * meta->cell_width);
    int level = random_level(meta->incarnation, slot, meta->m);
    uint32_t upper = meta->upper;
    for (int l = 1; l <= level; l++) {
        put_upper(upper + static_cast<uint32_t>(l) - 1, slot, l, none, nullptr);
    }
    if (level > 0) {
        bool found;
        UpperEntry *added = static_cast<UpperEntry *>(hash_search(upper_of, &slot, HASH_ENTER, &found));
        added->record = upper;
    }
    meta->upper = upper + static_cast<uint32_t>(level);
    InsertResult result = inserter.insert(slot, level, true);
    if (result.kind != InsertResult::TwinOf)
        return;
    meta->nodes = slot;
    meta->upper = upper;
    if (level > 0)
        hash_search(upper_of, &slot, HASH_REMOVE, nullptr);
    add_twin(result.head, row);
}

void PageStore::apply(uint64_t epoch, ChangedBlocks *changed)
{
    VgApplyOverlay(&overlay, epoch, changed);
}

} // namespace vecgpu
