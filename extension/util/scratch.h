// Memory that the scans of a backend use one after another.
//
// A scan needs some large allocations (its table, its candidates) for a fraction of a millisecond.
// Memory contexts return such allocations to the system, and the next query pays for the page
// faults again. So a backend keeps a large block of scratch memory, and small ones for scans that
// are open beside the first. A scan that finds no free block, or that needs more than its block
// holds, allocates from its memory context.
#pragma once

#include "extension/compat.h"

namespace pgwarp {

struct Scratch;

// Closed when the context is reset or deleted; all allocations from it end then, too.
Scratch* open_scratch(MemoryContext context);
void* scratch_alloc(Scratch* scratch, Size bytes);
// From the block alone: null where it has no room.
void* scratch_try_alloc(Scratch* scratch, Size bytes);

// Allocates `bytes` and copies the old piece (null: none), which is invalid afterwards.
void* scratch_grow(Scratch* scratch, void* old, Size old_bytes, Size bytes);

// scratch_return() frees what was allocated from the block after the mark.
Size scratch_mark(const Scratch* scratch);
void scratch_return(Scratch* scratch, Size mark);

template <typename T>
T* scratch_array(Scratch* scratch, Size count) {
    return static_cast<T*>(scratch_alloc(scratch, Max(count, Size{1}) * sizeof(T)));
}

}  // namespace pgwarp
