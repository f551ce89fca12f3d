/*
 * bulkflush.cpp: see bulkflush.h.
 */
#include "am/bulkflush.h"

#include "am/nodeset.h"
#include "am/pagestore.h"
#include "page/allocator.h"
#include "page/overlay.h"
#include "page/patch.h"

namespace vecgpu {

struct GraphCache {
    MemoryContext owner; /* where the cache itself lives */
    NodeSet *set;        /* null: nothing loaded */
    TwinTable twins;
    uint64_t incarnation, epoch;
    uint32_t generation;

    bool is_for(const Meta &meta) const
    {
        return set != nullptr && incarnation == meta.incarnation && epoch == meta.epoch &&
               generation == meta.generation && set->graph.count == meta.nodes;
    }
};

GraphCache *VgCreateGraphCache(void)
{
    GraphCache *cache = static_cast<GraphCache *>(palloc0(sizeof(GraphCache)));
    cache->owner = CurrentMemoryContext;
    return cache;
}

void VgDropGraphCache(GraphCache *cache)
{
    if (cache->set == nullptr)
        return;
    VgFreeNodeSet(cache->set);
    MemoryContextDelete(cache->set->context);
    cache->set = nullptr;
}

void VgGraphCachePublished(GraphCache *cache, const Meta &meta)
{
    cache->epoch = meta.epoch;
}

bool VgBulkFlushPays(const Meta &meta, uint64_t rows, const GraphCache *cache)
{
    if (meta.kind != IndexKind::Hnsw || rows < 64)
        return false;
    if (cache != nullptr && cache->is_for(meta))
        return true;
    double row = static_cast<double>(row_bytes(meta.storage, meta.dimensions));
    /* Vectors, lists with their distances, and some twenty bytes for all else. */
    double bytes = (static_cast<double>(meta.nodes) + static_cast<double>(rows)) * (row + 16.0 * meta.m + 20);
    /* Loading and writing back runs at about 2 GB/s, through a file at a fifth of that; a row through the buffers takes 0.8 ms. */
    double speed = bytes <= maintenance_work_mem * 1024.0 ? 2e9 : 4e8;
    return static_cast<double>(rows) * 0.0008 > bytes / speed;
}

namespace {

/* Copies the payloads of a packed region: `bytes` bytes from its start. */
void LoadPacked(const Regions &regions, Region region, uint8_t *out, uint64_t bytes)
{
    for (uint32_t page = 0; bytes > 0; page++) {
        CHECK_FOR_INTERRUPTS();
        uint32_t part = bytes < kPayloadBytes ? static_cast<uint32_t>(bytes) : kPayloadBytes;
        Buffer buffer = VgReadRegionPage(regions, region, page);
        memcpy(out, Payload(BufferGetPage(buffer)), part);
        UnlockReleaseBuffer(buffer);
        out += part;
        bytes -= part;
    }
}

/* Calls visit(record number, bytes) for records 0 .. count - 1 of a region with whole records on its pages. */
template <class Visit>
void ForRecords(const Regions &regions, Region region, uint32_t count, Visit visit)
{
    const RegionShape &shape = Shape(regions, region);
    for (uint32_t first = 0, page = 0; first < count; first += shape.per_page, page++) {
        CHECK_FOR_INTERRUPTS();
        Buffer buffer = VgReadRegionPage(regions, region, page);
        const uint8_t *at = Payload(BufferGetPage(buffer));
        for (uint32_t i = first; i < count && i < first + shape.per_page; i++, at += shape.record_bytes)
            visit(i, at);
        UnlockReleaseBuffer(buffer);
    }
}

void LoadGraph(const Regions &regions, NodeSet *set)
{
    const Meta &meta = *regions.meta;
    Graph *graph = &set->graph;
    uint32_t cells = 2u * meta.m;
    ForRecords(regions, Region::Slots, meta.nodes, [&](uint32_t slot, const uint8_t *at) {
        SlotRecord record;
        memcpy(&record, at, sizeof(record));
        set->reserved[slot] = (record.meta & kRowHasTwins) != 0;
    });
    ForRecords(regions, Region::Links, meta.nodes, [&](uint32_t slot, const uint8_t *at) {
        uint32_t *links = graph->links0 + static_cast<size_t>(slot) * cells;
        uint32_t own = cells - set->reserved[slot];
        uint32_t n = 0;
        for (uint32_t i = 0; i < own; i++) {
            uint32_t id = load_cell(at, i, meta.cell_width);
            if (id == kNone)
                break;
            if (id < meta.nodes && id != slot)
                links[n++] = id; /* others are leftovers of a flush that did not end */
        }
        for (uint32_t i = n; i < cells; i++)
            links[i] = kNone;
    });
    /* Slots of the upper records first: the lists name records, and records may name later ones. */
    uint32_t *slot_of_record = static_cast<uint32_t *>(
        MemoryContextAllocHuge(set->context, sizeof(uint32_t) * (static_cast<size_t>(meta.upper) + 1)));
    for (uint32_t slot = 0; slot < meta.nodes; slot++) {
        graph->levels[slot] = 0;
        graph->upper_offset[slot] = kNone;
    }
    /* What the threads index by must be right, however damaged a page is: levels 1, 2, … of a node, one after the other. */
    ForRecords(regions, Region::Upper, meta.upper, [&](uint32_t number, const uint8_t *at) {
        UpperRecord record;
        memcpy(&record, at, sizeof(record));
        if (record.slot >= meta.nodes || record.level < 1 || record.level > kMaxLevel ||
            graph->levels[record.slot] != record.level - 1 ||
            (record.level > 1 && slot_of_record[number - 1] != record.slot))
            VgCorrupt(regions.index, region_block(Directory(regions, Region::Upper),
                                                  record_address(Shape(regions, Region::Upper), number).page),
                      "upper records of a node are not consecutive");
        slot_of_record[number] = record.slot;
        if (record.level == 1)
            graph->upper_offset[record.slot] = number;
        graph->levels[record.slot] = record.level;
    });
    ForRecords(regions, Region::Upper, meta.upper, [&](uint32_t number, const uint8_t *at) {
        UpperRecord record;
        memcpy(&record, at, sizeof(record));
        uint32_t *links = graph->upper + static_cast<size_t>(number) * meta.m;
        uint32_t n = 0;
        for (uint32_t i = 0; i < meta.m; i++) {
            uint32_t id = load_cell(at + sizeof(record), i, meta.cell_width);
            if (id == kNone)
                break;
            if (id < meta.upper && graph->levels[slot_of_record[id]] >= record.level &&
                slot_of_record[id] != record.slot)
                links[n++] = slot_of_record[id];
        }
        for (; n < meta.m; n++)
            links[n] = kNone;
    });
    graph->count = meta.nodes;
    graph->records = meta.upper;
    graph->entry = kNone;
    graph->entry_level = 0;
    if (meta.entry_handle != kNone) {
        graph->entry_level = meta.entry_level;
        graph->entry = meta.entry_level == 0 ? meta.entry_handle : slot_of_record[meta.entry_handle];
        if (graph->levels[graph->entry] < meta.entry_level)
            VgCorrupt(regions.index, 0, "the entry point is on another level");
    }
    pfree(slot_of_record);
}

/*
 * Writes the pages of a region that differ from what `encode` makes of its records. encode(record, bytes) changes a copy of
 * the record as it is on the page.
 */
template <class Encode>
void WriteChanged(const Regions &regions, Region region, uint32_t count, uint64_t epoch, ChangedBlocks *changed,
                  Encode encode)
{
    const RegionShape &shape = Shape(regions, region);
    PGAlignedBlock image;
    for (uint32_t first = 0, page_number = 0; first < count; first += shape.per_page, page_number++) {
        CHECK_FOR_INTERRUPTS();
        BlockNumber block = region_block(Directory(regions, region), page_number);
        Buffer buffer = VgReadRegionPage(regions, region, page_number);
        Page page = BufferGetPage(buffer);
        bool is_new = reinterpret_cast<PageHeader>(page)->pd_lower <= kPageHeaderBytes;
        memcpy(image.data, Payload(page), kPayloadBytes);
        uint8_t *at = reinterpret_cast<uint8_t *>(image.data);
        for (uint32_t i = first; i < count && i < first + shape.per_page; i++, at += shape.record_bytes)
            encode(i, at);
        bool same = memcmp(image.data, Payload(page), kPayloadBytes) == 0;
        LockBuffer(buffer, BUFFER_LOCK_UNLOCK);
        if (!same) {
            /* The structure lock kept the page as it was. */
            LockBuffer(buffer, BUFFER_LOCK_EXCLUSIVE);
            GenericXLogState *state = GenericXLogStart(regions.index);
            page = GenericXLogRegisterBuffer(state, buffer, is_new ? GENERIC_XLOG_FULL_IMAGE : 0);
            memcpy(Payload(page), image.data, kPayloadBytes);
            SetPayloadUsed(page, kPayloadBytes);
            Trailer(page)->epoch = epoch;
            GenericXLogFinish(state);
            LockBuffer(buffer, BUFFER_LOCK_UNLOCK);
            VgNoteChanged(changed, block);
        }
        ReleaseBuffer(buffer);
    }
}

/* Layer-0 lists that the insertion marked as changed, as patches of their cells. */
void WriteLists(const Regions &regions, const NodeSet *set, uint32_t nodes, uint64_t epoch, ChangedBlocks *changed)
{
    const RegionShape &shape = Shape(regions, Region::Links);
    const Graph &graph = set->graph;
    uint32_t cells = 2u * regions.meta->m;
    uint32_t width = regions.meta->cell_width;
    PagePatch *patch = static_cast<PagePatch *>(palloc(sizeof(PagePatch)));
    for (uint32_t first = 0, page_number = 0; first < nodes; first += shape.per_page, page_number++) {
        uint32_t count = nodes - first < shape.per_page ? nodes - first : shape.per_page;
        if (memchr(graph.dirty + first, 1, count) == nullptr)
            continue;
        CHECK_FOR_INTERRUPTS();
        BlockNumber block = region_block(Directory(regions, Region::Links), page_number);
        Buffer buffer = VgReadRecent(regions.index, regions.recent, block);
        LockBuffer(buffer, BUFFER_LOCK_EXCLUSIVE);
        Page page = BufferGetPage(buffer);
        if (!IsRegionPage(page, Region::Links, regions.meta->generation))
            VgCorrupt(regions.index, block, "not a page of links");
        bool is_new = reinterpret_cast<PageHeader>(page)->pd_lower <= kPageHeaderBytes;
        GenericXLogState *state = nullptr;
        if (is_new) {
            state = GenericXLogStart(regions.index);
            page = GenericXLogRegisterBuffer(state, buffer, GENERIC_XLOG_FULL_IMAGE);
            SetPayloadUsed(page, kPayloadBytes);
        }
        VgBeginPatch(patch, regions.index, buffer);
        for (uint32_t i = 0; i < count; i++) {
            uint32_t slot = first + i;
            if (!graph.dirty[slot])
                continue;
            const uint32_t *links = graph.links0 + static_cast<size_t>(slot) * cells;
            uint32_t own = cells - set->reserved[slot]; /* the last cell may name a twin */
            uint8_t list[4 * 2 * kUpperCells];
            for (uint32_t j = 0; j < own; j++)
                store_cell(list, j, width, links[j]);
            if (is_new)
                memcpy(Payload(page) + i * shape.record_bytes, list, own * width);
            else
                VgPatch(patch, kPageHeaderBytes + i * shape.record_bytes, list, own * width);
        }
        if (is_new) {
            Trailer(page)->epoch = epoch;
            GenericXLogFinish(state);
            VgNoteChanged(changed, block);
        } else if (patch->size > 0) {
            VgPatch(patch, kPageBytes - sizeof(PageTrailer) + offsetof(PageTrailer, epoch), &epoch, sizeof(epoch));
            VgFinishPatch(patch);
            VgNoteChanged(changed, block);
        }
        UnlockReleaseBuffer(buffer);
    }
    pfree(patch);
}

} // namespace

/* Rows and graph of the index into a cache that holds nothing. */
static void LoadCache(const Meta *meta, const Regions &regions, GraphCache *cache)
{
    /* The graph's arrays are sized by what its levels, which are drawn again, come to. */
    if (graph_count_records(meta->incarnation, meta->m, 0, meta->nodes) != meta->upper)
        VgCorrupt(regions.index, 0, "the number of upper records is not that of the nodes");
    MemoryContext context = AllocSetContextCreate(cache->owner, "vecgpu graph", ALLOCSET_DEFAULT_SIZES);
    MemoryContext old = MemoryContextSwitchTo(context);
    NodeSet *set = static_cast<NodeSet *>(palloc(sizeof(NodeSet)));
    VgInitNodeSet(set, meta, false);
    set->keep_keys = true;
    VgKeepNodeSet(set);
    set->max_norm = meta->max_norm;
    cache->set = set;
    cache->incarnation = meta->incarnation;
    cache->generation = meta->generation;

    uint32_t nodes = meta->nodes;
    VgArenaExtend(set->rows, static_cast<size_t>(nodes) * set->row_size);
    uint8_t *rows = static_cast<uint8_t *>(set->rows->base);
    LoadPacked(regions, Region::Vectors, rows, static_cast<uint64_t>(nodes) * set->row_size);
    set->reserved = static_cast<uint8_t *>(
        MemoryContextAllocExtended(context, static_cast<Size>(nodes) + 1, MCXT_ALLOC_HUGE | MCXT_ALLOC_ZERO));
    VgExtendGraph(set, nodes, meta->upper); /* arrays for the nodes, to be filled from the pages */
    LoadGraph(regions, set);

    bool full = !cache->twins.init(nodes, VgTryAllocator(context));
    for (uint32_t i = 0; i < nodes && !full; i++) {
        if (i % 4096 == 0)
            CHECK_FOR_INTERRUPTS();
        cache->twins.find_or_add(rows, set->row_size, i, &full);
    }
    if (full)
        ereport(ERROR, (errcode(ERRCODE_OUT_OF_MEMORY), errmsg("out of memory")));
    MemoryContextSwitchTo(old);
}

void VgBulkFlush(Relation index, Meta *meta, const Batch &batch, ChangedBlocks *changed, GraphCache *kept)
{
    GraphCache *cache = kept != nullptr ? kept : VgCreateGraphCache();
    TimestampTz started = GetCurrentTimestamp();
    Regions regions;
    VgOpenRegions(&regions, index, meta);
    if (!cache->is_for(*meta)) {
        VgDropGraphCache(cache);
        LoadCache(meta, regions, cache);
    }
    NodeSet *set = cache->set;
    set->meta = meta;
    TimestampTz loaded = GetCurrentTimestamp();
    uint32_t old_nodes = meta->nodes;
    uint32_t row_size = batch.row_size;

    /* Which rows are new nodes, and which are twins of a node: node_of[i] is the node of row i. */
    uint32_t *node_of = static_cast<uint32_t *>(
        MemoryContextAllocHuge(CurrentMemoryContext, sizeof(uint32_t) * (static_cast<size_t>(batch.count) + 1)));
    uint32_t nodes = old_nodes;
    bool full = false;
    for (uint32_t i = 0; i < batch.count; i++) {
        if (i % 1024 == 0)
            CHECK_FOR_INTERRUPTS();
        size_t needed = (static_cast<size_t>(nodes) + 1) * row_size;
        if (needed > set->rows->used)
            VgArenaExtend(set->rows, needed - set->rows->used);
        uint8_t *rows = static_cast<uint8_t *>(set->rows->base);
        memcpy(rows + static_cast<size_t>(nodes) * row_size, batch.vectors + static_cast<size_t>(i) * row_size, row_size);
        uint32_t head = cache->twins.find_or_add(rows, row_size, nodes, &full);
        if (full)
            ereport(ERROR, (errcode(ERRCODE_OUT_OF_MEMORY), errmsg("out of memory")));
        node_of[i] = head == kNone ? nodes++ : head;
    }

    uint8_t *reserved = static_cast<uint8_t *>(
        MemoryContextAllocExtended(set->context, static_cast<Size>(nodes) + 1, MCXT_ALLOC_HUGE | MCXT_ALLOC_ZERO));
    memcpy(reserved, set->reserved, old_nodes);
    pfree(set->reserved);
    set->reserved = reserved;
    uint64_t records = meta->upper + graph_count_records(meta->incarnation, meta->m, old_nodes, nodes);
    VgExtendGraph(set, nodes, records);
    set->graph.dirty = static_cast<uint8_t *>(MemoryContextAllocExtended(
        CurrentMemoryContext, static_cast<Size>(nodes) + 1, MCXT_ALLOC_HUGE | MCXT_ALLOC_ZERO));
    memset(set->graph.dirty + old_nodes, 1, nodes - old_nodes);
    if (nodes > old_nodes)
        VgInsertNodes(set, old_nodes, nodes, false);
    TimestampTz inserted = GetCurrentTimestamp();

    /* The lists first, then new vectors and slots, and twins, through the overlay. */
    VgGrowRegion(index, meta, Region::Vectors, nodes);
    VgGrowRegion(index, meta, Region::Slots, nodes);
    VgGrowRegion(index, meta, Region::Links, nodes);
    VgGrowRegion(index, meta, Region::Upper, records);
    const Graph &graph = set->graph;
    uint32_t cells = 2u * meta->m;
    uint32_t width = meta->cell_width;
    uint64_t epoch = meta->epoch + 1;
    WriteLists(regions, set, nodes, epoch, changed);
    WriteChanged(regions, Region::Upper, static_cast<uint32_t>(records), epoch, changed,
                 [&](uint32_t number, uint8_t *at) {
                     const uint32_t *links = graph.upper + static_cast<size_t>(number) * meta->m;
                     uint8_t level;
                     if (number >= meta->upper)
                         return; /* written below, with their headers */
                     memcpy(&level, at + offsetof(UpperRecord, level), sizeof(level));
                     for (uint32_t i = 0; i < meta->m; i++)
                         store_cell(at + sizeof(UpperRecord), i, width,
                                    links[i] == kNone ? kNone : graph.upper_offset[links[i]] + level - 1u);
                 });

    PageStore store;
    store.open_overlay(index, meta);
    for (uint32_t i = old_nodes; i < nodes; i++) {
        for (int level = 1; level <= graph.levels[i]; level++) {
            uint32_t number = graph.upper_offset[i] + static_cast<uint32_t>(level) - 1;
            store.put_upper(number, i, level, graph.upper + static_cast<size_t>(number) * meta->m, graph.upper_offset);
        }
    }
    const uint8_t *rows = static_cast<const uint8_t *>(set->rows->base);
    for (uint32_t i = 0; i < batch.count; i++) {
        if (i % 256 == 0)
            CHECK_FOR_INTERRUPTS();
        uint32_t node = node_of[i];
        /* The first row with a node's number is the node, the others are its twins. */
        if (node >= old_nodes && node == meta->nodes) {
            store.put_node(batch.rows[i], rows + static_cast<size_t>(node) * row_size);
            continue;
        }
        store.add_twin(node, batch.rows[i]);
        if (!set->reserved[node]) {
            set->reserved[node] = 1;
            graph.links0[static_cast<size_t>(node) * cells + cells - 1] = kNone; /* the cell names the twin now */
        }
    }
    meta->upper = static_cast<uint32_t>(records);
    if (graph.entry != kNone) {
        meta->entry_level = graph.entry_level;
        meta->entry_handle = graph.entry_level == 0
                                 ? graph.entry
                                 : graph.upper_offset[graph.entry] + static_cast<uint32_t>(graph.entry_level) - 1;
    }
    TimestampTz listed = GetCurrentTimestamp();
    store.apply(epoch, changed);
    set->graph.dirty = nullptr;
    ereport(DEBUG1, (errmsg("flushed %u rows into index \"%s\": %ld ms to load, %ld to insert, %ld to write lists, %ld to write rows",
                            batch.count, RelationGetRelationName(index),
                            TimestampDifferenceMilliseconds(started, loaded),
                            TimestampDifferenceMilliseconds(loaded, inserted),
                            TimestampDifferenceMilliseconds(inserted, listed),
                            TimestampDifferenceMilliseconds(listed, GetCurrentTimestamp()))));
    if (kept == nullptr)
        VgDropGraphCache(cache);
}

} // namespace vecgpu
