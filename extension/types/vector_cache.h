// A cache of vectors that a scan has just read, for expressions that read them again.
//
// ORDER BY v <-> q makes the executor compute the distance of every row it returns, although the
// scan has computed it already. Where vectors are in TOAST, reading one costs more than everything
// else. So a scan caches its vectors by their TOAST pointers for as long as its snapshot protects
// them, until its next round or its end. The cache holds values as their type stores them, of
// whichever type.
#pragma once

#include "extension/compat.h"
#include "extension/util/scratch.h"

namespace pgwarp {

// Lives, and is searched by find_value(), until its memory context is reset. Vectors are copied to
// the scratch memory while that has room. clear_vector_cache() returns the scratch memory to its
// mark before the first vector: what a caller allocates there after keep_value() ends, too.
struct VectorCache;
VectorCache* open_vector_cache(MemoryContext context, Scratch* scratch);
void clear_vector_cache(VectorCache* cache);

// Keeps a copy of the detoasted value that was read from this datum, a TOAST pointer. Does nothing
// for other datums, and once the cache is full.
void keep_value(VectorCache* cache, Datum datum, const varlena* value);

// The detoasted value of a datum, read-only: from a cache, or else read.
const varlena* find_value(Datum datum);

}  // namespace pgwarp
