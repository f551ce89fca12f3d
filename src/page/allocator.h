/*
 * allocator.h: memory contexts as the allocators that core/ asks for.
 */
#pragma once

#include "core/memory.h"
#include "pg/pg.h"

namespace vecgpu {

/* Raises an error when there is no memory. */
Allocator VgAllocator(MemoryContext context);

/* Returns null then. */
Allocator VgTryAllocator(MemoryContext context);

} // namespace vecgpu
