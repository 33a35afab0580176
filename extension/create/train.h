// Training a model with a sample: kernels/trainer.h makes it, this file feeds it and reports.
#pragma once

#include "kernels/executor.h"
#include "kernels/quantizer.h"
#include "extension/index/format.h"
#include "extension/create/plan.h"
#include "extension/create/sample.h"

namespace pgwarp {

// Makes the model in the current memory context; overwrites the sample's rows. Fills lists, m,
// wide, training_rows and quantization_error of `meta`.
Quantizer train_model(Executor* executor, const TrainingPlan& plan, Sample* sample, MetaPage* meta);

// Once a sample was drawn: a plan for the rows that belong into lists, where these are few of all
// `rows`. Empties the sample where they are fewer than `least`.
void plan_for_lists(const char* index_name, double rows, uint64 least, const MetaPage& meta,
                    int report_level, TrainingPlan* plan, Sample* sample);

// How many queries the curve is measured with: fewer where vectors are long, as the queries stay in
// memory throughout the build.
uint32 curve_query_room(uint32 dims);

// Copies rows of the sample to be the curve's queries, and removes them from it where it has many.
Sample set_queries_aside(Sample* sample);

}  // namespace pgwarp
