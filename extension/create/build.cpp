// CREATE INDEX: sample, train, encode, write, measure.

#include <algorithm>

#include "kernels/executor.h"
#include "extension/guard.h"
#include "extension/create/bulk_lists.h"
#include "extension/device/executor.h"
#include "extension/create/build.h"
#include "extension/index/column.h"
#include "extension/index/format.h"
#include "extension/create/bulk.h"
#include "extension/curve/curve.h"
#include "extension/create/encode.h"
#include "extension/index/lists.h"
#include "extension/index/page.h"
#include "extension/create/parallel.h"
#include "extension/create/progress.h"
#include "extension/create/train.h"
#include "extension/table/planned.h"

extern "C" {
#include "access/tableam.h"
#include "catalog/index.h"
#include "commands/progress.h"
#include "miscadmin.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"
}

namespace pgwarp {

namespace {

// --- an index without a model

void bulk_pending_row(Relation, ItemPointer tid, Datum*, bool* nulls, bool, void* writer) {
    if (!nulls[0])
        bulk_entry(static_cast<BulkWriter*>(writer), pending_list, {*tid, 0, nullptr, nullptr});
}

// An index of a table whose rows are elsewhere has none to train with, ever. PostgreSQL plans no
// query of a table while one of its indexes is rebuilt: an empty table is not worth a notice then.
bool has_rows_elsewhere(Relation heap, Relation index, double rows) {
    if (ReindexIsProcessingIndex(RelationGetRelid(index)))
        return rows == 0 && is_planned_by_others();
    return where_rows_are(RelationGetRelid(heap)) == RowsAre::elsewhere;
}

IndexBuildResult build_untrained(Relation heap, Relation index, IndexInfo* info,
                                 const MetaPage& meta) {
    BulkWriter* writer = begin_bulk(index, meta, nullptr);
    IndexBuildResult result = {};
    report_phase(BuildPhase::write);
    result.heap_tuples =
        table_index_build_scan(heap, index, info, false, true, bulk_pending_row, writer, nullptr);
    end_bulk_lists(writer);
    report_phase(BuildPhase::log);
    bulk_log(writer);
    result.index_tuples = writer->rows;
    if (has_rows_elsewhere(heap, index, result.heap_tuples)) return result;
    ereport(
        NOTICE,
        (errmsg("index \"%s\" is not trained yet: the table has too few rows",
                RelationGetRelationName(index)),
         errdetail("Scans of it are exact. It trains itself in the VACUUM that finds " UINT64_FORMAT
                   " rows, or with REINDEX from " UINT64_FORMAT " rows on.",
                   least_rows_to_train_by_itself, least_rows_to_train)));
    return result;
}

// --- an index with a model

// Rows out of range lie in the pending list, after all others.
void write_entry(BulkWriter* writer, const EncodedRow& row) {
    const uint32 lists = writer->meta.lists;
    bulk_entry(writer, row.list == out_of_range_rows(lists) ? pending_list : row.list,
               {number_tid(row.tid), row.offset, row.code, row.attributes, row.refinement});
}

void write_entries(BulkWriter* writer, const EncodeResult& encoded) {
    report_progress(PROGRESS_CREATEIDX_TUPLES_TOTAL, static_cast<int64>(encoded.rows));
    log_together(encoded, writer);
    if (list_starts(encoded.sort)) {
        // Workers that log pages at the same time get half of the processors.
        const int threads =
            Max(writer->lists_are_logged ? (1 + encoded.threads) / 2 : encoded.threads, 1);
        bulk_sorted_lists(writer, encoded.sort, threads, [](int64 rows) {
            report_progress(PROGRESS_CREATEIDX_TUPLES_DONE, rows);
        });
        const uint64* starts = list_starts(encoded.sort);
        const uint32 lists = writer->meta.lists;
        for (uint64 at = starts[lists]; at < starts[row_groups(lists)]; ++at)
            write_entry(writer, sorted_row(encoded.sort, at));
        report_progress(PROGRESS_CREATEIDX_TUPLES_DONE, static_cast<int64>(encoded.rows));
        end_bulk_lists(writer);
        end_of_pages(encoded);
        return;
    }
    EncodedRow row;
    int64 written = 0;
    while (next_sorted_row(encoded.sort, &row)) {
        write_entry(writer, row);
        if (++written % 1024 == 0) report_progress(PROGRESS_CREATEIDX_TUPLES_DONE, written);
    }
    report_progress(PROGRESS_CREATEIDX_TUPLES_DONE, written);
    end_bulk_lists(writer);
    end_of_pages(encoded);
}

void measure(Relation index, BulkWriter* writer, const CurveQuery* queries, uint32 count,
             const EncodeResult& encoded) {
    report_phase(BuildPhase::measure);
    MetaPage meta = writer->meta;
    // The curve is part of the metapage, which is logged last.
    set_curve(&meta, measure_together(encoded, index, meta, queries, count));
    meta.curve_at = GetCurrentTimestamp();
    bulk_meta(writer, meta);
}

// Starts opening the device before the table is sampled: the two overlap.
BuildExecutor begin_executor(const MetaPage& meta, double rows, const TrainingPlan& plan,
                             int workers) {
    const double work = rows * plan.lists * meta.dims;
    return begin_build_executor(nullptr, work, 1 + workers);
}

IndexBuildResult build_trained(Relation heap, Relation index, IndexInfo* info, MetaPage meta,
                               const TrainingPlan& plan, Sample* sample, BuildExecutor executor,
                               int workers) {
    const Sample queries = set_queries_aside(sample);
    report_phase(BuildPhase::start);
    finish_build_executor(&executor);
    const Quantizer model = train_model(executor.executor, plan, sample, &meta);
    if (!executor.device) close_build_executor(&executor);
    pfree(sample->rows);
    pfree(sample->tids);

    report_phase(BuildPhase::encode);
    const EncodeInput input{model,          queries.rows,           queries.count,
                            type_of(index), copy_attributes(index), refinement_layout(meta)};
    EncodeResult encoded = encode_table({heap, index, info}, input, workers,
                                        executor.device ? executor.executor : nullptr);
    const char* done_by = pstrdup(executor.device ? executor.executor->name() : "cpu");
    if (executor.device) close_build_executor(&executor);
    meta.rows_at_build = static_cast<uint64>(encoded.rows);
    // The directory sits in front of the lists, so its size is known now; its contents are not.
    report_phase(BuildPhase::write);
    BulkWriter* writer = begin_bulk(index, meta, &model);
    const CurveQuery* curve_queries =
        make_curve_queries(input, queries.tids, encoded.neighbors, encoded.participants);
    writer->meta.largest_norm = largest_norm_of(writer->meta, curve_queries, queries.count);
    write_entries(writer, encoded);
    measure(index, writer, curve_queries, queries.count, encoded);
    report_phase(BuildPhase::log);
    bulk_log(writer);

    IndexBuildResult result = {};
    result.heap_tuples = encoded.heap_rows;
    result.index_tuples = encoded.rows;
    end_encode_table(&encoded);
    report_build_times(index, result.index_tuples, done_by);
    return result;
}

}  // namespace

IndexBuildResult* ivfpq_build(Relation heap, Relation index, IndexInfo* info) {
    if (RelationGetNumberOfBlocks(index) != 0)
        elog(ERROR, "index \"%s\" already contains data", RelationGetRelationName(index));
    forget_size();
    begin_build_times();
    const MemoryContext context =
        AllocSetContextCreate(CurrentMemoryContext, "ivfpq build", ALLOCSET_DEFAULT_SIZES);
    const MemoryContext before = MemoryContextSwitchTo(context);

    const MetaPage meta = new_meta(index);
    const TableLook look = look_at_table(heap, index, info, least_rows_to_train, meta.seed);
    TrainingPlan plan = {};
    BuildExecutor executor = {};
    Sample sample = {};
    const int workers = build_workers(heap, index);
    if (look.seen >= least_rows_to_train) {
        plan = plan_training(RelationGetRelationName(index), look.rows, meta, ERROR);
        executor = begin_executor(meta, look.rows, plan, workers);
        sample = sample_table(heap, index, info, meta.metric, meta.dims, look, plan.sample_rows,
                              meta.seed, workers);
        plan_for_lists(RelationGetRelationName(index), look.rows, least_rows_to_train, meta, ERROR,
                       &plan, &sample);
    }
    // In a concurrent build rows may be deleted between the look and the sample.
    const IndexBuildResult result =
        sample.count > 0 ? build_trained(heap, index, info, meta, plan, &sample, executor, workers)
                         : build_untrained(heap, index, info, meta);

    MemoryContextSwitchTo(before);
    MemoryContextDelete(context);
    IndexBuildResult* out = static_cast<IndexBuildResult*>(palloc(sizeof(IndexBuildResult)));
    *out = result;
    return out;
}

void ivfpq_build_empty(Relation index) {
    write_init_fork(index, new_meta(index));
}

}  // namespace pgwarp
