// Local search quantization: rows encoded per second in 16 rounds, from device memory and from host
// memory, beside the CPU's encoder on one core. With few rows (--rows 250000): recall of its codes.

#include "bench/cuda/bench.h"
#include "kernels/additive.h"
#include "kernels/compare_codes.h"
#include "kernels/cuda/executor.h"
#include "kernels/cuda/train/lsq_encoder.h"
#include "kernels/rotation.h"

#include <limits>
#include <numeric>

namespace pgwarp::gpu {

namespace {

constexpr size_t training_rows = 100000;
constexpr size_t cpu_rows = 2000;

struct Trained {
    LsqShape shape;
    std::vector<float> words;
};

// Starts from a rotated product quantizer, trained on the CPU; the device runs the steps.
Trained train(Executor& executor, const VectorSet& vectors, uint32_t books,
              std::vector<float>& residuals) {
    const uint32_t dims = vectors.dims;
    const size_t count = std::min(training_rows, vectors.base_count());
    QuantizerShape shape{dims, 1, books, Metric::l2};
    shape.search_rounds = 16;
    Workers workers(8);
    auto begin = std::chrono::steady_clock::now();
    const auto lap = [&begin] {
        const auto now = std::chrono::steady_clock::now();
        const std::chrono::duration<double> taken = now - begin;
        begin = now;
        return taken.count();
    };
    const LsqShape sums{dims, books};
    std::vector<float> words(sums.words() * dims);
    std::vector<uint8_t> codes(count * books);
    lsq_start(workers, sums, residuals.data(), count, 1, words.data(), codes.data());
    const double start = lap();
    std::vector<float> codebook(words.size());
    codebook_of_words(sums, words.data(), codebook.data());
    const auto data = executor.take(residuals.data(), count, dims);
    // Fitting many words takes long, and does not change the speed of encoding.
    const uint32_t steps = books > 8 ? 4 : lsq_iterations(count);
    double error = 0;
    for (uint32_t step = 0; step < steps; ++step)
        error =
            executor.additive_step(*data, {shape, step, steps, 1, codebook.data(), codes.data()});
    words_of_codebook(sums, codebook.data(), words.data());
    const std::string name = "LSQ, " + std::to_string(books) + " codebooks: ";
    report(name + "start by the CPU", start, "", "", "");
    report(name + std::to_string(steps) + " steps, 100,000 rows", lap(),
           format("error %.0f", error), "", "");
    return {sums, std::move(words)};
}

// How often the nearest row is among the first 1, 10 and 100 rows by distance of codes.
void bench_quality(Executor& executor, const VectorSet& vectors) {
    const size_t rows = vectors.base_count(), queries = vectors.real_queries;
    std::vector<uint64_t> ids(rows);
    std::iota(ids.begin(), ids.end(), uint64_t{0});
    std::vector<Neighbor> truth(queries, {std::numeric_limits<float>::infinity(), 0});
    executor.exact_search({vectors.queries.data(), queries, vectors.base.data(), rows, ids.data(),
                           vectors.dims, Metric::l2, 1, truth.data()});
    std::vector<uint32_t> nearest;
    for (const Neighbor& neighbor : truth) nearest.push_back(static_cast<uint32_t>(neighbor.id));
    const CodeSample sample{
        vectors.dims,        Metric::l2, vectors.base.data(),    std::min(training_rows, rows),
        vectors.base.data(), rows,       vectors.queries.data(), queries,
        nearest.data()};
    Workers workers(16);
    const CodeTrial trials[] = {{CodeKind::lsq, 8, 8},
                                {CodeKind::lsq_with_norm, 8, 8},
                                {CodeKind::lsq_with_norm, 8, 8, 64},
                                {CodeKind::lsq, 8, 16},
                                {CodeKind::lsq_with_norm, 8, 16}};
    for (const CodeTrial& trial : trials) {
        const CodeQuality q = measure_codes(workers, executor, trial, sample, 1);
        char recall[64];
        std::snprintf(recall, sizeof recall, "R %.4f %.4f %.4f", q.recall[0], q.recall[1],
                      q.recall[2]);
        report("LSQ-" + std::to_string(trial.rounds) + ", " + std::to_string(trial.bytes) +
                   " bytes" + (trial.kind == CodeKind::lsq ? ", norms beside" : "") + ": training",
               q.training_seconds, recall, format("error %.4f", q.error),
               format("%.0f rows/s", q.rows_per_second));
    }
}

}  // namespace

void bench_lsq(const Context& context, const Settings& settings, const VectorSet& vectors) {
    const auto executor = make_executor(context);
    const uint32_t dims = vectors.dims;
    const size_t rows = vectors.base_count();
    // Recall needs real rows, not generated ones: measured only where --rows asks for few.
    if (rows <= 300000) return bench_quality(*executor, vectors);
    std::vector<double> sums(dims);
    for (size_t i = 0; i < vectors.base.size(); ++i) sums[i % dims] += vectors.base[i];
    std::vector<float> residuals = vectors.base;
    for (size_t i = 0; i < residuals.size(); ++i)
        residuals[i] -= static_cast<float>(sums[i % dims] / static_cast<double>(rows));

    Stream stream;
    const Blas blas(stream);
    Buffer<float> data(context.memory, residuals.size());
    copy_async(data.data(), residuals.data(), residuals.size(), stream);
    for (const uint32_t books : {7u, 8u, 16u}) {
        const Trained model = train(*executor, vectors, books, residuals);
        const std::string name = "LSQ, " + std::to_string(books) + " codebooks: ";
        Buffer<uint8_t> codes(context.memory, rows * books);
        Buffer<float> errors(context.memory, rows);
        const double tables = time_on_host(
            [&] {
                LsqEncoder(context, stream, blas, model.shape, model.words.data());
                stream.synchronize();
            },
            3, 1);
        report(name + "tables", tables, "", "", "");
        LsqEncoder encoder(context, stream, blas, model.shape, model.words.data());
        const size_t chunk = encoder.chunk_rows();
        const auto encode = [&](const LsqSearch& search, size_t end) {
            for (size_t first = 0; first < end; first += chunk)
                encoder.encode(search, data + first * dims, std::min(chunk, end - first), false,
                               codes + first * books, errors + first);
        };
        double on_device = 0;
        for (const uint32_t rounds : {0u, 16u, 32u}) {
            LsqSearch search;
            search.rounds = rounds;
            const double time = time_on_device(
                stream, [&] { encode(search, rows); }, 3, 1);
            if (rounds == 16) {
                on_device = static_cast<double>(rows) / time;
                profile(settings, [&] { encode(search, chunk); });
            }
            std::vector<float> host_errors(rows);
            copy_async(host_errors.data(), errors.data(), rows, stream);
            stream.synchronize();
            double sum = 0;
            for (const float error : host_errors) sum += error;
            report(name + std::to_string(rounds) + " rounds, on the device", time,
                   format("%.2f M vectors/s", static_cast<double>(rows) / time * 1e-6),
                   format("error %.0f", sum / static_cast<double>(rows)),
                   rounds == 16 && books < 9 ? ">= 1 M vectors/s" : "");
        }
        {
            Workers one(1);
            const pgwarp::LsqEncoder cpu(one, model.shape, model.words.data());
            std::vector<uint8_t> found(cpu_rows * books);
            double error = 0;
            const double time = time_on_host(
                [&] {
                    error = cpu.encode(one, {}, residuals.data(), cpu_rows, false, found.data());
                },
                3, 1);
            report(name + "16 rounds, one core", time, format("%.0f vectors/s", cpu_rows / time),
                   format("error %.0f", error / cpu_rows),
                   format("device: %.0f x", on_device * time / cpu_rows));
        }
        QuantizerShape shape{dims, 1, books, Metric::l2};
        shape.search_rounds = 16;
        const std::vector<float> origin(dims);
        std::vector<float> codebook(model.words.size());
        codebook_of_words(model.shape, model.words.data(), codebook.data());
        std::vector<uint32_t> lists(rows);
        std::vector<uint8_t> host_codes(rows * books);
        std::vector<float> offsets(rows);
        const double time = time_on_host(
            [&] {
                executor->encode(
                    {shape, origin.data(), codebook.data()},
                    {residuals.data(), rows, lists.data(), host_codes.data(), offsets.data()});
            },
            3, 1);
        report(name + "16 rounds, from the host", time,
               format("%.2f M vectors/s", static_cast<double>(rows) / time * 1e-6), "", "");
    }
}

}  // namespace pgwarp::gpu
