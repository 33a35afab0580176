// Memory that the scans of a backend use one after another.
//
// A scan needs some large pieces (its table, its candidates) for a fraction of a millisecond.
// Memory contexts give such pieces back to the system, page by page, only to fault them in again
// for the next query. So a backend keeps one block of scratch memory. Who opens it while it is
// taken, and whoever wants more than it has, gets memory from a context as usual.
#pragma once

#include "extension/compat.h"

namespace pgwarp {

struct Scratch;

// Ends when the context is reset or deleted; what was allocated from it ends then too.
Scratch* open_scratch(MemoryContext context);
void* scratch_alloc(Scratch* scratch, Size bytes);
// From the block alone: null where it has no room.
void* scratch_try_alloc(Scratch* scratch, Size bytes);

// A larger piece with the contents of the old one (null: none), which ends.
void* scratch_grow(Scratch* scratch, void* old, Size old_bytes, Size bytes);

// Pieces of the block that were allocated after a mark end with a return to it.
Size scratch_mark(const Scratch* scratch);
void scratch_return(Scratch* scratch, Size mark);

template <typename T>
T* scratch_array(Scratch* scratch, Size count) {
    return static_cast<T*>(scratch_alloc(scratch, Max(count, Size{1}) * sizeof(T)));
}

}  // namespace pgwarp
