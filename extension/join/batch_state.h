// The state of a custom scan, and what its two files know of each other: bind.cpp finds the index
// scans that it searches for, execute.cpp is the node itself.
#pragma once

#include "extension/join/batch_scan.h"
#include "extension/knn/batch.h"
#include "extension/util/custom_scan.h"

extern "C" {
#include "nodes/execnodes.h"
#include "nodes/plannodes.h"
}

namespace pgwarp {

struct BatchScan;

// An index that is searched: the scan that will want its rows.
struct SearchedIndex {
    BatchScan* join;
    IndexScanState* scan;
    KnnIndex index;
    KnnBatch* batch;  // null until the first search
    NearestRows* found;
};

// A row that was read ahead.
struct BufferedRow {
    MinimalTuple tuple;
    int32 query;  // its number in the batch; -1: the scan searches by itself
};

struct BatchScan : CustomScanState {
    PlanState* child;
    TupleTableSlot* stored;  // for tuples of rows
    TupleTableSlot* result;  // virtual, as the node has promised

    // Set by the executor hook; null where rows are passed on as they come.
    const NestLoop* join;
    const LimitState* limit;
    ExprState* query;  // the index scan's expression
    ExprContext* query_context;
    SearchedIndex* indexes;
    int index_count;
    bool compares_all;       // the k nearest rows of all indexes are all that is fetched
    SearchThreads* threads;  // of all batches; null until the first search
    uint32 k;                // rows that the batches find for each query
    BatchScan* next;         // in the list of scans whose rows joins ask for
    MemoryContextCallback callback;

    ParamExecData* parameters;  // of the row that the child returned last
    bool has_parameters;
    int parameter_count;
    ParamExecData* query_parameters;  // (query_count)(parameter_count), for conditions
    ExprContext* row_context;
    bool ended;                  // the child has no more rows
    MemoryContext rows_context;  // reset by each batch
    BufferedRow* rows;
    uint32 row_count;
    uint32 row_room;
    uint32 next_row;
    float* vectors;  // (query_count)(dims)
    uint32 query_count;
    uint32 batch_rows;  // that the next batch reads
    bool searched;      // the batches have the rows of the queries of the window
    // Queries that were searched for last: all, unless more were read than a batch can have.
    uint32 window_begin;
    uint32 window_count;
    bool wants_device;
    KnnIndex whole;    // what a device reads: the index, or all of them as leaves
    FoundPlaces near;  // of all queries, by a device; no places: it has not found them
    bool gave_up;      // memory does not hold a query, or the index cannot be searched in batches

    // For EXPLAIN:
    int64 queries;  // searched in batches
    int64 batches;
    int64 singles;  // left to scans
    bool by_device;
};

// Whether a row meets the conditions of the index scan for one of the queries. `argument`: the
// SearchedIndex.
bool passes_conditions(void* argument, uint32 query, TupleTableSlot* row);

// Finds the index scans on the inner side of the Nested Loop above the custom scan. False: there
// are none that it can search for.
bool bind_scan(BatchScan* state, NestLoopState* join);

}  // namespace pgwarp
