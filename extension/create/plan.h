// The size of a model and the number of rows to train it with, within the memory limit.
#pragma once

#include "extension/index/format.h"

namespace pgwarp {

// With fewer rows an index stays untrained, and its scans are exact. VACUUM trains an index without
// lists only from more rows on, so that the model is worth keeping.
inline constexpr uint64 least_rows_to_train = 1000;
inline constexpr uint64 least_rows_to_train_by_itself = 10000;

// Rows that codes are trained from.
inline constexpr uint32 rows_for_codes = 10240;  // forty a codeword
// A rotation needs more rows; with many dimensions (see residual_rows()) its products would take
// most of the time.
inline constexpr uint32 rows_for_rotation = 2 * rows_for_codes;
uint32 residual_rows(const MetaPage& meta);

// The plan of a training within maintenance_work_mem. Where that is too small, reports the memory
// needed before any work starts: as an error, or as a warning where the caller can go on without
// training (sample_rows is 0 then). Reports a user's number of lists that is too large for the
// rows.
struct TrainingPlan {
    uint32 lists;
    uint32 parents;  // 0: lists have none
    uint32 m;
    uint32 sample_rows;
};
TrainingPlan plan_training(const char* index_name, double rows, const MetaPage& meta,
                           int report_level);

// An upper bound of sample_rows of any plan for this index.
uint32 most_sample_rows(const MetaPage& meta);

}  // namespace pgwarp
