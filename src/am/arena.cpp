/*
 * arena.cpp: see arena.h.
 */
#include <sys/mman.h>

#include "am/arena.h"

#include <fcntl.h>

namespace vecgpu {

static void Unmap(void *argument)
{
    Arena *arena = static_cast<Arena *>(argument);
    if (arena->base != nullptr)
        munmap(arena->base, arena->size);
    arena->base = nullptr;
    arena->size = arena->used = 0;
}

Arena *VgCreateArena(MemoryContext context, size_t limit)
{
    Arena *arena = static_cast<Arena *>(MemoryContextAllocZero(context, sizeof(Arena)));
    arena->limit = limit;
    arena->file = -1;
    arena->callback.func = Unmap;
    arena->callback.arg = arena;
    MemoryContextRegisterResetCallback(context, &arena->callback);
    return arena;
}

[[noreturn]] static void OutOfMemory(size_t bytes)
{
    ereport(ERROR, (errcode(ERRCODE_OUT_OF_MEMORY), errmsg("out of memory"),
                    errdetail("Failed on request of size %zu for an index build.", bytes)));
    pg_unreachable();
}

/* Grows the temporary file. Its blocks are allocated now: a store into a hole of a full disk would be a SIGBUS. */
static void GrowFile(Arena *arena, size_t size)
{
    if (temp_file_limit >= 0 && size / 1024 > static_cast<size_t>(temp_file_limit))
        ereport(ERROR, (errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
                        errmsg("temporary file size exceeds temp_file_limit (%dkB)", temp_file_limit)));
    int descriptor = FileGetRawDesc(arena->file);
    int error;
    do {
        error = posix_fallocate(descriptor, 0, static_cast<off_t>(size));
    } while (error == EINTR);
    if (error != 0) {
        errno = error;
        ereport(ERROR, (errcode_for_file_access(),
                        errmsg("could not extend temporary file to %zu bytes: %m", size)));
    }
}

/* Rows and lists are read at random: large pages save most of the address translation. Advice may be ignored. */
static void Advise(void *base, size_t size)
{
#ifdef MADV_HUGEPAGE
    madvise(base, size, MADV_HUGEPAGE);
#else
    (void) base;
    (void) size;
#endif
}

static void *Map(Arena *arena, size_t size)
{
    int flags = arena->file < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
    int descriptor = arena->file < 0 ? -1 : FileGetRawDesc(arena->file);
    void *base = mmap(nullptr, size, PROT_READ | PROT_WRITE, flags, descriptor, 0);
    if (base == MAP_FAILED)
        return nullptr;
    Advise(base, size);
    return base;
}

static void Resize(Arena *arena, size_t size)
{
    bool spill = arena->file < 0 && size > arena->limit;
    if (spill) {
        arena->file = OpenTemporaryFile(arena->keep);
        GrowFile(arena, size);
        void *base = Map(arena, size);
        if (base == nullptr)
            OutOfMemory(size);
        if (arena->used > 0)
            memcpy(base, arena->base, arena->used);
        if (arena->base != nullptr)
            munmap(arena->base, arena->size);
        arena->base = base;
        arena->size = size;
        return;
    }
    if (arena->file >= 0)
        GrowFile(arena, size);
    void *base;
    if (arena->base == nullptr) {
        base = Map(arena, size);
    } else {
#ifdef __linux__
        base = mremap(arena->base, arena->size, size, MREMAP_MAYMOVE);
        if (base == MAP_FAILED)
            base = nullptr;
        else
            Advise(base, size);
#else
        base = Map(arena, size);
        if (base != nullptr) {
            if (arena->file < 0)
                memcpy(base, arena->base, arena->used);
            munmap(arena->base, arena->size);
        }
#endif
    }
    if (base == nullptr)
        OutOfMemory(size);
    arena->base = base;
    arena->size = size;
}

size_t VgArenaExtend(Arena *arena, size_t bytes)
{
    if (bytes > SIZE_MAX / 4 - arena->used)
        OutOfMemory(bytes);
    size_t needed = arena->used + bytes;
    if (needed > arena->size) {
        size_t size = arena->size + arena->size / 2;
        if (arena->file < 0 && size > arena->limit && needed <= arena->limit)
            size = arena->limit;
        if (size < needed)
            size = needed;
        if (size < 64 * 1024)
            size = 64 * 1024;
        size = (size + 4095) & ~static_cast<size_t>(4095);
        Resize(arena, size);
    }
    size_t offset = arena->used;
    arena->used = needed;
    return offset;
}

void VgFreeArena(Arena *arena)
{
    Unmap(arena);
    if (arena->file >= 0)
        FileClose(arena->file);
    arena->file = -1;
}

} // namespace vecgpu
