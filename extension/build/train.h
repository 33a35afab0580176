// Training: making a model from a sample.
#pragma once

#include "kernels/executor.h"
#include "kernels/quantizer.h"
#include "extension/index/format.h"
#include "extension/build/plan.h"
#include "extension/build/sample.h"

namespace pgwarp {

// Makes the model in the current memory context, using up the sample. Fills lists, m, wide,
// training_rows and quantization_error of `meta`.
Quantizer train_model(Executor* executor, const TrainingPlan& plan, Sample* sample, MetaPage* meta);

// How many rows the curve is measured with. Long vectors are fewer: they stay beside all else.
uint32 curve_query_room(uint32 dims);

// Rows of the sample whose true neighbors will be looked for: copied, and taken out of it where it
// has many.
Sample set_queries_aside(Sample* sample);

}  // namespace pgwarp
