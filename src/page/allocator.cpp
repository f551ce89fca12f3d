/*
 * allocator.cpp: see allocator.h.
 */
#include "page/allocator.h"

namespace vecgpu {

static void *Allocate(void *context, size_t bytes)
{
    return MemoryContextAllocHuge(static_cast<MemoryContext>(context), bytes);
}

static void *TryAllocate(void *context, size_t bytes)
{
    return MemoryContextAllocExtended(static_cast<MemoryContext>(context), bytes, MCXT_ALLOC_HUGE | MCXT_ALLOC_NO_OOM);
}

static void Release(void *context, void *pointer)
{
    (void) context;
    pfree(pointer);
}

Allocator VgAllocator(MemoryContext context)
{
    return {context, Allocate, Release};
}

Allocator VgTryAllocator(MemoryContext context)
{
    return {context, TryAllocate, Release};
}

} // namespace vecgpu
