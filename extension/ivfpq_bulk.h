// Writing the pages of a new index, which nobody else can see yet: no WAL until it is whole.
#pragma once

#include "kernels/quantizer.h"
#include "extension/ivfpq_format.h"
#include "extension/ivfpq_page.h"

extern "C" {
#include "utils/rel.h"
}

namespace pgwarp {

struct BulkWriter {
    Relation index;
    MetaPage meta;
    BlockNumber end;    // pages written
    uint32 list;        // under way
    ListPlace place;    // of it
    ListPlace* places;  // (lists)
    double rows;
    bool body_is_logged;
    // The last page of the list under way, which will be block `end`. It is no buffer yet: between
    // two entries runs the code of users' expressions, which must not find a page locked.
    PGAlignedBlock page;
};

// Starts with the metapage and, in a trained index, the model; the pages follow each other.
BulkWriter* begin_bulk(Relation index, const MetaPage& meta, const Quantizer* model);

// Entries come list by list. In an untrained index all go to the pending list.
void bulk_entry(BulkWriter* writer, uint32 list, const Entry& entry);

// A whole page of a list, the next of the index: see bulk_lists.h.
void bulk_page(BulkWriter* writer, BlockNumber block, Page image);

// Ends the last list and writes the directory: from here on the index can be read. bulk_meta
// changes the metapage again, bulk_log puts the whole index into WAL, or what is left of it:
// bulk_log_body did so with all but the metapage, which may still change.
void end_bulk_lists(BulkWriter* writer);
void bulk_meta(BulkWriter* writer, const MetaPage& meta);
void bulk_log_body(BulkWriter* writer);
void bulk_log(BulkWriter* writer);

// The metapage of an index that has no rows, as the init fork of an unlogged one.
void write_init_fork(Relation index, const MetaPage& meta);

uint64 new_build_id();

// Whether the system has what training of rotations needs; reports at this level where it lacks it.
bool check_lapack(const char* quantizer, int report_level);

// What is known of an index before any row was seen.
MetaPage new_meta(Relation index);

}  // namespace pgwarp
