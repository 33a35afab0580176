// Training: how large a model should be, which rows it is made from, and making it.
#pragma once

#include "kernels/executor.h"
#include "kernels/quantizer.h"
#include "kernels/random.h"
#include "extension/ivfpq_format.h"

extern "C" {
#include "nodes/execnodes.h"
#include "utils/rel.h"
}

namespace pgwarp {

// With fewer rows than this there is nothing to learn from: the index stays untrained, and its
// scans are exact. VACUUM waits for more, so that a model made by itself is worth keeping.
inline constexpr double least_rows_to_train = 1000;
inline constexpr double least_rows_to_train_by_itself = 10000;

// Rows in index form, with their TIDs.
struct Sample {
    uint32 dims;
    uint32 count;
    uint32 room;
    float* rows;   // (count)(dims)
    uint64* tids;  // (count)
    uint64 seen;   // rows there were to choose from
};
// Room for so many rows, in the current memory context.
Sample new_sample(uint32 dims, uint32 room);
// Algorithm R, which gives every row the same chance to be in the sample at the end: the slot of
// the row seen next, or `room` where it is not taken.
uint32 draw_slot(Sample* sample, Random* random);
// Slots remember when their rows came; training wants its subsets random. Of more rows than these
// the first so many are random, and the rest is left over.
void shuffle_sample(Sample* sample, Random* random, uint32 rows = PG_UINT32_MAX);

// What training will do, within maintenance_work_mem. Reports the memory needed where that does not
// do, before any work: as an error, or as a warning where the caller can go on without training
// (sample_rows is 0 then).
struct TrainingPlan {
    uint32 lists;
    uint32 m;
    uint32 sample_rows;
};
TrainingPlan plan_training(const char* index_name, double rows, const MetaPage& meta,
                           int report_level);

// How many rows an index build would see, about: counted on a few blocks. (The planner's estimate
// knows nothing of how long the vectors of a new table are.)
double estimate_rows(Relation heap, Relation index, IndexInfo* info, int64 seed);

// A uniform sample of the rows an index build would see, `table_rows` of them by estimate, in
// random order; the same for one seed.
Sample sample_table(Relation heap, Relation index, IndexInfo* info, Metric metric, uint32 dims,
                    double table_rows, uint32 rows, int64 seed);

// Makes the model in the current memory context, using up the sample. Fills lists, m, wide,
// training_rows and quantization_error of `meta`.
Quantizer train_model(Executor* executor, const TrainingPlan& plan, Sample* sample, MetaPage* meta);

// Rows of the sample whose true neighbors will be looked for: copied, and taken out of it where it
// has many.
Sample set_queries_aside(Sample* sample);

}  // namespace pgwarp
