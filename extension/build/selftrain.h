// An untrained index trains itself in the VACUUM that finds enough rows.
#pragma once

#include "extension/index/format.h"

extern "C" {
#include "storage/bufmgr.h"
#include "utils/rel.h"
}

namespace pgwarp {

// How many entries the pending list has. For VACUUM.
double pending_rows(Relation index, const MetaPage& meta);

// Makes a model where enough of the pending rows can be seen, lets new entries go to its lists, and
// moves the pending ones there. Pages that are read once go through the ring of buffers.
void train_in_place(Relation index, BufferAccessStrategy ring);

// Moves what is left in the pending list of a trained index: a training that was cut short, or
// rows whose insertion began before it.
void move_pending(Relation index, BufferAccessStrategy ring);

}  // namespace pgwarp
