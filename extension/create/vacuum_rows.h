// Reading rows of the table inside VACUUM, for training and for measuring.
#pragma once

#include "extension/compat.h"

extern "C" {
#include "storage/buf.h"
#include "utils/rel.h"
#include "utils/snapshot.h"
}

namespace pgwarp {

// State while VACUUM reads rows. The table is opened without a lock of its own: VACUUM holds one.
struct VacuumRows {
    Relation heap;
    bool was_exempt;
    MemoryContext context;  // current until end_vacuum_rows(), which deletes it
    MemoryContext before;
};
VacuumRows begin_vacuum_rows(Relation index);
void end_vacuum_rows(VacuumRows* rows);
// While exempt, rows that only this VACUUM's snapshots may see count as dead. Do not read vectors
// then. Only where VACUUM was exempt before.
void set_exempt(const VacuumRows& rows, bool exempt);

// Why a VACUUM in parallel mode must leave work on rows to a later one; null: it need not. Users'
// code may do what PostgreSQL forbids there: catch an error, for one. The work evaluates the
// index's expressions, and maybe its predicate or its attributes.
struct RowWork {
    bool predicate;
    bool attributes;
};
const char* reason_to_wait(Relation index, RowWork work);

// Calls `work`. If an expression or the predicate of the index fails in it, as it does where a
// function that it calls finds no table in VACUUM's search_path, the error becomes a warning, and
// VACUUM goes on with the table's other indexes. What `work` wrote to the index stays written.
void try_row_work(Relation index, void (*work)(Relation index, BufferAccessStrategy ring),
                  BufferAccessStrategy ring);

// A registered snapshot of what is committed now. VACUUM's own snapshot is from before
// begin_vacuum_rows() and does not hold back the removal of dead rows; GetLatestSnapshot() is
// forbidden in a VACUUM with parallel workers.
Snapshot fresh_snapshot();

}  // namespace pgwarp
