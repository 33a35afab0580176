// The access method: its callbacks, and what several of them share. One file a callback:
// ivfpq_build, ivfpq_insert, ivfpq_scan, ivfpq_vacuum, ivfpq_cost, ivfpq_options, ivfpq_handler.
#pragma once

#include "kernels/common.h"
#include "extension/ivfpq_format.h"

extern "C" {
#include "access/amapi.h"
#include "nodes/pathnodes.h"
#include "utils/rel.h"
}

namespace pgwarp {

// --- ivfpq_options.cpp

// As in WITH (...); 0 means: choose.
struct IndexOptions {
    int32 vl_len_;
    int lists;
    int m;
    int bits;
    int quantizer;  // QuantizerKind
    int dims;       // of codes
    int rounds;     // of the search for additive codes
};
void init_options();
bytea* ivfpq_options(Datum reloptions, bool validate);
IndexOptions options_of(Relation index);
// Options as pg_class has them.
IndexOptions parse_options(Datum reloptions, bool is_null);
// Checks the options for an index of meta->dims dimensions, before any work, and sets the fields of
// the metapage that they decide.
void apply_options(const IndexOptions& options, MetaPage* meta);
// As in WITH.
const char* quantizer_name(QuantizerKind kind);

// --- ivfpq_alter.cpp

// Checks the options that ALTER INDEX gives to an ivfpq index.
void install_alter_hook();

// --- ivfpq_handler.cpp

// The metric of an index, from its operator class.
Metric metric_of(Relation index);
// The dimensions of an index's column or expression; an error where it has none.
int dims_of(Relation index);
// The vector as the index sees it: unit length for cosine (the zero vector stays zero).
void index_form(Metric metric, const float* from, uint32 dims, float* to);

// --- callbacks

IndexBuildResult* ivfpq_build(Relation heap, Relation index, IndexInfo* info);
void ivfpq_build_empty(Relation index);
bool ivfpq_insert(Relation index, Datum* values, bool* nulls, ItemPointer tid, Relation heap,
                  IndexUniqueCheck check_unique, bool unchanged, IndexInfo* info);
IndexBulkDeleteResult* ivfpq_bulk_delete(IndexVacuumInfo* info, IndexBulkDeleteResult* stats,
                                         IndexBulkDeleteCallback callback, void* callback_state);
IndexBulkDeleteResult* ivfpq_vacuum_cleanup(IndexVacuumInfo* info, IndexBulkDeleteResult* stats);
void ivfpq_cost(PlannerInfo* root, IndexPath* path, double loop_count, Cost* startup_cost,
                Cost* total_cost, Selectivity* selectivity, double* correlation, double* pages);
bool ivfpq_validate(Oid opclass);
char* ivfpq_phase_name(int64 phase);
IndexScanDesc ivfpq_begin_scan(Relation index, int keys, int order_bys);
void ivfpq_rescan(IndexScanDesc scan, ScanKey keys, int key_count, ScanKey order_bys,
                  int order_by_count);
bool ivfpq_get_tuple(IndexScanDesc scan, ScanDirection direction);
void ivfpq_end_scan(IndexScanDesc scan);

// For a scan that no executor node drives: how many rows will be fetched, beside some that the
// caller passes over, for which there are as many candidates more.
void want_rows(IndexScanDesc scan, uint32 rows, uint32 passed_over = 0);

}  // namespace pgwarp
