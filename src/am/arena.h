/*
 * arena.h: one growing, contiguous piece of memory outside of memory contexts, for arrays that worker threads read and write.
 *
 * Up to a limit it is anonymous memory. Beyond it the same addresses' contents move to an unlinked temporary file of
 * PostgreSQL's (temp_tablespaces, temp_file_limit), mapped into memory: the kernel then keeps as much of it in RAM as it
 * can afford, so a build that outgrows maintenance_work_mem slows down by what the disk costs and by nothing else.
 */
#pragma once

#include "pg/pg.h"

namespace vecgpu {

struct Arena {
    void *base; /* moves when the arena grows */
    size_t used;
    size_t size;
    size_t limit;   /* bytes of anonymous memory */
    File file;      /* -1: anonymous */
    bool keep;      /* the file may outlive the transaction that needs it first */
    MemoryContextCallback callback;
};

/* Empty; unmapped when the context is reset or deleted, so also on an error. The struct must live in that context. */
Arena *VgCreateArena(MemoryContext context, size_t limit);

/* Appends `bytes` zeroed bytes; returns their offset. */
size_t VgArenaExtend(Arena *arena, size_t bytes);

/* The same; returns their address, good until the next extension. */
inline void *VgArenaGrow(Arena *arena, size_t bytes)
{
    size_t offset = VgArenaExtend(arena, bytes);
    return static_cast<char *>(arena->base) + offset;
}

void VgFreeArena(Arena *arena);

} // namespace vecgpu
