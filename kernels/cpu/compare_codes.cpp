#include "kernels/compare_codes.h"

#include "kernels/additive.h"
#include "kernels/candidates.h"
#include "kernels/distance.h"
#include "kernels/list_scan.h"
#include "kernels/product_quantizer.h"
#include "kernels/rotation.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <utility>
#include <vector>

namespace pgwarp {

namespace {

constexpr int codebook_iterations = 16;
constexpr int rotation_iterations = 32;
constexpr size_t kept = 100;
constexpr size_t scanned_rows = 4096;

class Stopwatch {
  public:
    double seconds() const {
        return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
    }

  private:
    std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

std::vector<float> mean_of(const float* rows, size_t count, uint32_t dims) {
    std::vector<double> sums(dims);
    for (size_t i = 0; i < count; ++i)
        for (uint32_t d = 0; d < dims; ++d) sums[d] += rows[i * dims + d];
    std::vector<float> mean(dims);
    for (uint32_t d = 0; d < dims; ++d)
        mean[d] = static_cast<float>(sums[d] / static_cast<double>(count));
    return mean;
}

std::vector<float> without(const std::vector<float>& mean, const float* rows, size_t count) {
    std::vector<float> residuals(rows, rows + count * mean.size());
    for (size_t i = 0; i < residuals.size(); ++i) residuals[i] -= mean[i % mean.size()];
    return residuals;
}

// Codes of rows relative to the mean, and the inputs of a scan.
struct Coded {
    uint32_t m;
    std::vector<uint8_t> codes;  // (count)(m)
    std::vector<float> offsets;  // (count)
    double training_seconds, encoding_seconds;
    double error;  // mean squared
};

// Makes the table, (m)(256), of a query that is not rotated or centred yet.
using TableMaker = std::function<void(const float* query, float* table)>;

struct ProductSearcher {
    QuantizerShape shape;
    std::vector<float> centroid, codebook, matrix;
    Rotation rotation() const {
        return matrix.empty() ? Rotation{} : Rotation{shape.dims, shape.dims, matrix.data()};
    }
    void table(const float* query, float* out) const {
        std::vector<float> rotated(query, query + shape.dims);
        if (!matrix.empty()) rotate_one(rotation(), query, rotated.data());
        build_table({shape, centroid.data(), codebook.data()}, rotated.data(), out);
    }
};

TableMaker code_products(Workers& workers, const CodeTrial& trial, const CodeSample& s,
                         uint64_t seed, Coded* coded) {
    ProductSearcher searcher;
    Stopwatch training;
    const std::vector<float> mean = mean_of(s.training, s.training_count, s.dims);
    std::vector<float> residuals = without(mean, s.training, s.training_count);
    const QuantizerShape shape{s.dims, 1, trial.bytes, s.metric, trial.bits};
    searcher.shape = shape;
    searcher.centroid = mean;
    searcher.codebook.resize(size_t{s.dims} * codewords);
    float* codebook = searcher.codebook.data();
    if (trial.kind == CodeKind::opq) {
        searcher.matrix.resize(size_t{s.dims} * s.dims);
        float* matrix = searcher.matrix.data();
        rotation_start(workers, shape, residuals.data(), s.training_count, s.dims, matrix);
        std::vector<float> rotated(residuals.size());
        rotate(workers, searcher.rotation(), residuals.data(), s.training_count, rotated.data());
        codebook_start(shape, rotated.data(), s.training_count, seed, codebook);
        for (int i = 0; i < rotation_iterations; ++i)
            rotation_step(workers, shape, residuals.data(), s.training_count, s.dims, matrix,
                          codebook);
        rotate(workers, searcher.rotation(), residuals.data(), s.training_count, rotated.data());
        residuals = std::move(rotated);
        rotate_one(searcher.rotation(), mean.data(), searcher.centroid.data());
    } else {
        codebook_start(shape, residuals.data(), s.training_count, seed, codebook);
    }
    for (int i = 0; i < codebook_iterations; ++i)
        codebook_step(workers, shape, residuals.data(), s.training_count, codebook);
    coded->training_seconds = training.seconds();

    Stopwatch encoding;
    std::vector<float> rotated;
    const float* rows = s.rows;
    if (trial.kind == CodeKind::opq) {
        rotated.resize(s.count * s.dims);
        rotate(workers, searcher.rotation(), s.rows, s.count, rotated.data());
        rows = rotated.data();
    }
    coded->m = trial.bytes;
    coded->codes.resize(s.count * trial.bytes);
    coded->offsets.resize(s.count);
    std::vector<uint32_t> lists(s.count);
    encode(workers, {shape, searcher.centroid.data(), codebook},
           {rows, s.count, lists.data(), coded->codes.data(), coded->offsets.data()});
    coded->encoding_seconds = encoding.seconds();
    coded->error = 0;
    for (size_t i = 0; i < s.count; ++i)
        for (uint32_t j = 0; j < shape.m; ++j)
            for (uint32_t d = shape.piece_begin(j); d < shape.piece_begin(j + 1); ++d) {
                const double off = double{rows[i * s.dims + d]} - searcher.centroid[d] -
                                   codebook[size_t{d} * codewords + coded->codes[i * shape.m + j]];
                coded->error += off * off;
            }
    coded->error /= static_cast<double>(s.count);
    return [searcher](const float* query, float* table) { searcher.table(query, table); };
}

// Starts from a rotated product quantizer of some of the residuals.
void train_sums(Workers& workers, Executor& executor, const QuantizerShape& shape,
                std::vector<float>& residuals, uint64_t seed, float* codebook) {
    const size_t count = residuals.size() / shape.dims;
    const LsqShape sums = lsq_shape(shape);
    std::vector<float> words(sums.words() * shape.dims);
    std::vector<uint8_t> codes(count * shape.m);
    lsq_start(workers, sums, residuals.data(), count, seed, words.data(), codes.data());
    codebook_of_words(sums, words.data(), codebook);
    const auto data = executor.take(residuals.data(), count, shape.dims);
    const uint32_t steps = lsq_iterations(count);
    for (uint32_t step = 0; step < steps; ++step)
        executor.additive_step(*data, {shape, step, steps, seed, codebook, codes.data()});
}

TableMaker code_sums(Workers& workers, Executor& executor, const CodeTrial& trial,
                     const CodeSample& s, uint64_t seed, Coded* coded) {
    const bool norm_byte = trial.kind == CodeKind::lsq_with_norm;
    QuantizerShape shape{s.dims, 1, trial.bytes - norm_byte, s.metric};
    shape.search_rounds = trial.rounds;
    Stopwatch training;
    const std::vector<float> mean = mean_of(s.training, s.training_count, s.dims);
    std::vector<float> residuals = without(mean, s.training, s.training_count);
    std::vector<float> codebook(size_t{shape.codebook_rows()} * codewords);
    train_sums(workers, executor, shape, residuals, seed, codebook.data());
    coded->training_seconds = training.seconds();

    Stopwatch encoding;
    // Relative to the mean, so that offsets are norms.
    const std::vector<float> origin(s.dims);
    residuals = without(mean, s.rows, s.count);
    std::vector<uint32_t> lists(s.count);
    std::vector<uint8_t> codes(s.count * shape.m);
    std::vector<float> norms(s.count), levels(codewords);
    executor.encode({shape, origin.data(), codebook.data()},
                    {residuals.data(), s.count, lists.data(), codes.data(), norms.data()});
    coded->encoding_seconds = encoding.seconds();
    std::vector<float> words(codebook.size()), decoded(s.dims);
    words_of_codebook(lsq_shape(shape), codebook.data(), words.data());
    coded->error = 0;
    for (size_t i = 0; i < s.count; ++i) {
        lsq_decode(lsq_shape(shape), words.data(), codes.data() + i * shape.m, decoded.data());
        coded->error += squared_l2_distance(residuals.data() + i * s.dims, decoded.data(), s.dims);
    }
    coded->error /= static_cast<double>(s.count);
    coded->m = trial.bytes;
    if (norm_byte) {
        fit_levels(norms, levels.data());
        coded->codes.resize(s.count * trial.bytes);
        for (size_t i = 0; i < s.count; ++i) {
            std::copy_n(codes.data() + i * shape.m, shape.m, coded->codes.data() + i * trial.bytes);
            coded->codes[i * trial.bytes + shape.m] = nearest_level(levels.data(), norms[i]);
        }
        std::fill(norms.begin(), norms.end(), 0.0f);
    } else {
        coded->codes = std::move(codes);
    }
    coded->offsets = std::move(norms);
    return [=](const float* query, float* table) {
        std::vector<float> around(query, query + shape.dims);
        for (uint32_t d = 0; d < shape.dims; ++d) around[d] -= mean[d];
        build_table({shape, origin.data(), codebook.data()}, around.data(), table);
        if (norm_byte) std::copy(levels.begin(), levels.end(), table + size_t{shape.m} * codewords);
    };
}

// (count)(m) as blocks of columns, so that a block's distances stay in the cache.
std::vector<uint8_t> in_columns(const std::vector<uint8_t>& codes, size_t count, uint32_t m) {
    std::vector<uint8_t> columns(codes.size() + 16);
    for (size_t first = 0; first < count; first += scanned_rows) {
        const size_t here = std::min(scanned_rows, count - first);
        for (uint32_t j = 0; j < m; ++j)
            for (size_t i = 0; i < here; ++i)
                columns[first * m + j * here + i] = codes[(first + i) * m + j];
    }
    return columns;
}

void search_all(Workers& workers, const CodeSample& s, const TableMaker& make_table,
                const Coded& coded, double* recall) {
    const std::vector<uint8_t> columns = in_columns(coded.codes, s.count, coded.m);
    std::vector<uint32_t> place(s.query_count);
    workers.run(s.query_count, [&](size_t q, int) {
        std::vector<float> table(size_t{coded.m} * codewords), distances(scanned_rows + 8);
        make_table(s.queries + q * s.dims, table.data());
        std::vector<Candidate> room(CandidateSelection::room_for(kept));
        CandidateSelection selection(room.data(), kept, no_floor);
        for (size_t first = 0; first < s.count; first += scanned_rows) {
            const auto here = static_cast<uint32_t>(std::min(scanned_rows, s.count - first));
            scan_codes(table.data(), coded.m,
                       {columns.data() + first * coded.m, here, here, coded.offsets.data() + first},
                       0, distances.data());
            for (uint32_t l = 0; l < here; ++l)
                if (!(distances[l] > selection.bound())) selection.offer(distances[l], first + l);
        }
        const size_t found = selection.finish().count;
        place[q] = kept;
        for (uint32_t i = 0; i < found; ++i)
            if (room[i].id == s.nearest[q]) place[q] = i;
    });
    const uint32_t depths[] = {1, 10, 100};
    for (int i = 0; i < 3; ++i) {
        size_t hits = 0;
        for (const uint32_t at : place) hits += at < depths[i];
        recall[i] =
            s.query_count ? static_cast<double>(hits) / static_cast<double>(s.query_count) : 0;
    }
}

double spread_of(const CodeSample& s) {
    const std::vector<float> mean = mean_of(s.rows, s.count, s.dims);
    double sum = 0;
    for (size_t i = 0; i < s.count; ++i)
        sum += squared_l2_distance(s.rows + i * s.dims, mean.data(), s.dims);
    return sum / static_cast<double>(s.count);
}

}  // namespace

CodeQuality measure_codes(Workers& workers, Executor& executor, const CodeTrial& trial,
                          const CodeSample& sample, uint64_t seed) {
    Coded coded;
    const bool sums = trial.kind == CodeKind::lsq || trial.kind == CodeKind::lsq_with_norm;
    const TableMaker make_table = sums ? code_sums(workers, executor, trial, sample, seed, &coded)
                                       : code_products(workers, trial, sample, seed, &coded);
    CodeQuality quality{};
    quality.training_seconds = coded.training_seconds;
    quality.rows_per_second = static_cast<double>(sample.count) / coded.encoding_seconds;
    const double spread = spread_of(sample);
    quality.error = spread > 0 ? coded.error / spread : 0;
    search_all(workers, sample, make_table, coded, quality.recall);
    return quality;
}

}  // namespace pgwarp
