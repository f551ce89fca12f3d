/*
 * recent.cpp: see recent.h.
 */
#include "page/recent.h"

namespace vecgpu {

namespace {

constexpr uint32_t kMaxBlocks = 4u << 20; /* 16 MB of numbers */
constexpr uint32_t kTouchEvery = 16;

struct Entry {
    Oid relation; /* hash key */
    VgFileNumber file;
    RecentBuffers recent;
};

HTAB *table = nullptr;

/* A block that was read before exists; of others a damaged page may have told us. */
void CheckBlock(Relation index, BlockNumber block)
{
    if (block >= RelationGetNumberOfBlocks(index))
        VgCorrupt(index, block, "the block lies beyond the end of the file");
}

} // namespace

RecentBuffers *VgRecentBuffers(Relation index)
{
    BlockNumber blocks = RelationGetNumberOfBlocks(index);
    if (index->rd_rel->relpersistence == RELPERSISTENCE_TEMP || blocks > kMaxBlocks)
        return nullptr;
    if (table == nullptr) {
        HASHCTL control;
        memset(&control, 0, sizeof(control));
        control.keysize = sizeof(Oid);
        control.entrysize = sizeof(Entry);
        control.hcxt = TopMemoryContext;
        table = hash_create("vecgpu recent buffers", 16, &control, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
    }
    Oid oid = RelationGetRelid(index);
    bool found;
    Entry *entry = static_cast<Entry *>(hash_search(table, &oid, HASH_ENTER, &found));
    if (!found)
        entry->recent = {nullptr, 0, 0};
    /* A stale number is only a miss, so a new file needs no more than an empty table. */
    if (!found || entry->file != VgFileNumberOf(index) || entry->recent.capacity < blocks) {
        Buffer *old = entry->recent.buffer;
        uint32_t capacity = blocks + blocks / 8 + 64;
        entry->file = VgFileNumberOf(index);
        entry->recent = {nullptr, 0, 0};
        if (old != nullptr)
            pfree(old);
        entry->recent.buffer = static_cast<Buffer *>(MemoryContextAllocExtended(
            TopMemoryContext, sizeof(Buffer) * capacity, MCXT_ALLOC_HUGE | MCXT_ALLOC_ZERO));
        entry->recent.capacity = capacity;
    }
    return &entry->recent;
}

Buffer VgReadRecent(Relation index, RecentBuffers *recent, BlockNumber block)
{
    if (recent == nullptr || block >= recent->capacity) {
        CheckBlock(index, block);
        return ReadBuffer(index, block);
    }
    Buffer last = recent->buffer[block];
    /* ReadRecentBuffer() does not count as a use for the replacement of buffers: now and then go the usual way. */
    if (last != InvalidBuffer && ++recent->reads % kTouchEvery != 0 &&
        ReadRecentBuffer(VgLocatorOf(index), MAIN_FORKNUM, block, last))
        return last;
    if (last == InvalidBuffer)
        CheckBlock(index, block);
    Buffer buffer = ReadBuffer(index, block);
    recent->buffer[block] = buffer;
    return buffer;
}

void VgPrefetch(const RecentBuffers *recent, BlockNumber block, uint32_t offset, uint32_t bytes)
{
    if (recent == nullptr || block >= recent->capacity || recent->buffer[block] == InvalidBuffer)
        return;
    Buffer buffer = recent->buffer[block];
    __builtin_prefetch(GetBufferDescriptor(buffer - 1), 1);
    const char *page = BufferGetPage(buffer);
    __builtin_prefetch(page + kPageBytes - sizeof(PageTrailer));
    for (uint32_t at = 0; at < bytes; at += 64)
        __builtin_prefetch(page + offset + at);
    __builtin_prefetch(page + offset + bytes - 1);
}

} // namespace vecgpu
