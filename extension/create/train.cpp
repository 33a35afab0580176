#include <algorithm>
#include <cstring>

#include "kernels/trainer.h"
#include "extension/guard.h"
#include "extension/index/format.h"
#include "extension/curve/curve.h"
#include "extension/create/progress.h"
#include "extension/create/train.h"

extern "C" {
#include "commands/progress.h"
#include "miscadmin.h"
#include "utils/memutils.h"
}

namespace pgwarp {

void plan_for_lists(const char* index_name, double rows, uint64 least, const MetaPage& meta,
                    int report_level, TrainingPlan* plan, Sample* sample) {
    // Lists are planned by the square root of the rows: with more than half of them, the plan for
    // all is good enough.
    constexpr double most = 0.5;
    if (sample->share == 1) return;
    const double in_lists = rows * sample->share;
    if (in_lists >= static_cast<double>(least)) {
        if (sample->share > most) return;
        *plan = plan_training(index_name, in_lists, meta, report_level);
        if (plan->sample_rows > 0) return;
    }
    sample->count = 0;
}

uint32 curve_query_room(uint32 dims) {
    constexpr Size max_bytes = 8 * 1024 * 1024;
    return static_cast<uint32>(std::min<Size>(curve_queries, max_bytes / (dims * sizeof(float))));
}

Sample set_queries_aside(Sample* sample) {
    // The sample is in random order.
    const Size row_bytes = sample->dims * sizeof(float);
    Sample queries =
        new_sample(sample->dims, std::min(sample->count, curve_query_room(sample->dims)));
    queries.count = queries.room;
    memcpy(queries.rows, sample->rows, queries.count * row_bytes);
    memcpy(queries.tids, sample->tids, queries.count * sizeof(uint64));
    // Recall measured with training rows would be too high. A large sample gives up the rows that
    // become queries.
    constexpr uint32 many = 16;
    if (sample->count >= many * queries.count) {
        sample->count -= queries.count;
        memcpy(sample->rows, sample->rows + Size{sample->count} * sample->dims,
               queries.count * row_bytes);
        memcpy(sample->tids, sample->tids + sample->count, queries.count * sizeof(uint64));
    }
    return queries;
}

namespace {

// Runs inside guarded(): writes counters in shared memory and reports no error.
void report_training(TrainingPhase phase, uint64 done, uint64 total) {
    if (done > 0) {
        report_progress(PROGRESS_CREATEIDX_TUPLES_DONE, static_cast<int64>(done));
        return;
    }
    report_phase(phase == TrainingPhase::lists ? BuildPhase::train_lists : BuildPhase::train_codes);
    report_progress(PROGRESS_CREATEIDX_TUPLES_TOTAL, static_cast<int64>(total));
}

TrainingInput training_input(const TrainingPlan& plan, const Sample& sample, const MetaPage& meta) {
    TrainingInput input = {};
    input.rows = sample.rows;
    input.count = sample.count;
    input.dims = sample.dims;
    input.shape = {meta.code_dims, plan.lists, plan.m, meta.metric, meta.bits, meta.search_rounds};
    input.rotate = has_rotation(meta);
    input.seed = static_cast<uint64>(meta.seed);
    input.parents = plan.parents;
    input.variance_rows = shuffled_rows;
    // Enough rows to find the directions: more would take long and change little.
    input.direction_rows = std::max(rows_for_rotation, 4 * sample.dims);
    input.residual_rows = residual_rows(meta);
    input.rotation_rows = rows_for_rotation;
    input.error_rows = rows_for_codes;
    return input;
}

// Null where there are none.
const float* copy_floats(const std::vector<float>& from) {
    if (from.empty()) return nullptr;
    const Size bytes = from.size() * sizeof(float);
    void* copy = MemoryContextAllocHuge(CurrentMemoryContext, bytes);
    memcpy(copy, from.data(), bytes);
    return static_cast<const float*>(copy);
}

}  // namespace

Quantizer train_model(Executor* executor, const TrainingPlan& plan, Sample* sample,
                      MetaPage* meta) {
    const TrainingInput input = training_input(plan, *sample, *meta);
    const MemoryContext context =
        AllocSetContextCreate(CurrentMemoryContext, "ivfpq training", ALLOCSET_SMALL_SIZES);
    Owned<Trainer>* trainer = owned_by<Trainer>(context);
    guarded([&] { trainer->object = new Trainer(*executor, input, report_training); });
    for (bool more = true; more;) {
        // Between steps: events after which the query goes on, which end no step.
        CHECK_FOR_INTERRUPTS();
        guarded_interruptibly([&] { more = trainer->object->advance(); });
    }
    const TrainedModel& trained = trainer->object->model();
    Quantizer model = {};
    model.shape = input.shape;
    model.centroids = copy_floats(trained.centroids);
    model.codebook = copy_floats(trained.codebook);
    if (!trained.matrix.empty())
        model.rotation = {input.dims, input.shape.dims, copy_floats(trained.matrix)};
    const Parents parents = trained.parents();
    if (parents.count > 0) {
        const Size bytes = (Size{parents.count} + 1) * sizeof(uint32);
        auto* first = static_cast<uint32*>(palloc(bytes));
        memcpy(first, parents.first, bytes);
        model.parents = {parents.count, copy_floats(trained.parent_centroids), first};
    }
    meta->lists = plan.lists;
    meta->parents = parents.count;
    meta->m = plan.m;
    meta->wide = trained.wide;
    meta->training_rows = static_cast<uint32>(trained.training_rows);
    meta->quantization_error = static_cast<float>(trained.quantization_error);
    MemoryContextDelete(context);
    return model;
}

}  // namespace pgwarp
