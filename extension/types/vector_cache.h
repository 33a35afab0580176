// Vectors that a scan has just read, for the expressions that are about to read them again.
//
// ORDER BY v <-> q makes the executor compute the distance of every row it returns, although the
// scan has computed it already. Where vectors lie outside of their rows, reading one costs more
// than the whole rest. So a scan lets its vectors be found by their TOAST pointers, as long as its
// snapshot protects them: until its next round, or its end.
#pragma once

#include "extension/util/scratch.h"
#include "extension/types/vector.h"

namespace pgwarp {

// Lives, and can be found, until its memory context is reset. Vectors are kept in the scratch
// memory as long as that has room, behind everything else that is allocated there until they are
// cleared.
struct VectorCache;
VectorCache* open_vector_cache(MemoryContext context, Scratch* scratch);
void clear_vector_cache(VectorCache* cache);

// Keeps a copy of the vector that this datum, an external value, was read as. Does nothing for
// other datums, and once the cache is full.
void keep_vector(VectorCache* cache, Datum datum, const Vector* vector);

// The vector of a datum, to be read only: from a cache, or else as datum_get_vector.
const Vector* find_vector(Datum datum);

}  // namespace pgwarp
