// The pass over the table that encodes rows as entries, which go to a sink. It also finds the true
// neighbors of the sampled queries for the recall curve.
#pragma once

#include "kernels/executor.h"
#include "kernels/quantizer.h"
#include "extension/table/block_pool.h"
#include "extension/curve/neighbors.h"
#include "extension/types/vector_type.h"
#include "extension/index/attributes.h"
#include "extension/index/format.h"

extern "C" {
#include "nodes/execnodes.h"
#include "utils/rel.h"
#include "utils/tuplesort.h"
}

namespace pgwarp {

// The input of every participant of a build. The arrays may lie in shared memory.
struct EncodeInput {
    Quantizer model;
    const float* queries;  // (query_count)(table's dims), not rotated
    uint32 query_count;
    VectorType type;  // of the rows, for encode_row()
    const IndexAttributes* attributes;
    RefinementLayout refinement;
    bool has_undirected_list = true;  // false: rows without a direction have codes, too

    // Of rows for a device. Halves that need no other form travel as they are.
    RowElements elements() const {
        return normalizes(model.shape.metric) ? RowElements::float32 : type.elements();
    }
    RowShape row() const {
        return {model.table_dims(), elements(), attributes->layout.entry_bytes()};
    }
};

// Numbers of lists for rows that belong into none, behind those of the lists.
inline uint32 undirected_rows(uint32 lists) {
    return lists;
}
inline uint32 out_of_range_rows(uint32 lists) {
    return lists + 1;
}
constexpr uint32 row_groups(uint32 lists) {
    return lists + 2;
}

struct EncodedRow {
    uint32 list;
    uint64 tid;
    float offset;
    const uint8* code;
    const uint8* attributes;  // (attribute_bytes)
    const uint8* refinement;  // (refinement.bytes())
};
struct EncodedRows {
    Size count;
    const uint32* lists;
    const uint64* tids;
    const float* offsets;
    const uint8* codes;        // (count)(m)
    const uint8* attributes;   // (count)(attribute_bytes)
    const uint8* refinements;  // (count)(refinement.bytes())
};
// Receives encoded rows in the order in which they came.
struct RowSink {
    void (*put)(void* state, const EncodedRows& rows);
    void* state;
};

struct EncodePass;
EncodePass* begin_encode(const EncodeInput& input, const RowSink& sink);
// The same on a device, `batch` rows at a time; the device applies the model's rotation, if any.
EncodePass* begin_encode_on(Executor* device, uint32 batch, const EncodeInput& input,
                            const RowSink& sink);
// An IndexBuildCallback; its argument is the EncodePass.
void encode_row(Relation index, ItemPointer tid, Datum* values, bool* nulls, bool alive,
                void* pass);
// Adds a single row, with its vector as stored in the table, (table's dims), and the values of all
// index columns.
void encode_one_row(EncodePass* pass, uint64 tid, const StoredVector& vector, const Datum* values,
                    const bool* nulls);
// On a device: starts encoding a block of rows in their form (row_form()), which returns to its
// pool when encoded.
void encode_block(EncodePass* pass, BlockPool* pool, const RowBlock& block);
// Encodes the rows that do not fill a batch, and waits for the device.
void flush_encode(EncodePass* pass);
// Call once all rows were encoded: kept_neighbors(query_count) of them.
const Neighbor* neighbors_of(EncodePass* pass);
double rows_of(const EncodePass* pass);

// Queries for measure_curve, from the neighbors of all participants, kept_neighbors(query_count) of
// each.
CurveQuery* make_curve_queries(const EncodeInput& input, const uint64* query_tids,
                               const Neighbor* neighbors, uint32 participants);

}  // namespace pgwarp
