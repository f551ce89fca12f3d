/*
 * delta.cpp: see delta.h.
 */
#include "page/delta.h"

#include "page/patch.h"
#include "page/region.h"

namespace vecgpu {

static inline DeltaHeader *HeaderOf(Page page)
{
    return reinterpret_cast<DeltaHeader *>(Payload(page));
}

static inline uint8_t *RowsOf(Page page)
{
    return Payload(page) + sizeof(DeltaHeader);
}

static bool IsDelta(Page page, uint32_t chain, uint32_t sequence)
{
    return VgPageIs(page, PageKind::Delta) && Trailer(page)->sequence == sequence && HeaderOf(page)->chain == chain;
}

/* To the next page of a chain. Sequences rise along it, so a damaged link cannot lead in a circle. */
static void Advance(Relation index, const DeltaHeader &header, uint32_t *block, uint32_t *sequence)
{
    if (header.next_block != kNoBlock && static_cast<int32_t>(header.next_sequence - *sequence) <= 0)
        VgCorrupt(index, *block, "a delta page links backwards");
    *block = header.next_block;
    *sequence = header.next_sequence;
}

/* ---- append ---- */

struct NewRow {
    RowId id;
    const uint8_t *vector;
    uint32_t size;                   /* of the vector */
    const OverflowPointer *overflow; /* where it lies if it is too large for a page */
};

static DeltaRow EntryOf(const NewRow &row)
{
    return {row.id, static_cast<uint16_t>(kRowLive | (row.overflow != nullptr ? kRowOverflow : 0))};
}

static void PutRow(Page page, const NewRow &row)
{
    DeltaHeader *header = HeaderOf(page);
    uint32_t stride = delta_stride(row.size);
    uint8_t *at = RowsOf(page) + static_cast<size_t>(header->rows) * stride;
    DeltaRow entry = EntryOf(row);
    memcpy(at, &entry, sizeof(entry));
    if (row.overflow != nullptr)
        memcpy(at + sizeof(entry), row.overflow, sizeof(*row.overflow));
    else
        memcpy(at + sizeof(entry), row.vector, row.size);
    header->rows++;
    SetPayloadUsed(page, sizeof(DeltaHeader) + header->rows * stride);
}

/* The same as PutRow on a page that others can see: a patch of the row, the count and the page's used size. */
static void LogRow(Relation index, Buffer buffer, const NewRow &row)
{
    Page page = BufferGetPage(buffer);
    uint32_t rows = HeaderOf(page)->rows;
    uint32_t stride = delta_stride(row.size);
    uint32_t at = kPageHeaderBytes + sizeof(DeltaHeader) + rows * stride;
    DeltaRow entry = EntryOf(row);
    uint16_t count = static_cast<uint16_t>(rows + 1);
    LocationIndex used = static_cast<LocationIndex>(at + stride);
    PagePatch patch;
    VgBeginPatch(&patch, index, buffer);
    VgPatch(&patch, at, &entry, sizeof(entry));
    if (row.overflow != nullptr)
        VgPatch(&patch, at + sizeof(entry), row.overflow, sizeof(*row.overflow));
    else
        VgPatch(&patch, at + sizeof(entry), row.vector, row.size);
    VgPatch(&patch, kPageHeaderBytes + offsetof(DeltaHeader, rows), &count, sizeof(count));
    VgPatch(&patch, offsetof(PageHeaderData, pd_lower), &used, sizeof(used));
    VgFinishPatch(&patch);
}

/* True if the page is still the tail of the chain and had room. */
static bool AppendToTail(Relation index, uint32_t chain, const DeltaCursor &tail, const NewRow &row)
{
    Buffer buffer = VgReadPage(index, tail.block, BUFFER_LOCK_EXCLUSIVE);
    Page page = BufferGetPage(buffer);
    bool room = IsDelta(page, chain, tail.sequence) && HeaderOf(page)->next_block == kNoBlock &&
                HeaderOf(page)->rows < delta_capacity(row.size);
    if (room)
        LogRow(index, buffer, row);
    UnlockReleaseBuffer(buffer);
    return room;
}

static uint32_t NextSequence(Relation index, uint32_t count)
{
    Buffer buffer = VgReadPage(index, 0, BUFFER_LOCK_EXCLUSIVE);
    VgCheckMeta(index, BufferGetPage(buffer));
    GenericXLogState *state = GenericXLogStart(index);
    Meta *meta = MetaOf(GenericXLogRegisterBuffer(state, buffer, 0));
    uint32_t first = meta->delta_sequence + 1;
    meta->delta_sequence += count;
    GenericXLogFinish(state);
    UnlockReleaseBuffer(buffer);
    return first;
}

/* Writes the vector to a chain of overflow pages, last page first, so that a page is whole before anything points to it. */
static OverflowPointer WriteOverflow(Relation index, const uint8_t *row, uint32_t row_size)
{
    constexpr uint32_t part = kPayloadBytes - sizeof(OverflowHeader);
    uint32_t pages = (row_size + part - 1) / part;
    uint32_t sequence = NextSequence(index, pages);
    OverflowPointer next = {kNoBlock, 0};
    for (uint32_t i = pages; i-- > 0;) {
        uint32_t bytes = i == pages - 1 ? row_size - i * part : part;
        Buffer buffer = VgTakePage(index);
        GenericXLogState *state = GenericXLogStart(index);
        Page page = GenericXLogRegisterBuffer(state, buffer, GENERIC_XLOG_FULL_IMAGE);
        VgInitPage(page, PageKind::Overflow, 0, sequence + i, 0);
        OverflowHeader header = {next.block, next.sequence};
        memcpy(Payload(page), &header, sizeof(header));
        memcpy(Payload(page) + sizeof(header), row + static_cast<size_t>(i) * part, bytes);
        SetPayloadUsed(page, sizeof(header) + bytes);
        GenericXLogFinish(state);
        next = {BufferGetBlockNumber(buffer), sequence + i};
        UnlockReleaseBuffer(buffer);
    }
    return next;
}

uint32_t VgDeltaAppend(Relation index, const RowId &id, const uint8_t *row, uint32_t row_size, DeltaCursor *cursor)
{
    uint32_t chain = VgProcessNumber() % kDeltaChains;
    uint32_t capacity = delta_capacity(row_size);
    OverflowPointer pointer;
    const OverflowPointer *overflow = nullptr;
    if (delta_overflows(row_size)) {
        pointer = WriteOverflow(index, row, row_size);
        overflow = &pointer;
    }

    /* The usual case: the page that we know of is still the tail and has room. Else the metapage knows the tail. */
    NewRow added = {id, row, row_size, overflow};
    if (cursor->block != kNoBlock && AppendToTail(index, chain, *cursor, added))
        return 0;
    Meta meta;
    VgReadMeta(index, &meta);
    DeltaCursor known = {meta.chains[chain].tail_block, meta.chains[chain].tail_sequence};
    if (known.block != kNoBlock && (known.block != cursor->block || known.sequence != cursor->sequence) &&
        AppendToTail(index, chain, known, added)) {
        *cursor = known;
        return 0;
    }

    /*
     * Add a page. It is taken before the metapage is locked, since taking it may extend the file; nobody else can reach
     * it, so holding it first is safe. Metapage, old tail and new page change in one WAL record.
     */
    Buffer new_buffer = VgTakePage(index);
    Buffer meta_buffer = VgReadPage(index, 0, BUFFER_LOCK_EXCLUSIVE);
    const Meta *current = VgCheckMeta(index, BufferGetPage(meta_buffer));
    DeltaChain tail = current->chains[chain];
    Buffer tail_buffer = InvalidBuffer;
    if (tail.tail_block != kNoBlock) {
        tail_buffer = VgReadPage(index, tail.tail_block, BUFFER_LOCK_EXCLUSIVE);
        Page page = BufferGetPage(tail_buffer);
        if (!IsDelta(page, chain, tail.tail_sequence) || HeaderOf(page)->next_block != kNoBlock)
            VgCorrupt(index, tail.tail_block, "not the tail of its delta chain");
        if (HeaderOf(page)->rows < capacity) {
            /* Another session with our chain added one meanwhile. Give ours back. */
            LogRow(index, tail_buffer, added);
            UnlockReleaseBuffer(tail_buffer);
            UnlockReleaseBuffer(meta_buffer);
            BlockNumber unused = BufferGetBlockNumber(new_buffer);
            UnlockReleaseBuffer(new_buffer);
            RecordFreeIndexPage(index, unused);
            *cursor = {tail.tail_block, tail.tail_sequence};
            return 0;
        }
    }

    GenericXLogState *state = GenericXLogStart(index);
    Meta *changed = MetaOf(GenericXLogRegisterBuffer(state, meta_buffer, 0));
    BlockNumber block = BufferGetBlockNumber(new_buffer);
    uint32_t sequence = ++changed->delta_sequence;
    if (tail_buffer != InvalidBuffer) {
        DeltaHeader *header = HeaderOf(GenericXLogRegisterBuffer(state, tail_buffer, 0));
        header->next_block = block;
        header->next_sequence = sequence;
    }
    Page page = GenericXLogRegisterBuffer(state, new_buffer, GENERIC_XLOG_FULL_IMAGE);
    VgInitPage(page, PageKind::Delta, 0, sequence, changed->epoch);
    DeltaHeader header = {kNoBlock, 0, 0, static_cast<uint16_t>(chain), 0};
    memcpy(HeaderOf(page), &header, sizeof(header));
    PutRow(page, added);

    DeltaChain *entry = &changed->chains[chain];
    if (entry->head_block == kNoBlock) {
        entry->head_block = block;
        entry->head_sequence = sequence;
        entry->head_row = 0;
    }
    entry->tail_block = block;
    entry->tail_sequence = sequence;
    entry->pages++;
    uint32_t pages = 0;
    for (const DeltaChain &each : changed->chains)
        pages += each.pages;
    GenericXLogFinish(state);
    if (tail_buffer != InvalidBuffer)
        UnlockReleaseBuffer(tail_buffer);
    UnlockReleaseBuffer(meta_buffer);
    UnlockReleaseBuffer(new_buffer);
    *cursor = {block, sequence};
    return pages;
}

/* ---- read ---- */

/* Copies a vector from its overflow pages; false if one was recycled. */
static bool ReadOverflow(Relation index, OverflowPointer next, uint32_t row_size, uint8_t *out)
{
    constexpr uint32_t part = kPayloadBytes - sizeof(OverflowHeader);
    for (uint32_t done = 0; done < row_size;) {
        if (next.block == kNoBlock)
            VgCorrupt(index, 0, "overflow chain ends early");
        uint32_t bytes = row_size - done < part ? row_size - done : part;
        Buffer buffer = VgReadPage(index, next.block, BUFFER_LOCK_SHARE);
        Page page = BufferGetPage(buffer);
        if (!VgPageIs(page, PageKind::Overflow) || Trailer(page)->sequence != next.sequence) {
            UnlockReleaseBuffer(buffer);
            return false;
        }
        OverflowHeader header;
        memcpy(&header, Payload(page), sizeof(header));
        memcpy(out + done, Payload(page) + sizeof(header), bytes);
        UnlockReleaseBuffer(buffer);
        next = {header.next_block, header.next_sequence};
        done += bytes;
    }
    return true;
}

bool VgDeltaScan(Relation index, const Meta &meta, uint32_t chain_number, bool with_vectors, DeltaVisitor visitor,
                 void *context, DeltaEnd *end)
{
    const DeltaChain &chain = meta.chains[chain_number];
    if (end != nullptr)
        *end = {chain.head_block, chain.head_sequence, chain.head_row, 0};
    if (chain.head_block == kNoBlock || meta.dimensions == 0)
        return true;

    uint32_t row_size = static_cast<uint32_t>(row_bytes(meta.storage, meta.dimensions));
    uint32_t stride = delta_stride(row_size);
    uint8_t *scratch = delta_overflows(row_size) && with_vectors ? static_cast<uint8_t *>(palloc(row_size)) : nullptr;
    PGAlignedBlock copy; /* overflow vectors are read with no other page locked */
    uint32_t block = chain.head_block;
    uint32_t sequence = chain.head_sequence;
    uint32_t first = chain.head_row;
    RecentBuffers *recent = VgRecentBuffers(index);
    uint32_t ahead = (1024 + stride - 1) / stride * stride; /* bytes to be on their way: some rows of at least a kilobyte */
    bool whole = true;
    bool stopped = false;
    uint32_t passed = 0;
    while (block != kNoBlock && !stopped) {
        CHECK_FOR_INTERRUPTS();
        Buffer buffer = VgReadRecent(index, recent, block);
        LockBuffer(buffer, BUFFER_LOCK_SHARE);
        Page page = BufferGetPage(buffer);
        if (!IsDelta(page, chain_number, sequence)) {
            UnlockReleaseBuffer(buffer);
            whole = false;
            break;
        }
        DeltaHeader header = *HeaderOf(page);
        if (header.rows > delta_capacity(row_size)) {
            UnlockReleaseBuffer(buffer);
            VgCorrupt(index, block, "more delta rows than fit on a page");
        }
        /* Rows are read once, in order, but each page begins a run of its own: ask for the next rows and for the next page's first. */
        if (header.next_block != kNoBlock)
            VgPrefetch(recent, header.next_block, kPageHeaderBytes, ahead < kPayloadBytes ? ahead : kPayloadBytes);
        if (scratch != nullptr) {
            memcpy(copy.data, page, kPageBytes);
            LockBuffer(buffer, BUFFER_LOCK_UNLOCK);
            page = copy.data;
        }
        uint32_t visited = first > header.rows ? header.rows : first;
        for (uint32_t i = first; i < header.rows; i++) {
            const uint8_t *at = RowsOf(page) + static_cast<size_t>(i) * stride;
            for (uint32_t line = 0; line < stride && with_vectors; line += 64)
                __builtin_prefetch(at + ahead + line);
            DeltaVisit visit;
            memcpy(&visit.id, at, sizeof(RowId));
            memcpy(&visit.meta, at + sizeof(RowId), sizeof(uint16_t));
            visit.vector = at + sizeof(DeltaRow);
            if (scratch != nullptr) {
                OverflowPointer pointer;
                memcpy(&pointer, visit.vector, sizeof(pointer));
                whole = ReadOverflow(index, pointer, row_size, scratch);
                visit.vector = scratch;
                if (!whole)
                    break;
            }
            visit.block = block;
            stopped = !visitor(context, visit);
            if (stopped)
                break;
            visited = i + 1;
        }
        if (scratch != nullptr)
            ReleaseBuffer(buffer);
        else
            UnlockReleaseBuffer(buffer);
        if (!whole)
            break;
        if (end != nullptr)
            *end = {block, sequence, visited, passed};
        Advance(index, header, &block, &sequence);
        first = 0;
        passed++;
    }
    if (scratch != nullptr)
        pfree(scratch);
    return whole;
}

uint64_t VgDeltaRows(Relation index, const Meta &meta)
{
    uint64_t rows = 0;
    for (uint32_t chain = 0; chain < kDeltaChains; chain++) {
        uint32_t block = meta.chains[chain].head_block;
        uint32_t sequence = meta.chains[chain].head_sequence;
        uint32_t first = meta.chains[chain].head_row;
        while (block != kNoBlock) {
            CHECK_FOR_INTERRUPTS();
            Buffer buffer = VgReadPage(index, block, BUFFER_LOCK_SHARE);
            Page page = BufferGetPage(buffer);
            if (!IsDelta(page, chain, sequence)) {
                UnlockReleaseBuffer(buffer);
                break;
            }
            DeltaHeader header = *HeaderOf(page);
            UnlockReleaseBuffer(buffer);
            rows += header.rows - (first < header.rows ? first : header.rows);
            Advance(index, header, &block, &sequence);
            first = 0;
        }
    }
    return rows;
}

/* ---- vacuum ---- */

uint64_t VgDeltaVacuum(Relation index, IndexBulkDeleteCallback callback, void *state, uint64_t *removed)
{
    Meta meta;
    VgReadMeta(index, &meta);
    uint64_t kept = 0;
    uint32_t stride = meta.dimensions == 0 ? 0 : delta_stride(static_cast<uint32_t>(row_bytes(meta.storage, meta.dimensions)));
    for (uint32_t chain = 0; chain < kDeltaChains && stride != 0; chain++) {
        /* The structure lock keeps pages from being removed; inserts only append rows that are not dead. */
        uint32_t block = meta.chains[chain].head_block;
        uint32_t sequence = meta.chains[chain].head_sequence;
        uint32_t first = meta.chains[chain].head_row;
        while (block != kNoBlock) {
            VgVacuumDelayPoint();
            Buffer buffer = VgReadPage(index, block, BUFFER_LOCK_EXCLUSIVE);
            Page page = BufferGetPage(buffer);
            if (!IsDelta(page, chain, sequence))
                VgCorrupt(index, block, "not a page of its delta chain");
            DeltaHeader header = *HeaderOf(page);
            GenericXLogState *log = nullptr;
            for (uint32_t i = first; i < header.rows; i++) {
                DeltaRow row;
                memcpy(&row, RowsOf(page) + static_cast<size_t>(i) * stride, sizeof(row));
                if ((row.meta & kRowStateMask) != kRowLive)
                    continue;
                ItemPointerData tid = TidOf(row.row);
                if (!callback(&tid, state)) {
                    kept++;
                    continue;
                }
                if (log == nullptr) {
                    log = GenericXLogStart(index);
                    page = GenericXLogRegisterBuffer(log, buffer, 0);
                }
                row.meta = static_cast<uint16_t>((row.meta & ~kRowStateMask) | kRowDead);
                memcpy(RowsOf(page) + static_cast<size_t>(i) * stride, &row, sizeof(row));
                (*removed)++;
            }
            if (log != nullptr)
                GenericXLogFinish(log);
            UnlockReleaseBuffer(buffer);
            Advance(index, header, &block, &sequence);
            first = 0;
        }
    }
    return kept;
}

/* Frees the overflow pages of rows [0, rows) of a delta page, of which `page` is a copy. */
static void FreeOverflow(Relation index, Page page, uint32_t rows, uint32_t stride)
{
    for (uint32_t i = 0; i < rows; i++) {
        OverflowPointer next;
        memcpy(&next, RowsOf(page) + static_cast<size_t>(i) * stride + sizeof(DeltaRow), sizeof(next));
        while (next.block != kNoBlock) {
            Buffer buffer = VgReadPage(index, next.block, BUFFER_LOCK_SHARE);
            Page content = BufferGetPage(buffer);
            bool ours = VgPageIs(content, PageKind::Overflow) && Trailer(content)->sequence == next.sequence;
            OverflowHeader link = {kNoBlock, 0};
            if (ours)
                memcpy(&link, Payload(content), sizeof(link));
            UnlockReleaseBuffer(buffer);
            if (!ours)
                break; /* freed by an earlier flush of the same page */
            VgFreePage(index, next.block);
            next = {link.next_block, link.next_sequence};
        }
    }
}

bool VgDeltaFree(Relation index, const DeltaChain &from, const DeltaEnd &to, uint32_t row_size)
{
    uint32_t block = from.head_block;
    uint32_t sequence = from.head_sequence;
    uint32_t stride = delta_stride(row_size);
    bool freed = false;
    while (block != kNoBlock && (block != to.block || delta_overflows(row_size))) {
        Buffer buffer = VgReadPage(index, block, BUFFER_LOCK_SHARE);
        Page page = BufferGetPage(buffer);
        if (!VgPageIs(page, PageKind::Delta) || Trailer(page)->sequence != sequence)
            VgCorrupt(index, block, "not a page of its delta chain");
        PGAlignedBlock copy;
        memcpy(copy.data, page, kPageBytes);
        UnlockReleaseBuffer(buffer);
        DeltaHeader header = *HeaderOf(copy.data);
        bool last = block == to.block;
        if (delta_overflows(row_size))
            FreeOverflow(index, copy.data, last ? to.rows : header.rows, stride);
        if (last)
            break;
        VgFreePage(index, block);
        freed = true;
        Advance(index, header, &block, &sequence);
    }
    return freed || delta_overflows(row_size);
}

} // namespace vecgpu
