// An untrained index trains itself in the VACUUM that finds enough rows.
#pragma once

#include "kernels/quantizer.h"
#include "extension/create/plan.h"
#include "extension/create/sample.h"
#include "extension/index/format.h"

extern "C" {
#include "storage/bufmgr.h"
#include "utils/rel.h"
}

namespace pgwarp {

// Trains a model if enough pending rows are visible, directs new entries to its lists, and moves
// the pending ones there. Pages that are read once go through the ring of buffers.
void train_in_place(Relation index, BufferAccessStrategy ring);

// Trains a model and writes it to new pages. Sets its fields of `meta`, and the build's.
Quantizer train_and_write(Relation index, const TrainingPlan& plan, Sample* sample, MetaPage* meta);
// Reads `rows` of the drawn rows, in physical order.
Sample read_drawn(Relation heap, Relation index, const MetaPage& meta, Sample* drawn, uint32 rows,
                  Random* random);

// Moves what is left in the pending list of a trained index: after an interrupted training, or rows
// whose insertion began before the training.
void move_pending(Relation index, BufferAccessStrategy ring);

}  // namespace pgwarp
