// Allocations of megabytes, on huge pages where the system has them: the page fault on the first
// touch of a 4 kB page costs about as much as writing the page.
#pragma once

#include <sys/mman.h>

#include "extension/compat.h"

extern "C" {
#include "utils/memutils.h"
}

namespace pgwarp {

inline void* alloc_large(MemoryContext context, Size bytes) {
    constexpr uintptr_t page = uintptr_t{2} << 20;
    void* memory = MemoryContextAllocHuge(context, Max(bytes, Size{1}));
    const uintptr_t first = TYPEALIGN(page, reinterpret_cast<uintptr_t>(memory));
    const uintptr_t end = TYPEALIGN_DOWN(page, reinterpret_cast<uintptr_t>(memory) + bytes);
    // Only a hint: where the kernel refuses, the memory has small pages.
    if (first < end) (void)madvise(reinterpret_cast<void*>(first), end - first, MADV_HUGEPAGE);
    return memory;
}

// Pages to write to a file. Direct I/O bypasses the kernel's cache, and wants them aligned so.
inline char* alloc_pages(Size count) {
    constexpr Size alignment = 4096;
    return reinterpret_cast<char*>(TYPEALIGN(alignment, palloc(count * BLCKSZ + alignment)));
}

}  // namespace pgwarp
