// Appending finished pages to a relation that this transaction created, past shared buffers, as
// PostgreSQL's own bulk loads do.
//
// Pages are logged whole, many in a record, unless the relation needs no WAL: then the transaction
// syncs the file before it commits, or a crash empties an unlogged table. Data may reach the file
// before its WAL: rows without a commit record are not visible.
#pragma once

#include "extension/compat.h"

extern "C" {
#include "access/xlogdefs.h"
#include "storage/bufpage.h"
#include "utils/rel.h"
}

namespace pgwarp {

struct BulkPages {
    static constexpr int at_once = 32;  // of one WAL record

    Relation relation;
    bool logged;
    XLogRecPtr redo;    // where recovery would begin when the first page was written
    BlockNumber first;  // block of pages[0]
    int count;
    char* pages;  // (at_once)(BLCKSZ)
};

// In the current memory context. The first page becomes the relation's next block.
BulkPages* open_bulk_pages(Relation relation);
// The number that the page of the next call of add_page() gets.
BlockNumber next_block(const BulkPages* pages);
// Memory for the next page, for the caller to fill before its next call of a function here.
Page add_page(BulkPages* pages);
// Writes the rest. An error is reported where others have appended to the relation. The pages
// survive a crash after the commit.
void close_bulk_pages(BulkPages* pages);

}  // namespace pgwarp
