// Changes of whole pages: a model that VACUUM writes, and pages that belong to nothing.
#pragma once

#include "extension/index/page.h"

namespace pgwarp {

// Extends the index by a contiguous run of pages; they are empty until written.
BlockNumber extend_by(Relation index, BlockNumber pages);

// Overwrites one page of such a run with an image, in one WAL record.
void write_page(Relation index, BlockNumber block, Page image);

// A metapage to write over another: it keeps that one's `pending`, pages and other lists.
MetaPage written_over(const MetaPage& trained, const MetaPage& now);
// Replaces the metapage so.
void write_training(Relation index, const MetaPage& trained);

void write_other_lists(Relation index, const OtherLists& other);
// Before lists without rows that old snapshots see become the current ones, and before lists are
// emptied that scans with old snapshots may read: standbys end the queries whose snapshots are from
// before `last`, the next one now or earlier. `block` is told in messages.
void log_conflict(Relation index, BlockNumber block, FullTransactionId last);

// Writes what `changed` has learned. False: the metapage is not as `seen` any more, in its curve or
// in what was learned, or its format has no place for it.
bool write_learned(Relation index, const MetaPage& seen, const MetaPage& changed);

// Counts entries that VACUUM has removed.
void add_removed_rows(Relation index, double rows);

// Notes why entries stay pending, unless the metapage says so already; an empty message: they need
// not any more.
void write_pending_reason(Relation index, const char* message);

// Puts pages that belong to no structure, after a crash or an error, into the free list. Returns
// how many.
BlockNumber reclaim_lost_pages(Relation index, const MetaPage& meta);

}  // namespace pgwarp
