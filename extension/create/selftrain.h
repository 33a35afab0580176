// An untrained index trains itself in the VACUUM that finds enough rows.
#pragma once

#include "extension/index/format.h"

extern "C" {
#include "storage/bufmgr.h"
#include "utils/rel.h"
}

namespace pgwarp {

// Trains a model if enough pending rows are visible, directs new entries to its lists, and moves
// the pending ones there. Pages that are read once go through the ring of buffers.
void train_in_place(Relation index, BufferAccessStrategy ring);

// Moves what is left in the pending list of a trained index: after an interrupted training, or rows
// whose insertion began before the training.
void move_pending(Relation index, BufferAccessStrategy ring);

}  // namespace pgwarp
