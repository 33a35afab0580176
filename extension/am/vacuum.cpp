// VACUUM: removes dead entries list by list, trains an untrained index that has enough rows, and
// measures recall again, or makes new lists, where many rows have changed.

#include "extension/am/callbacks.h"
#include "extension/index/format.h"
#include "extension/index/buffers.h"
#include "extension/create/measure.h"
#include "extension/create/renew.h"
#include "extension/index/list_changes.h"
#include "extension/index/page_changes.h"
#include "extension/index/place.h"
#include "extension/create/selftrain.h"
#include "extension/create/train.h"
#include "extension/create/vacuum_rows.h"
#include "extension/util/pause.h"

extern "C" {
#include "access/genam.h"
#include "commands/vacuum.h"
#include "storage/bufmgr.h"
}

namespace pgwarp {

namespace {

// The pages that the structures of the index claim to have.
double pages_in_use(Relation index, const MetaPage& meta) {
    double pages =
        1 + static_cast<double>(meta.pending.pages) + meta.free_pages + meta.refinement_pages;
    const auto add_lists = [&](const MetaPage& of) {
        if (of.lists == 0) return;
        pages += training_end(of) - of.centroids;
        for (uint32 list = 0; list < directory_lists(of); ++list)
            pages += read_place(index, of, list).pages;
    };
    add_lists(meta);
    add_lists(meta_of_other(meta));
    return pages;
}

// Trains an index that has enough rows now, finishes a training that was cut short, makes new lists
// for rows that have outgrown them, or measures again how much effort searches need.
void train_or_go_on(Relation index, BufferAccessStrategy ring) {
    const MetaPage meta = read_meta(index);
    if (meta.lists == 0) {
        if (count_entries(index, meta, pending_list) >= int64{least_rows_to_train_by_itself})
            train_in_place(index, ring);
        return;
    }
    if (meta.pending.pages > 0) move_pending(index, ring);
    if (renew_lists(index, ring) || !should_measure(index, meta, ring)) return;
    measure_in_place(index, ring);
    // It tells whether rows are still like those that the lists are for.
    renew_lists(index, ring);
}

}  // namespace

IndexBulkDeleteResult* ivfpq_bulk_delete(IndexVacuumInfo* info, IndexBulkDeleteResult* stats,
                                         IndexBulkDeleteCallback callback, void* callback_state) {
    Relation index = info->index;
    if (!stats) stats = static_cast<IndexBulkDeleteResult*>(palloc0(sizeof(IndexBulkDeleteResult)));
    Removal removal{callback, callback_state, 0, 0};
    read_through(info->strategy, [&] {
        const MetaPage meta = read_meta(index);
        // The pending list first: entries only move from there to other lists, which are read
        // later.
        vacuum_list(index, meta, pending_list, &removal);
        for (uint32 list = 0; list < directory_lists(meta); ++list)
            vacuum_list(index, meta, list, &removal);
    });
    add_removed_rows(index, removal.removed);
    stats->tuples_removed += removal.removed;
    stats->num_index_tuples = removal.kept;
    return stats;
}

IndexBulkDeleteResult* ivfpq_vacuum_cleanup(IndexVacuumInfo* info, IndexBulkDeleteResult* stats) {
    if (info->analyze_only) return stats;
    Relation index = info->index;
    if (!stats) {
        stats = static_cast<IndexBulkDeleteResult*>(palloc0(sizeof(IndexBulkDeleteResult)));
        stats->num_index_tuples = info->num_heap_tuples;
        stats->estimated_count = true;
    }
    try_row_work(index, train_or_go_on, info->strategy);
    read_through(info->strategy, [&] {
        const BlockNumber pages = RelationGetNumberOfBlocks(index);
        const MetaPage meta = read_meta(index);
        if (pages > pages_in_use(index, meta)) reclaim_lost_pages(index, meta);
        stats->num_pages = RelationGetNumberOfBlocks(index);
        stats->pages_free = read_meta(index).free_pages;
    });
    return stats;
}

}  // namespace pgwarp
