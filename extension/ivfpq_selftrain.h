// An untrained index trains itself in the VACUUM that finds enough rows.
#pragma once

#include "extension/ivfpq_format.h"

extern "C" {
#include "utils/rel.h"
}

namespace pgwarp {

// How many entries the pending list has. For VACUUM.
double pending_rows(Relation index, const MetaPage& meta);

// Makes a model, lets new entries go to its lists, and moves the pending ones there.
void train_in_place(Relation index);

// Moves what is left in the pending list of a trained index: a training that was cut short, or
// rows whose insertion began before it.
void move_pending(Relation index);

}  // namespace pgwarp
