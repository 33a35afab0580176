// Adding finished pages to a relation that this transaction created, past shared buffers, as
// PostgreSQL's own bulk loads do. One process adds blocks; any may fill them.
//
// Pages are logged whole, many in a record, unless the relation needs no WAL: then the transaction
// syncs the file before it commits, or a crash empties an unlogged table. Data may reach the file
// before its WAL: rows without a commit record are not visible.
#pragma once

#include "extension/compat.h"

extern "C" {
#include "access/xlogdefs.h"
#include "utils/rel.h"
}

namespace pgwarp {

// Of one WAL record.
inline constexpr int most_bulk_pages = 32;

struct BulkFile {
    Relation relation;
    XLogRecPtr redo;  // where recovery would begin when the first block was added
    BlockNumber end;
};
BulkFile begin_bulk_file(Relation relation);
// Returns the first of them. The last one is empty until it is written, the others are a gap in the
// file. Reports an error where others have written to the relation.
BlockNumber add_blocks(BulkFile* file, int count);
// All blocks are written. Their pages survive a crash after the commit.
void end_bulk_file(const BulkFile& file);

// Writes up to most_bulk_pages at blocks that were added.
void write_bulk_pages(Relation relation, BlockNumber first, int count, char* pages);

}  // namespace pgwarp
