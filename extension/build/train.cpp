#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "kernels/additive.h"
#include "kernels/bfloat16.h"
#include "kernels/executor.h"
#include "extension/guard.h"
#include "extension/index/format.h"
#include "extension/build/curve.h"
#include "extension/build/progress.h"
#include "extension/build/train.h"

extern "C" {
#include "commands/progress.h"
#include "miscadmin.h"
#include "utils/memutils.h"
}

namespace pgwarp {

namespace {

constexpr int kmeans_iterations = 8;
constexpr int codebook_iterations = 8;
constexpr int rotation_iterations = 16;
constexpr uint32 chunk_of_rows = 1024;

float* alloc_floats(Size count) {
    return static_cast<float*>(
        MemoryContextAllocHuge(CurrentMemoryContext, Max(count, Size{1}) * sizeof(float)));
}

// Mean squared distance of the rows from their mean. Of a large sample a part is accurate enough.
double variance_of(const Sample& sample) {
    double* sums = static_cast<double*>(palloc0(2 * sample.dims * sizeof(double)));
    // One accumulator a dimension, so that no addition waits for the one before.
    double* squares = sums + sample.dims;
    const uint32 count = std::min(sample.count, shuffled_rows);
    for (uint32 i = 0; i < count; ++i) {
        const float* row = sample.rows + Size{i} * sample.dims;
        for (uint32 d = 0; d < sample.dims; ++d) {
            sums[d] += row[d];
            squares[d] += static_cast<double>(row[d]) * row[d];
        }
    }
    double variance = 0;
    for (uint32 d = 0; d < sample.dims; ++d)
        variance += squares[d] / count - sums[d] / count * (sums[d] / count);
    pfree(sums);
    return std::max(0.0, variance);
}

// Runs the iterations of one training, with their progress counted in rows.
template <typename Step>
double iterate(BuildPhase phase, int iterations, uint32 rows, Step step) {
    report_phase(phase);
    report_progress(PROGRESS_CREATEIDX_TUPLES_TOTAL, int64{iterations} * rows);
    double error = 0;
    for (int i = 0; i < iterations; ++i) {
        CHECK_FOR_INTERRUPTS();
        guarded_interruptibly([&] { error = step(); });
        report_progress(PROGRESS_CREATEIDX_TUPLES_DONE, int64{i + 1} * rows);
    }
    return error;
}

// Rounds the centroids to bfloat16 and returns true, unless that would spoil them: where all values
// lie far from zero and close together, they may all round to the same number. `spread` is the mean
// squared distance of rows from their centroids.
bool fits_in_bfloat16(Executor* executor, Dataset* rows, uint32 lists, uint32 dims, double spread,
                      float* centroids) {
    const Size count = Size{lists} * dims;
    float* rounded = alloc_floats(count);
    float* moved = alloc_floats(count);
    memcpy(rounded, centroids, count * sizeof(float));
    round_to_bfloat16(rounded, count);
    memcpy(moved, rounded, count * sizeof(float));
    double rounded_spread = 0;
    guarded_interruptibly([&] { rounded_spread = executor->kmeans_step(*rows, lists, moved); });
    const bool fits = rounded_spread <= 1.01 * spread;
    if (fits) memcpy(centroids, rounded, count * sizeof(float));
    pfree(rounded);
    pfree(moved);
    return fits;
}

}  // namespace

uint32 curve_query_room(uint32 dims) {
    constexpr Size most_bytes = 8 * 1024 * 1024;
    return static_cast<uint32>(std::min<Size>(curve_queries, most_bytes / (dims * sizeof(float))));
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

// --- making the model

namespace {

// Projects the rows of the sample, in place, onto their first `to` principal directions. Returns
// the matrix, (to)(from).
float* reduce_sample(Executor* executor, Sample* sample, uint32 to, MemoryContext context) {
    const uint32 from = sample->dims;
    float* matrix = alloc_floats(Size{to} * from);
    Owned<Dataset>* rows = owned_by<Dataset>(context);
    // Enough rows to find the directions: more would take long and change little.
    const uint32 seen = std::min(sample->count, std::max(rows_for_rotation, 4 * from));
    guarded_interruptibly([&] {
        if (!rows->object) rows->object = executor->take(sample->rows, seen, from).release();
        executor->principal_directions(*rows->object, to, matrix);
    });
    float* turned = alloc_floats(Size{chunk_of_rows} * to);
    for (uint32 first = 0; first < sample->count; first += chunk_of_rows) {
        const uint32 here = std::min(chunk_of_rows, sample->count - first);
        guarded_interruptibly([&] {
            executor->rotate({from, to, matrix}, sample->rows + Size{first} * from, here, turned);
        });
        // In place: projected rows are shorter, so that they overwrite no row that is still to be
        // read.
        memcpy(sample->rows + Size{first} * to, turned, Size{here} * to * sizeof(float));
    }
    pfree(turned);
    sample->dims = to;
    return matrix;
}

// Rotates rows, (count)(dims), in place by a square matrix.
void turn_rows(Executor* executor, const float* matrix, uint32 dims, float* rows, uint32 count) {
    float* turned = alloc_floats(Size{chunk_of_rows} * dims);
    for (uint32 first = 0; first < count; first += chunk_of_rows) {
        const uint32 here = std::min(chunk_of_rows, count - first);
        float* begin = rows + Size{first} * dims;
        guarded_interruptibly([&] { executor->rotate({dims, dims, matrix}, begin, here, turned); });
        memcpy(begin, turned, Size{here} * dims * sizeof(float));
    }
    pfree(turned);
}

// The product of a rotation (to)(to) and a reduction (to)(from).
float* combine(const float* rotation, const float* reduction, uint32 to, uint32 from) {
    float* both = alloc_floats(Size{to} * from);
    memset(both, 0, Size{to} * from * sizeof(float));
    for (uint32 t = 0; t < to; ++t) {
        CHECK_FOR_INTERRUPTS();
        for (uint32 k = 0; k < to; ++k)
            for (uint32 f = 0; f < from; ++f)
                both[Size{t} * from + f] +=
                    rotation[Size{t} * to + k] * reduction[Size{k} * from + f];
    }
    return both;
}

// Trains a rotation for the residuals, and rotates them and the centroids. The codebook is left as
// of the last step.
float* train_rotation(Executor* executor, const QuantizerShape& shape, Dataset* data,
                      float* residuals, uint32 count, uint64 seed, bool wide, float* centroids,
                      float* codebook) {
    const uint32 dims = shape.dims;
    float* matrix = alloc_floats(Size{dims} * dims);
    guarded_interruptibly([&] { executor->rotation_start(*data, shape, matrix); });
    float* turned = alloc_floats(Size{count} * dims);
    memcpy(turned, residuals, Size{count} * dims * sizeof(float));
    turn_rows(executor, matrix, dims, turned, count);
    const MemoryContext context =
        AllocSetContextCreate(CurrentMemoryContext, "ivfpq rotation", ALLOCSET_SMALL_SIZES);
    Owned<Dataset>* turned_data = owned_by<Dataset>(context);
    guarded([&] {
        turned_data->object = executor->take(turned, count, dims).release();
        executor->codebook_start(*turned_data->object, shape, seed, codebook);
    });
    MemoryContextDelete(context);
    pfree(turned);
    iterate(BuildPhase::train_codes, rotation_iterations, count,
            [&] { return executor->rotation_step(*data, shape, matrix, codebook); });
    // Rows and queries will be rotated by the matrix that is on the pages: round it as stored.
    if (!wide) round_to_bfloat16(matrix, Size{dims} * dims);
    turn_rows(executor, matrix, dims, residuals, count);
    turn_rows(executor, matrix, dims, centroids, shape.lists);
    if (!wide) round_to_bfloat16(centroids, Size{shape.lists} * dims);
    return matrix;
}

// Replaces rows, (count)(dims), by their residuals, in place.
void subtract_lists(Executor* executor, float* rows, uint32 count, uint32 dims, uint32 lists,
                    const float* centroids, MemoryContext context) {
    uint32* nearest = static_cast<uint32*>(palloc(Size{count} * sizeof(uint32)));
    Owned<Dataset>* data = owned_by<Dataset>(context);
    guarded_interruptibly([&] {
        delete std::exchange(data->object, nullptr);
        data->object = executor->take(rows, count, dims).release();
        executor->assign(*data->object, lists, centroids, nearest);
    });
    guarded([&] { delete std::exchange(data->object, nullptr); });
    subtract_centroids(rows, count, dims, centroids, nearest);
    pfree(nearest);
}

// Encodes residuals by a model with one list, at the origin. Discards the entries' other parts.
void encode_residuals(Executor* executor, QuantizerShape shape, const float* codebook,
                      const float* residuals, uint32 count, uint8* codes) {
    shape.lists = 1;
    const float* origin = static_cast<float*>(palloc0(shape.dims * sizeof(float)));
    uint32* lists = static_cast<uint32*>(palloc(chunk_of_rows * sizeof(uint32)));
    float* offsets = alloc_floats(chunk_of_rows);
    for (uint32 first = 0; first < count; first += chunk_of_rows) {
        CHECK_FOR_INTERRUPTS();
        const uint32 here = std::min(chunk_of_rows, count - first);
        guarded_interruptibly([&] {
            executor->encode({shape, origin, codebook},
                             {residuals + Size{first} * shape.dims, here, lists,
                              codes + Size{first} * shape.m, offsets});
        });
    }
    pfree(const_cast<float*>(origin));
    pfree(lists);
    pfree(offsets);
}

// Initial codebook and codes: those of a rotated product quantizer, with its codebook rotated back.
void start_additive(Executor* executor, const QuantizerShape& shape, float* residuals, uint32 count,
                    uint64 seed, MemoryContext context, float* codebook, uint8* codes) {
    const uint32 dims = shape.dims;
    const QuantizerShape product{dims, 1, shape.m, shape.metric};
    const uint32 some = std::min(count, rows_for_rotation);
    float* matrix = alloc_floats(Size{dims} * dims);
    float* pieces = alloc_floats(Size{dims} * codewords);
    Owned<Dataset>* data = owned_by<Dataset>(context);
    guarded_interruptibly([&] {
        delete std::exchange(data->object, nullptr);
        data->object = executor->take(residuals, some, dims).release();
        executor->rotation_start(*data->object, product, matrix);
    });
    float* turned = alloc_floats(Size{some} * dims);
    memcpy(turned, residuals, Size{some} * dims * sizeof(float));
    turn_rows(executor, matrix, dims, turned, some);
    Owned<Dataset>* turned_data = owned_by<Dataset>(context);
    guarded([&] {
        turned_data->object = executor->take(turned, some, dims).release();
        executor->codebook_start(*turned_data->object, product, seed, pieces);
        delete std::exchange(turned_data->object, nullptr);
    });
    pfree(turned);
    iterate(BuildPhase::train_codes, rotation_iterations, some,
            [&] { return executor->rotation_step(*data->object, product, matrix, pieces); });
    guarded([&] { delete std::exchange(data->object, nullptr); });

    turned = alloc_floats(Size{chunk_of_rows} * dims);
    for (uint32 first = 0; first < count; first += chunk_of_rows) {
        const uint32 here = std::min(chunk_of_rows, count - first);
        memcpy(turned, residuals + Size{first} * dims, Size{here} * dims * sizeof(float));
        turn_rows(executor, matrix, dims, turned, here);
        encode_residuals(executor, product, pieces, turned, here, codes + Size{first} * shape.m);
    }
    additive_start(shape, matrix, pieces, codebook);
    pfree(turned);
    pfree(matrix);
    pfree(pieces);
}

// Returns the mean squared error of codes found as for rows of the table.
double train_additive(Executor* executor, const QuantizerShape& shape, float* residuals,
                      uint32 count, uint64 seed, bool wide, MemoryContext context,
                      float* codebook) {
    uint8* codes =
        static_cast<uint8*>(MemoryContextAllocHuge(CurrentMemoryContext, Size{count} * shape.m));
    // The start trains a rotation, on the CPU.
    Executor* starter = executor;
    if (strcmp(executor->name(), "cpu") != 0) {
        Owned<Executor>* cpu = owned_by<Executor>(context);
        const int threads = 1 + max_parallel_maintenance_workers;
        guarded([&] { cpu->object = make_cpu_executor(threads, query_interrupts()).release(); });
        starter = cpu->object;
    }
    start_additive(starter, shape, residuals, count, seed, context, codebook, codes);
    Owned<Dataset>* data = owned_by<Dataset>(context);
    guarded([&] { data->object = executor->take(residuals, count, shape.dims).release(); });
    const uint32 steps = lsq_iterations(count);
    uint32 step = 0;
    iterate(BuildPhase::train_codes, static_cast<int>(steps), count, [&] {
        const double error =
            executor->additive_step(*data->object, {shape, step, steps, seed, codebook, codes});
        ++step;
        return error;
    });
    guarded([&] { delete std::exchange(data->object, nullptr); });
    const Size floats = Size{shape.codebook_rows()} * codewords;
    if (!wide) round_to_bfloat16(codebook, floats);

    const uint32 some = std::min(count, rows_for_codes);
    encode_residuals(executor, shape, codebook, residuals, some, codes);
    double error = 0;
    for (uint32 i = 0; i < some; ++i)
        for (uint32 d = 0; d < shape.dims; ++d) {
            double off = residuals[Size{i} * shape.dims + d];
            for (uint32 j = 0; j < shape.m; ++j)
                off -=
                    codebook[(Size{j} * shape.dims + d) * codewords + codes[Size{i} * shape.m + j]];
            error += off * off;
        }
    pfree(codes);
    return error / some;
}

}  // namespace

Quantizer train_model(Executor* executor, const TrainingPlan& plan, Sample* sample,
                      MetaPage* meta) {
    const uint32 dims = meta->code_dims;
    const QuantizerShape shape{dims,         plan.lists, plan.m,
                               meta->metric, meta->bits, meta->search_rounds};
    report_phase(BuildPhase::train_lists);
    const double variance = variance_of(*sample);
    float* centroids = alloc_floats(Size{plan.lists} * dims);
    float* codebook = alloc_floats(Size{shape.codebook_rows()} * codewords);
    const uint64 seed = static_cast<uint64>(meta->seed);
    const MemoryContext context =
        AllocSetContextCreate(CurrentMemoryContext, "ivfpq training", ALLOCSET_SMALL_SIZES);

    float* reduction = nullptr;
    double dropped = 0;
    if (dims < meta->dims) {
        reduction = reduce_sample(executor, sample, dims, context);
        dropped = std::max(0.0, variance - variance_of(*sample));
    }

    Owned<Dataset>* rows = owned_by<Dataset>(context);
    guarded_interruptibly([&] {
        delete std::exchange(rows->object, nullptr);
        rows->object = executor->take(sample->rows, sample->count, dims).release();
        executor->kmeans_start(*rows->object, plan.lists, seed, centroids);
    });
    const double spread = iterate(BuildPhase::train_lists, kmeans_iterations, sample->count, [&] {
        return executor->kmeans_step(*rows->object, plan.lists, centroids);
    });
    // Rounding a reduction would move all rows but no centroid: keep it in full precision.
    meta->wide = reduction != nullptr ||
                 !fits_in_bfloat16(executor, rows->object, plan.lists, dims, spread, centroids);

    const uint32 residual_count = std::min(sample->count, residual_rows(*meta));
    meta->lists = plan.lists;
    meta->m = plan.m;
    meta->training_rows = sample->count;
    const auto relative = [&](double error) {
        return static_cast<float>(variance > 0 ? (error + dropped) / variance : 0);
    };
    if (shape.additive()) {
        guarded([&] { delete std::exchange(rows->object, nullptr); });
        subtract_lists(executor, sample->rows, residual_count, dims, plan.lists, centroids,
                       context);
        const double error = train_additive(executor, shape, sample->rows, residual_count, seed,
                                            meta->wide, context, codebook);
        MemoryContextDelete(context);
        meta->quantization_error = relative(error);
        return {shape, centroids, codebook};
    }

    Owned<Dataset>* residuals = owned_by<Dataset>(context);
    Rotation rotation;
    if (has_rotation(*meta)) {
        // This process rotates the residuals, so it computes them, too.
        guarded([&] { delete std::exchange(rows->object, nullptr); });
        subtract_lists(executor, sample->rows, residual_count, dims, plan.lists, centroids,
                       context);
        guarded([&] {
            residuals->object = executor->take(sample->rows, residual_count, dims).release();
        });
        float* matrix = train_rotation(executor, shape, residuals->object, sample->rows,
                                       residual_count, seed, meta->wide, centroids, codebook);
        if (reduction) matrix = combine(matrix, reduction, dims, meta->dims);
        rotation = {meta->dims, dims, matrix};
        // The rows have been rotated: replace the executor's copy of them, if it made one.
        guarded([&] {
            delete residuals->object;
            residuals->object = nullptr;
            residuals->object = executor->take(sample->rows, residual_count, dims).release();
        });
    } else {
        guarded_interruptibly([&] {
            delete std::exchange(residuals->object, nullptr);
            residuals->object = executor->take(sample->rows, residual_count, dims).release();
        });
        guarded_interruptibly(
            [&] { executor->make_residuals(*residuals->object, plan.lists, centroids); });
        guarded_interruptibly(
            [&] { executor->codebook_start(*residuals->object, shape, seed, codebook); });
    }
    const double error = iterate(BuildPhase::train_codes, codebook_iterations, residual_count, [&] {
        return executor->codebook_step(*residuals->object, shape, codebook);
    });
    MemoryContextDelete(context);
    if (!meta->wide) round_to_bfloat16(codebook, Size{dims} * codewords);

    meta->quantization_error = relative(error);
    return {shape, centroids, codebook, rotation};
}

}  // namespace pgwarp
