// Writing the pages of a new index, which nobody else can see yet: no WAL until it is whole.
#pragma once

#include "kernels/quantizer.h"
#include "extension/index/format.h"
#include "extension/index/page.h"

extern "C" {
#include "utils/rel.h"
}

namespace pgwarp {

// Is told of pages of lists as they are written.
struct PageListener {
    void (*tell)(void* state, BlockNumber end);
    void* state;
};

struct BulkWriter {
    Relation index;
    MetaPage meta;
    BlockNumber end;          // pages written
    BlockNumber lists_begin;  // pages before those of lists
    uint32 list;              // under way
    ListPlace place;          // of it
    ListPlace* places;        // (lists)
    double rows;
    PageListener listener;  // `tell` may be null
    bool lists_are_logged;  // by somebody else
    // The last page of the list under way, which will be block `end`. It is no buffer yet: between
    // two entries runs the code of users' expressions, which must not find a page locked.
    Page page;
};

// Pages that can be written, and read, past all buffers.
char* alloc_pages(Size count);

// Starts with the metapage and, in a trained index, the model; the pages follow each other.
BulkWriter* begin_bulk(Relation index, const MetaPage& meta, const Quantizer* model);

// Entries come list by list. In an untrained index all go to the pending list.
void bulk_entry(BulkWriter* writer, uint32 list, const Entry& entry);

// Whole pages of lists, the next of the index, in the order of their blocks; each has its checksum.
// See bulk_lists.h.
void bulk_pages(BulkWriter* writer, BlockNumber first, char* pages, BlockNumber count);

// Ends the last list and writes the directory: from here on the index can be read. bulk_meta
// changes the metapage again, bulk_log puts the whole index into WAL, but for the pages of lists
// where lists_are_logged says so. log_pages() is what does so with some of those.
void end_bulk_lists(BulkWriter* writer);
void bulk_meta(BulkWriter* writer, const MetaPage& meta);
void bulk_log(BulkWriter* writer);
void log_pages(Relation index, BlockNumber first, BlockNumber end);

// The metapage of an index that has no rows, as the init fork of an unlogged one.
void write_init_fork(Relation index, const MetaPage& meta);

uint64 new_build_id();

// What is known of an index before any row was seen.
MetaPage new_meta(Relation index);

}  // namespace pgwarp
