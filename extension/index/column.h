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

}  // namespace pgwarp
