// Writing the pages of a new index, which no other session can see yet: no WAL until it is
// complete.
#pragma once

#include "kernels/quantizer.h"
#include "extension/index/format.h"
#include "extension/index/page.h"

extern "C" {
#include "utils/rel.h"
}

namespace pgwarp {

// Called after list pages were written: all pages before `end` are in the file.
struct PageListener {
    void (*report)(void* state, BlockNumber end);
    void* state;
};

struct BulkWriter {
    Relation index;
    MetaPage meta;
    BlockNumber end;          // number of pages written
    BlockNumber lists_begin;  // first list page
    uint32 list;              // the list being written
    ListPlace place;          // place of `list`
    ListPlace* places;        // (directory_lists())
    double rows;
    PageListener listener;  // `report` may be null
    bool lists_are_logged;  // other processes log the list pages
    // The last page of `list`, which will be block `end`. It is not in a buffer yet: users'
    // expressions run between two entries, and must not run while a page is locked.
    Page page;
    char* refinements;  // its refinement pages, which will follow it
};

// Writes the metapage and, in a trained index, the model, on consecutive pages.
BulkWriter* begin_bulk(Relation index, const MetaPage& meta, const Quantizer* model);

// Entries come list by list. In an untrained index all go to the pending list; in a trained one,
// those that lie in the pending list come last.
void bulk_entry(BulkWriter* writer, uint32 list, const Entry& entry);

// Appends complete list pages, in block order, with their checksums. See bulk_lists.h.
void bulk_pages(BulkWriter* writer, BlockNumber first, char* pages, BlockNumber count);

// end_bulk_lists() ends the last list and writes the directory: from here on the index can be read.
// bulk_meta() changes the metapage again. bulk_log() writes the whole index to WAL, except list
// pages where lists_are_logged is set: other processes write those with log_pages().
void end_bulk_lists(BulkWriter* writer);
void bulk_meta(BulkWriter* writer, const MetaPage& meta);
void bulk_log(BulkWriter* writer);
void log_pages(Relation index, BlockNumber first, BlockNumber end);

// The init fork of an unlogged index: the metapage of an index without rows.
void write_init_fork(Relation index, const MetaPage& meta);

uint64 new_build_id();

// The metapage of a new index before any row was read.
MetaPage new_meta(Relation index);

}  // namespace pgwarp
