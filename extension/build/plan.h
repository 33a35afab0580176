// How large a model should be, and from how many rows it is trained, within the memory there is.
#pragma once

#include "extension/index/format.h"

namespace pgwarp {

// With fewer rows than this there is nothing to learn from: the index stays untrained, and its
// scans are exact. VACUUM waits for more, so that a model made by itself is worth keeping.
inline constexpr uint64 least_rows_to_train = 1000;
inline constexpr uint64 least_rows_to_train_by_itself = 10000;

// Rows that codes are trained from.
inline constexpr uint32 rows_for_codes = 10240;  // forty a codeword
// A rotation has more to learn; with many dimensions its products take most of the time.
inline constexpr uint32 rows_for_rotation = 2 * rows_for_codes;
uint32 residual_rows(const MetaPage& meta);

// What training will do, within maintenance_work_mem. Reports the memory needed where that does not
// do, before any work: as an error, or as a warning where the caller can go on without training
// (sample_rows is 0 then). Says where the lists asked for are too many for the rows.
struct TrainingPlan {
    uint32 lists;
    uint32 m;
    uint32 sample_rows;
};
TrainingPlan plan_training(const char* index_name, double rows, const MetaPage& meta,
                           int report_level);

// No plan for an index has more sample rows than this.
uint32 most_sample_rows(const MetaPage& meta);

}  // namespace pgwarp
