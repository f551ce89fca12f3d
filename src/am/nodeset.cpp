/*
 * nodeset.cpp: see nodeset.h.
 */
#include <initializer_list>

#include <unistd.h>

#include "am/nodeset.h"
#include "am/phases.h"
#include "page/allocator.h"
#include "page/parked.h"
#include "page/region.h"

namespace vecgpu {

static void Phase(const NodeSet *set, int phase, uint64_t total)
{
    if (!set->report)
        return;
    const int parameters[] = {PROGRESS_CREATEIDX_SUBPHASE, PROGRESS_CREATEIDX_TUPLES_TOTAL,
                              PROGRESS_CREATEIDX_TUPLES_DONE};
    const int64 values[] = {phase, static_cast<int64>(total), 0};
    pgstat_progress_update_multi_param(3, parameters, values);
}

static void Progress(const NodeSet *set, uint64_t done)
{
    if (set->report)
        pgstat_progress_update_param(PROGRESS_CREATEIDX_TUPLES_DONE, static_cast<int64>(done));
}

void VgInitNodeSet(NodeSet *set, const Meta *meta, bool report)
{
    memset(static_cast<void *>(set), 0, sizeof(*set));
    set->context = CurrentMemoryContext;
    set->meta = meta;
    set->report = report;
    set->background = AmBackgroundWorkerProcess();
    set->row_size = static_cast<uint32_t>(row_bytes(meta->storage, meta->dimensions));
    /* Vectors take three quarters of the memory at 128 dimensions and more of it at higher ones. */
    size_t limit = static_cast<size_t>(maintenance_work_mem) * 1024;
    set->rows = VgCreateArena(set->context, limit / 4 * 3);
    set->links0 = VgCreateArena(set->context, limit / 4);
    set->upper = VgCreateArena(set->context, limit / 4);
    set->nodes = VgCreateArena(set->context, limit / 4);
    set->keys0 = VgCreateArena(set->context, limit / 4);
    set->upper_keys = VgCreateArena(set->context, limit / 4);
    set->capacity = 1024;
    set->ids = static_cast<RowId *>(palloc(sizeof(RowId) * set->capacity));
    set->graph = graph_make(meta->m);
}

void VgKeepNodeSet(NodeSet *set)
{
    for (Arena *arena : {set->rows, set->links0, set->upper, set->nodes, set->keys0, set->upper_keys})
        arena->keep = true;
}

void VgFreeNodeSet(NodeSet *set)
{
    VgFreeArena(set->rows);
    VgFreeArena(set->links0);
    VgFreeArena(set->upper);
    VgFreeArena(set->nodes);
    VgFreeArena(set->keys0);
    VgFreeArena(set->upper_keys);
}

uint8_t *VgAddRow(NodeSet *set, const RowId &id)
{
    if (set->count == max_nodes(4))
        ereport(ERROR, (errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
                        errmsg("a vecgpu index cannot have more than %u rows", max_nodes(4))));
    if (set->count == set->capacity) {
        uint64_t capacity = static_cast<uint64_t>(set->capacity) * 2;
        set->capacity = capacity > max_nodes(4) ? max_nodes(4) : static_cast<uint32_t>(capacity);
        set->ids = static_cast<RowId *>(repalloc_huge(set->ids, sizeof(RowId) * set->capacity));
    }
    set->ids[set->count++] = id;
    size_t offset = VgArenaExtend(set->rows, set->row_size);
    return static_cast<uint8_t *>(set->rows->base) + offset;
}

/* ---- equal vectors ---- */

static void Interrupt(void *context)
{
    (void) context;
    CHECK_FOR_INTERRUPTS();
}

static void OutOfMemory(void)
{
    ereport(ERROR, (errcode(ERRCODE_OUT_OF_MEMORY), errmsg("out of memory"),
                    errdetail("Not enough memory to build the graph of a vecgpu index.")));
}

static void GroupTwins(NodeSet *set)
{
    Allocator memory = VgTryAllocator(set->context);
    uint32_t n = set->count;
    uint32_t *twin_of = allocate_array<uint32_t>(memory, n);
    if (twin_of == nullptr ||
        find_twins(set->rows->base, set->row_size, n, twin_of, memory, Interrupt, nullptr) != BuildStatus::Ok)
        OutOfMemory();

    uint32_t twins = 0;
    for (uint32_t i = 0; i < n; i++)
        if (twin_of[i] != kNone)
            twins++;
    if (twins == 0) {
        pfree(twin_of);
        return;
    }

    uint32_t nodes = n - twins;
    set->twins = static_cast<TwinRecord *>(MemoryContextAllocHuge(set->context, sizeof(TwinRecord) * twins));
    set->first_twin = static_cast<uint32_t *>(MemoryContextAllocHuge(set->context, sizeof(uint32_t) * nodes));
    set->reserved = static_cast<uint8_t *>(MemoryContextAllocHuge(set->context, nodes));
    memset(set->reserved, 0, nodes);
    uint8_t *rows = static_cast<uint8_t *>(set->rows->base);
    uint32_t node = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (i % 4096 == 0)
            CHECK_FOR_INTERRUPTS();
        if (twin_of[i] == kNone) {
            /* From here on twin_of of a head is its node number, which is at most i: never mistaken for kNone. */
            memmove(rows + static_cast<size_t>(node) * set->row_size, rows + static_cast<size_t>(i) * set->row_size,
                    set->row_size);
            set->first_twin[node] = kNone;
            RowId id = set->ids[i];
            set->ids[node] = id;
            twin_of[i] = node++;
            continue;
        }
        uint32_t head = twin_of[twin_of[i]];
        uint32_t number = set->twin_count++;
        set->twins[number] = {set->ids[i], kRowLive, kNone, head, number};
        if (set->first_twin[head] == kNone) {
            set->first_twin[head] = number;
            set->reserved[head] = 1;
        } else {
            TwinRecord *first = &set->twins[set->first_twin[head]];
            set->twins[first->last].next = number;
            first->last = number;
        }
    }
    set->count = node;
    pfree(twin_of);
}

/* ---- graph ---- */

static uint32_t ThreadCount(uint32_t nodes, bool background)
{
    if (max_parallel_maintenance_workers == 0)
        return 0; /* everything in this process, between looks at interrupts */
    long threads = max_parallel_maintenance_workers + 1;
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    if (background)
        cores = (cores + 1) / 2; /* the rest is for those whom the flush is to serve */
    if (cores > 0 && threads > cores)
        threads = cores;
    if (threads > static_cast<long>(nodes / 256) + 1)
        threads = static_cast<long>(nodes / 256) + 1;
    return static_cast<uint32_t>(threads);
}

/*
 * Waits for the builder and answers to cancel. While its threads run, nothing here may leave by an error: they
 * are stopped and joined first.
 */
static BuildStatus WaitForBuilder(NodeSet *set, Builder *builder, BuildControl *control, uint32_t total)
{
    bool connecting = false;
    uint32_t threads = build_threads(builder);
    while (!build_poll(builder)) {
        uint64_t done = control->done.load(std::memory_order_relaxed);
        Progress(set, done);
        if (!connecting && done == total) {
            Phase(set, kPhaseConnect, total);
            connecting = true;
        }
        if (QueryCancelPending || ProcDiePending) {
            control->stop = true;
            build_join(builder);
            CHECK_FOR_INTERRUPTS();
            ereport(ERROR, (errcode(ERRCODE_QUERY_CANCELED), errmsg("canceling index build")));
        }
        if (threads == 0)
            continue;
        int events = WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_POSTMASTER_DEATH, 10, PG_WAIT_EXTENSION);
        if (events & WL_POSTMASTER_DEATH) {
            control->stop = true;
            build_join(builder);
            proc_exit(1);
        }
        ResetLatch(MyLatch);
    }
    return build_join(builder);
}

void VgExtendGraph(NodeSet *set, uint32_t last, uint64_t records)
{
    Graph *graph = &set->graph;
    uint32_t m = set->meta->m;
    uint32_t old = graph->count;
    /* Nodes first: the arrays of set->nodes are one after the other, so the later ones have to move up. */
    size_t links0 = graph_links0_bytes(last, m);
    size_t upper = graph_upper_bytes(records, m) + 1;
    if (links0 > set->links0->used)
        VgArenaExtend(set->links0, links0 - set->links0->used);
    if (upper > set->upper->used)
        VgArenaExtend(set->upper, upper - set->upper->used);
    if (graph_node_bytes(last) > set->nodes->used)
        VgArenaExtend(set->nodes, graph_node_bytes(last) - set->nodes->used);
    uint8_t *base = static_cast<uint8_t *>(set->nodes->base);
    uint8_t *levels = base + sizeof(uint32_t) * static_cast<size_t>(last);
    memmove(levels, base + sizeof(uint32_t) * static_cast<size_t>(old), old);
    if (set->keep_keys) {
        /* As many as links; NaN where a distance is not known yet. */
        size_t bytes = links0;
        size_t had = set->keys0->used;
        if (bytes > had)
            memset(static_cast<char *>(VgArenaGrow(set->keys0, bytes - had)), 0xff, bytes - had);
        had = set->upper_keys->used;
        if (upper > had)
            memset(static_cast<char *>(VgArenaGrow(set->upper_keys, upper - had)), 0xff, upper - had);
        graph->keys0 = static_cast<float *>(set->keys0->base);
        graph->upper_keys = static_cast<float *>(set->upper_keys->base);
    }
    graph->links0 = static_cast<uint32_t *>(set->links0->base);
    graph->upper = static_cast<uint32_t *>(set->upper->base);
    graph->upper_offset = reinterpret_cast<uint32_t *>(base);
    graph->levels = levels;
    graph->locks = levels + last;
    memset(graph->locks, 0, last);
    graph->reserved = set->reserved;
    for (uint64_t upto = old; upto < last;) {
        CHECK_FOR_INTERRUPTS();
        upto = upto + 1000000 < last ? upto + 1000000 : last;
        if (!graph_add_nodes(graph, set->meta->incarnation, static_cast<uint32_t>(upto)))
            ereport(ERROR, (errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED), errmsg("too many nodes on upper layers")));
    }
}

void VgInsertNodes(NodeSet *set, uint32_t first, uint32_t last, bool connect)
{
    const Meta *meta = set->meta;
    /*
     * Threads do not see each other's nodes while they insert them, so each works on a graph that lags a little: m more
     * candidates make up for what that costs in recall.
     */
    uint32_t ef_construction = static_cast<uint32_t>(meta->ef_construction) + meta->m;
    BuildParams params = {meta->metric,  meta->storage,           meta->dimensions, ef_construction,
                          set->max_norm, ThreadCount(last - first, set->background), connect,          set->background};
    BuildControl control;
    Builder *builder;
    if (build_start(&builder, &set->graph, set->rows->base, first, last, params, &control) == BuildStatus::OutOfMemory)
        OutOfMemory();
    if (WaitForBuilder(set, builder, &control, last - first) == BuildStatus::FewerThreads)
        ereport(DEBUG1, (errmsg("index build ran with fewer threads than it asked for")));
    uint32_t unreachable = control.unreachable.load();
    if (unreachable > 0)
        ereport(DEBUG1, (errmsg("%u nodes cannot be reached through the graph", unreachable),
                         errdetail("Scans that go on to the end return their rows all the same.")));
}

static void BuildGraph(NodeSet *set)
{
    const Meta *meta = set->meta;
    uint32_t n = set->count;
    if (n == 0 || meta->kind != IndexKind::Hnsw)
        return;
    Phase(set, kPhaseGraph, n);
    if (meta->metric == Metric::InnerProduct) {
        float *scratch = static_cast<float *>(palloc(sizeof(float) * meta->dimensions));
        for (uint32_t first = 0; first < n; first += 4096) {
            CHECK_FOR_INTERRUPTS();
            float norm = largest_norm(meta->storage, static_cast<char *>(set->rows->base) + static_cast<size_t>(first) * set->row_size,
                                      n - first < 4096 ? n - first : 4096, meta->dimensions, scratch);
            if (norm > set->max_norm)
                set->max_norm = norm;
        }
        pfree(scratch);
    }
    VgExtendGraph(set, n, graph_count_records(meta->incarnation, meta->m, 0, n));
    VgInsertNodes(set, 0, n, true);
}

void VgBuildNodeSet(NodeSet *set)
{
    MemoryContext old = MemoryContextSwitchTo(set->context);
    if (set->meta->kind == IndexKind::Hnsw) {
        Phase(set, kPhaseTwins, set->count);
        GroupTwins(set);
    }
    BuildGraph(set);
    MemoryContextSwitchTo(old);
}

/* ---- writing ---- */

namespace {

/* Streams the records of one region onto consecutive pages. */
struct RegionWriter {
    NodeSet *set;
    Relation index;
    bool fresh;
    Region region;
    uint32_t generation;
    uint64_t epoch;
    RegionShape shape;
    Extent extent;
    uint32_t written; /* pages */
    uint32_t offset;  /* in the payload of the current page */
    uint64_t *blocks_done;
    PGAlignedBlock image;

    void open(NodeSet *nodes, Relation relation, const Meta &meta, Region which, uint64_t records, bool is_fresh,
              uint64_t *done)
    {
        set = nodes;
        index = relation;
        fresh = is_fresh;
        region = which;
        generation = meta.generation;
        epoch = meta.epoch;
        shape = region_shape(meta, which);
        blocks_done = done;
        written = offset = 0;
        uint64_t pages = region_pages(shape, records);
        if (pages > MaxBlockNumber)
            ereport(ERROR, (errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
                            errmsg("index \"%s\" would need more than %u blocks", RelationGetRelationName(index),
                                   MaxBlockNumber)));
        extent = {0, static_cast<uint32_t>(pages)};
        if (pages > 0 && fresh)
            extent.first_block = RelationGetNumberOfBlocks(index);
        else if (pages > 0) {
            extent = VgTakeExtent(index, region, generation, epoch, static_cast<uint32_t>(pages));
            VgParkExtents(index, &extent, 1, true); /* until it is published, it is nobody's */
        }
        memset(image.data, 0, kPageBytes);
    }

    void put(const void *data, uint32_t bytes)
    {
        const uint8_t *from = static_cast<const uint8_t *>(data);
        if (shape.per_page != 0 && offset + bytes > kPayloadBytes)
            write();
        while (bytes > 0) {
            if (offset == kPayloadBytes)
                write();
            uint32_t part = kPayloadBytes - offset < bytes ? kPayloadBytes - offset : bytes;
            memcpy(image.data + offset, from, part);
            offset += part;
            from += part;
            bytes -= part;
        }
    }

    void write()
    {
        CHECK_FOR_INTERRUPTS();
        Buffer buffer;
        if (fresh) {
            buffer = ReadBufferExtended(index, MAIN_FORKNUM, P_NEW, RBM_ZERO_AND_LOCK, nullptr);
            START_CRIT_SECTION();
            Page page = BufferGetPage(buffer);
            VgInitPage(page, PageKind::Region, static_cast<uint16_t>(region), generation, epoch);
            memcpy(Payload(page), image.data, kPayloadBytes);
            SetPayloadUsed(page, kPayloadBytes);
            MarkBufferDirty(buffer);
            END_CRIT_SECTION();
        } else {
            buffer = VgReadPage(index, extent.first_block + written, BUFFER_LOCK_EXCLUSIVE);
            GenericXLogState *state = GenericXLogStart(index);
            Page page = GenericXLogRegisterBuffer(state, buffer, GENERIC_XLOG_FULL_IMAGE);
            memcpy(Payload(page), image.data, kPayloadBytes);
            SetPayloadUsed(page, kPayloadBytes);
            GenericXLogFinish(state);
        }
        UnlockReleaseBuffer(buffer);
        written++;
        offset = 0;
        memset(image.data, 0, kPageBytes);
        ++*blocks_done;
        if (set->report && *blocks_done % 64 == 0)
            pgstat_progress_update_param(PROGRESS_SCAN_BLOCKS_DONE, static_cast<int64>(*blocks_done));
    }

    void close(RegionDirectory *directory)
    {
        if (offset > 0)
            write();
        if (written != extent.pages)
            elog(ERROR, "wrote %u pages of %u to index \"%s\"", written, extent.pages, RelationGetRelationName(index));
        memset(directory, 0, sizeof(*directory));
        if (extent.pages > 0) {
            directory->pages = extent.pages;
            directory->extents = 1;
            directory->extent[0] = extent;
        }
    }
};

} // namespace

/* Cells that leave room to grow by half before the links have to be written anew with wider ones. */
static uint8_t CellWidth(uint64_t nodes, uint64_t twins, uint64_t upper)
{
    /* A cell holds a slot, a twin or an upper record. */
    uint64_t numbers = nodes > twins ? nodes : twins;
    if (upper > numbers)
        numbers = upper;
    for (uint8_t width = 2; width < 4; width++)
        if (numbers + numbers / 2 + 1024 <= max_nodes(width))
            return width;
    return 4;
}

void VgWriteNodeSet(NodeSet *set, Relation index, Meta *meta, bool fresh)
{
    const Graph &graph = set->graph;
    uint32_t n = set->count;
    bool hnsw = meta->kind == IndexKind::Hnsw;
    uint32_t upper = hnsw ? static_cast<uint32_t>(graph.records) : 0;
    meta->cell_width = CellWidth(n, set->twin_count, upper);
    uint32_t width = meta->cell_width;
    uint64_t total = region_pages(region_shape(*meta, Region::Vectors), n) +
                     region_pages(region_shape(*meta, Region::Links), hnsw ? n : 0) +
                     region_pages(region_shape(*meta, Region::Slots), n) +
                     region_pages(region_shape(*meta, Region::Twins), set->twin_count) +
                     region_pages(region_shape(*meta, Region::Upper), upper);
    Phase(set, kPhaseWrite, 0);
    if (set->report) {
        const int parameters[] = {PROGRESS_SCAN_BLOCKS_TOTAL, PROGRESS_SCAN_BLOCKS_DONE};
        const int64 values[] = {static_cast<int64>(total), 0};
        pgstat_progress_update_multi_param(2, parameters, values);
    }
    uint64_t done = 0;
    uint16_t state = static_cast<uint16_t>(kRowLive | (meta->generation & 0xff) << kRowStampShift);
    RegionWriter *writer = static_cast<RegionWriter *>(MemoryContextAlloc(set->context, sizeof(RegionWriter)));
    RegionDirectory *directories = meta->regions;
    uint8_t *record = static_cast<uint8_t *>(MemoryContextAlloc(set->context, kPageBytes));

    writer->open(set, index, *meta, Region::Vectors, n, fresh, &done);
    for (uint32_t i = 0; i < n; i++)
        writer->put(static_cast<uint8_t *>(set->rows->base) + static_cast<size_t>(i) * set->row_size, set->row_size);
    writer->close(&directories[static_cast<int>(Region::Vectors)]);

    uint32_t cells = 2u * meta->m;
    writer->open(set, index, *meta, Region::Links, hnsw ? n : 0, fresh, &done);
    for (uint32_t i = 0; hnsw && i < n; i++) {
        const uint32_t *links = graph.links0 + static_cast<size_t>(i) * cells;
        for (uint32_t j = 0; j < cells; j++)
            store_cell(record, j, width, links[j]);
        if (set->first_twin != nullptr && set->first_twin[i] != kNone)
            store_cell(record, cells - 1, width, set->first_twin[i]);
        writer->put(record, writer->shape.record_bytes);
    }
    writer->close(&directories[static_cast<int>(Region::Links)]);

    writer->open(set, index, *meta, Region::Slots, n, fresh, &done);
    for (uint32_t i = 0; i < n; i++) {
        bool twins = set->first_twin != nullptr && set->first_twin[i] != kNone;
        SlotRecord slot = {set->ids[i], static_cast<uint16_t>(state | (twins ? kRowHasTwins : 0))};
        writer->put(&slot, sizeof(slot));
    }
    writer->close(&directories[static_cast<int>(Region::Slots)]);

    writer->open(set, index, *meta, Region::Twins, set->twin_count, fresh, &done);
    for (uint32_t i = 0; i < set->twin_count; i++) {
        TwinRecord twin = set->twins[i];
        twin.meta = state;
        writer->put(&twin, sizeof(twin));
    }
    writer->close(&directories[static_cast<int>(Region::Twins)]);

    writer->open(set, index, *meta, Region::Upper, upper, fresh, &done);
    for (uint32_t i = 0; hnsw && i < n; i++) {
        for (int level = 1; level <= graph.levels[i]; level++) {
            UpperRecord header = {i, static_cast<uint8_t>(level), {0, 0, 0}};
            memset(record, 0, writer->shape.record_bytes);
            memcpy(record, &header, sizeof(header));
            const uint32_t *links =
                graph.upper + (static_cast<size_t>(graph.upper_offset[i]) + level - 1) * meta->m;
            for (uint32_t j = 0; j < meta->m; j++) {
                uint32_t to = links[j] == kNone ? kNone
                                                : graph.upper_offset[links[j]] + static_cast<uint32_t>(level) - 1;
                store_cell(record + sizeof(header), j, width, to);
            }
            writer->put(record, writer->shape.record_bytes);
        }
    }
    writer->close(&directories[static_cast<int>(Region::Upper)]);
    if (set->report)
        pgstat_progress_update_param(PROGRESS_SCAN_BLOCKS_DONE, static_cast<int64>(done));

    meta->nodes = n;
    meta->twins = set->twin_count;
    meta->upper = upper;
    meta->dead_nodes = meta->dead_twins = 0;
    meta->max_norm = set->max_norm;
    meta->entry_handle = kNone;
    meta->entry_level = 0;
    if (hnsw && n > 0) {
        meta->entry_level = graph.entry_level;
        meta->entry_handle = graph.entry_level == 0
                                 ? graph.entry
                                 : graph.upper_offset[graph.entry] + static_cast<uint32_t>(graph.entry_level) - 1;
    }
}

} // namespace vecgpu
