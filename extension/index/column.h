// The vector column of an index: its metric, its dimensions, and the index form of its vectors.
#pragma once

#include "kernels/common.h"
#include "extension/compat.h"
#include "extension/types/vector_type.h"

extern "C" {
#include "utils/rel.h"
}

namespace pgwarp {

// Support function 1 of an operator class returns its metric's number.
inline constexpr uint16 metric_procedure = 1;

// The metric of an index, from its operator class.
Metric metric_of(Relation index);
// The type of an index's vectors, and of the queries it is scanned with.
VectorType type_of(Relation index);
// The dimensions that its column or expression declares. 0: none.
uint32 declared_dims(Relation index);
// The dimensions of an index's column or expression; an error where it has none.
int dims_of(Relation index);
// The vector in index form: scaled to unit length for cosine (the zero vector stays zero).
void index_form(Metric metric, const float* from, uint32 dims, float* to);

// Where the index keeps a row, by its vector.
enum class RowKind : uint8 {
    in_lists,      // its code tells how near it is
    out_of_range,  // in the pending list: sums of its squares or products overflow or underflow, so
                   // that only its exact distance has the order of the operator
    no_direction,  // in the list of such rows: a zero vector under cosine, as far from every query
};
RowKind kind_of(Metric metric, const StoredVector& row);
// Of a row or a query. Distances of a query out of range cannot be told from codes either, and one
// without a direction is as far from all rows.
RowKind kind_of(Metric metric, const float* vector, uint32 dims);

// The index form of a row, for many rows that are looked at later. A row that belongs into no list
// has a mark in its place, by which kind_of_form() tells it.
RowKind row_form(Metric metric, const float* from, uint32 dims, float* to);
RowKind kind_of_form(Metric metric, const float* form);

}  // namespace pgwarp
