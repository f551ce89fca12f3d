/*
 * heap.cpp: memory of the threaded builder.
 */
#include "core/build.h"

#include <cstdlib>
#include <sys/mman.h>

namespace vecgpu {

static void *heap_allocate(void *, size_t bytes)
{
    return malloc(bytes);
}

static void heap_release(void *, void *pointer)
{
    free(pointer);
}

const Allocator kHeap = {nullptr, heap_allocate, heap_release};

void advise_huge_pages(void *start, size_t bytes)
{
#ifdef MADV_HUGEPAGE
    constexpr uintptr_t kHuge = 2 << 20;
    uintptr_t from = (reinterpret_cast<uintptr_t>(start) + kHuge - 1) / kHuge * kHuge;
    uintptr_t to = (reinterpret_cast<uintptr_t>(start) + bytes) / kHuge * kHuge;
    if (from < to)
        madvise(reinterpret_cast<void *>(from), to - from, MADV_HUGEPAGE);
#else
    (void)start;
    (void)bytes;
#endif
}

} // namespace vecgpu
