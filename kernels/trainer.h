// Makes the model of an index from a sample of its rows, on any executor.
//
// The executor takes the rows once and keeps them: they are projected, become residuals and are
// rotated where they are. The training is a list of steps. A caller that has more to do than to
// train, as a PostgreSQL backend has, does it between two of them.
#pragma once

#include "kernels/common.h"
#include "kernels/executor.h"
#include "kernels/quantizer.h"

#include <functional>
#include <memory>
#include <vector>

namespace pgwarp {

enum class TrainingPhase { lists, codes };

// Called when a phase begins, with `done` 0, and after its iterations; in rows, each counted once
// an iteration. `total` is 0 where the phase has no count yet. Must not throw.
using TrainingProgress = std::function<void(TrainingPhase phase, uint64_t done, uint64_t total)>;

struct TrainingInput {
    // (count)(dims), in random order, normalised for cosine. Stays the caller's; the training
    // overwrites it. At least one row.
    float* rows;
    size_t count;
    uint32_t dims;         // of the table's vectors
    QuantizerShape shape;  // shape.dims: of the codes, at most `dims`
    bool rotate;           // train a rotation (OPQ); not for additive quantizers
    uint64_t seed;
    uint32_t parents = 0;  // of lists, at most as many as lists; 0: they have none
    // The phases use the first rows of the sample, at most this many each.
    size_t variance_rows;   // for the variance that the error is relative to
    size_t direction_rows;  // for the directions that a reduction of dimensions keeps
    size_t residual_rows;   // for the codes
    size_t rotation_rows;   // of these, for the rotation that an additive quantizer starts with
    size_t error_rows;      // of these, for the error of an additive quantizer
};

struct TrainedModel {
    std::vector<float> centroids;  // (lists)(shape.dims)
    // Parents of lists (quantizer.h), at most as many as wanted: those without rows are left out.
    std::vector<float> parent_centroids;  // (parents)(shape.dims)
    std::vector<uint32_t> parent_first;   // (parents + 1); empty: lists have none
    std::vector<float> codebook;          // (codebook_rows)(256)
    std::vector<float> matrix;            // (shape.dims)(dims): the rotation; empty: none
    // Unless wide, all values are bfloat16 values. Wide where rounding would spoil the centroids:
    // where all lie far from zero and close together, they may all round to the same number.
    bool wide = false;
    // Mean squared error of the codes, with what a reduction drops, relative to the variance.
    double quantization_error = 0;
    size_t training_rows = 0;

    Parents parents() const {
        if (parent_first.empty()) return {};
        return {static_cast<uint32_t>(parent_first.size() - 1), parent_centroids.data(),
                parent_first.data()};
    }
};

class Trainer {
  public:
    // The executor outlives the trainer. `progress` may be empty.
    Trainer(Executor& executor, const TrainingInput& input, TrainingProgress progress = {});
    ~Trainer();

    // Does the next step; false once the model is complete. Throws as an executor does. After
    // Interrupted the next call continues the step.
    bool advance();

    // Call once advance() has returned false.
    const TrainedModel& model() const;

  private:
    class Steps;
    std::unique_ptr<Steps> steps_;
};

}  // namespace pgwarp
