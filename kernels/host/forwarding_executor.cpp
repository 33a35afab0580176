#include "kernels/forwarding_executor.h"

#include "kernels/row_pass.h"

namespace pgwarp {

ForwardingExecutor::ForwardingExecutor(std::unique_ptr<Executor> executor)
    : executor_(std::move(executor)) {}

ForwardingExecutor::~ForwardingExecutor() = default;

template <typename OnRows>
void ForwardingExecutor::run_on(Dataset& rows, OnRows&& work) {
    run([&](Executor& executor) { work(executor, dataset_of(executor, rows)); });
}

template <typename OnRows>
void ForwardingExecutor::run_on(const FirstRows& rows, OnRows&& work) {
    run_on(rows.rows, [&](Executor& executor, Dataset& data) {
        work(executor, FirstRows{data, rows.count});
    });
}

std::unique_ptr<Dataset> ForwardingExecutor::take(float* rows, size_t count, uint32_t dims) {
    std::unique_ptr<Dataset> taken;
    run([&](Executor& executor) { taken = executor.take(rows, count, dims); });
    return taken;
}

void ForwardingExecutor::kmeans_start(Dataset& rows, uint32_t clusters, uint64_t seed,
                                      float* centroids) {
    run_on(rows, [&](Executor& executor, Dataset& data) {
        executor.kmeans_start(data, clusters, seed, centroids);
    });
}

double ForwardingExecutor::kmeans_step(Dataset& rows, uint32_t clusters, float* centroids) {
    double error = 0;
    run_on(rows, [&](Executor& executor, Dataset& data) {
        error = executor.kmeans_step(data, clusters, centroids);
    });
    return error;
}

KmeansSums ForwardingExecutor::kmeans_sums(Dataset& rows, uint32_t clusters,
                                           const float* centroids) {
    KmeansSums sums;
    run_on(rows, [&](Executor& executor, Dataset& data) {
        sums = executor.kmeans_sums(data, clusters, centroids);
    });
    return sums;
}

void ForwardingExecutor::gather(Dataset& rows, std::span<const uint32_t> numbers, float* out) {
    run_on(rows, [&](Executor& executor, Dataset& data) { executor.gather(data, numbers, out); });
}

void ForwardingExecutor::assign(Dataset& rows, uint32_t clusters, const float* centroids,
                                uint32_t* nearest) {
    run_on(rows, [&](Executor& executor, Dataset& data) {
        executor.assign(data, clusters, centroids, nearest);
    });
}

void ForwardingExecutor::keep_first(Dataset& rows, size_t count) {
    run_on(rows, [&](Executor& executor, Dataset& data) { executor.keep_first(data, count); });
}

void ForwardingExecutor::make_residuals(Dataset& rows, uint32_t clusters, const float* centroids,
                                        const Parents& parents) {
    run_on(rows, [&](Executor& executor, Dataset& data) {
        executor.make_residuals(data, clusters, centroids, parents);
    });
}

void ForwardingExecutor::rotate_rows(Dataset& rows, const Rotation& rotation) {
    run_on(rows, [&](Executor& executor, Dataset& data) { executor.rotate_rows(data, rotation); });
}

double ForwardingExecutor::variance(const FirstRows& rows) {
    double variance = 0;
    run_on(rows,
           [&](Executor& executor, const FirstRows& data) { variance = executor.variance(data); });
    return variance;
}

void ForwardingExecutor::codebook_start(Dataset& residuals, const QuantizerShape& shape,
                                        uint64_t seed, float* codebook) {
    run_on(residuals, [&](Executor& executor, Dataset& data) {
        executor.codebook_start(data, shape, seed, codebook);
    });
}

double ForwardingExecutor::codebook_step(Dataset& residuals, const QuantizerShape& shape,
                                         float* codebook) {
    double error = 0;
    run_on(residuals, [&](Executor& executor, Dataset& data) {
        error = executor.codebook_step(data, shape, codebook);
    });
    return error;
}

void ForwardingExecutor::principal_directions(const FirstRows& rows, uint32_t to, float* matrix) {
    run_on(rows, [&](Executor& executor, const FirstRows& data) {
        executor.principal_directions(data, to, matrix);
    });
}

void ForwardingExecutor::rotation_start(const FirstRows& residuals, const QuantizerShape& shape,
                                        uint64_t seed, float* matrix, float* codebook) {
    run_on(residuals, [&](Executor& executor, const FirstRows& data) {
        executor.rotation_start(data, shape, seed, matrix, codebook);
    });
}

double ForwardingExecutor::rotation_step(const FirstRows& residuals, const QuantizerShape& shape,
                                         float* matrix, float* codebook) {
    double error = 0;
    run_on(residuals, [&](Executor& executor, const FirstRows& data) {
        error = executor.rotation_step(data, shape, matrix, codebook);
    });
    return error;
}

void ForwardingExecutor::rotate(const Rotation& rotation, const float* rows, size_t count,
                                float* out) {
    run([&](Executor& executor) { executor.rotate(rotation, rows, count, out); });
}

double ForwardingExecutor::additive_step(Dataset& residuals, const AdditiveStep& step) {
    double error = 0;
    run_on(residuals,
           [&](Executor& executor, Dataset& data) { error = executor.additive_step(data, step); });
    return error;
}

void ForwardingExecutor::encode_residuals(const FirstRows& residuals, const Quantizer& quantizer,
                                          uint8_t* codes) {
    run_on(residuals, [&](Executor& executor, const FirstRows& data) {
        executor.encode_residuals(data, quantizer, codes);
    });
}

double ForwardingExecutor::code_error(const FirstRows& residuals, const QuantizerShape& shape,
                                      const float* codebook, const uint8_t* codes) {
    double error = 0;
    run_on(residuals, [&](Executor& executor, const FirstRows& data) {
        error = executor.code_error(data, shape, codebook, codes);
    });
    return error;
}

void ForwardingExecutor::encode(const Quantizer& quantizer, const Encoding& encoding) {
    run([&](Executor& executor) { executor.encode(quantizer, encoding); });
}

void ForwardingExecutor::exact_search(const ExactSearch& search) {
    run([&](Executor& executor) { executor.exact_search(search); });
}

std::unique_ptr<RowPass> ForwardingExecutor::begin_pass(const RowPassInput& input) {
    std::unique_ptr<RowPass> pass;
    run([&](Executor& executor) { pass = executor.begin_pass(input); });
    return pass;
}

std::unique_ptr<DatasetBuilder> ForwardingExecutor::build_dataset(uint32_t dims, size_t most_rows,
                                                                  RowElements elements) {
    std::unique_ptr<DatasetBuilder> builder;
    run([&](Executor& executor) { builder = executor.build_dataset(dims, most_rows, elements); });
    return builder;
}

}  // namespace pgwarp
