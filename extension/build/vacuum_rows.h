// Reading rows of the table inside VACUUM, for training and for measuring.
#pragma once

#include "extension/compat.h"

extern "C" {
#include "utils/rel.h"
#include "utils/snapshot.h"
}

namespace pgwarp {

// While VACUUM reads rows: the table, opened as VACUUM has locked it.
struct VacuumRows {
    Relation heap;
    bool was_exempt;
    MemoryContext context;  // current until the end, and deleted then
    MemoryContext before;
};
VacuumRows begin_vacuum_rows(Relation index);
void end_vacuum_rows(VacuumRows* rows);

// What others have committed by now: neither VACUUM's own snapshot, from before it was seen to look
// at rows, nor GetLatestSnapshot(), which a VACUUM with parallel workers must not call. Registered.
Snapshot fresh_snapshot();

}  // namespace pgwarp
