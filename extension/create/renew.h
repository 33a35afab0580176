// New lists for an index whose rows have outgrown those that it has, in VACUUM.
#pragma once

#include "extension/compat.h"

extern "C" {
#include "storage/buf.h"
#include "utils/rel.h"
}

namespace pgwarp {

// Empties lists that were replaced, or that an earlier VACUUM left unfinished. Then trains a model,
// encodes all rows into lists of it and replaces the current ones, where these were planned for far
// fewer rows, or far more, or for other ones. Returns whether it did.
bool renew_lists(Relation index, BufferAccessStrategy ring);

}  // namespace pgwarp
