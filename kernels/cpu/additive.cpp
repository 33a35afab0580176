#include "kernels/additive.h"

#include "kernels/kmeans.h"
#include "kernels/product_quantizer.h"

#include <algorithm>

namespace pgwarp {

namespace {

// Rows whose residuals are encoded at a time.
constexpr size_t block_rows = 8192;

}  // namespace

float additive_offset(const LsqShape& shape, Metric metric, const float* words,
                      const float* centroid, const uint8_t* code, float* decoded) {
    if (!has_norms(metric)) return 0;
    lsq_decode(shape, words, code, decoded);
    double offset = 0;
    for (uint32_t d = 0; d < shape.dims; ++d)
        offset += decoded[d] * (decoded[d] + 2.0 * centroid[d]);
    return static_cast<float>(offset);
}

void AdditiveEncoder::encode(Workers& workers, const Quantizer& quantizer, const Encoding& e) {
    const QuantizerShape& model = quantizer.shape;
    const LsqShape shape = lsq_shape(model);
    const LsqEncoder& encoder = kept_.get(quantizer, [&](const LsqShape& of, const float* words) {
        return std::make_unique<LsqEncoder>(workers, of, words);
    });
    assign_nearest(
        workers, {e.rows, e.count, model.dims, quantizer.centroids, model.lists, e.lists, nullptr},
        quantizer.parents);
    LsqSearch search;
    search.rounds = model.search_rounds;
    std::vector<float> residuals(std::min(block_rows, e.count) * model.dims), decoded(model.dims);
    for (size_t first = 0; first < e.count; first += block_rows) {
        const size_t here = std::min(block_rows, e.count - first);
        std::copy_n(e.rows + first * model.dims, here * model.dims, residuals.begin());
        subtract_centroids(residuals.data(), here, model.dims, quantizer.centroids,
                           e.lists + first);
        encoder.encode(workers, search, residuals.data(), here, false, e.codes + first * model.m);
    }
    for (size_t i = 0; i < e.count; ++i)
        e.offsets[i] = additive_offset(shape, model.metric, encoder.words(),
                                       quantizer.centroids + size_t{e.lists[i]} * model.dims,
                                       e.codes + i * model.m, decoded.data());
}

double lsq_step(Workers& workers, const AdditiveStep& step, const float* rows, size_t count) {
    const LsqShape shape = lsq_shape(step.shape);
    std::vector<float> words(shape.words() * shape.dims);
    words_of_codebook(shape, step.codebook, words.data());
    LsqSearch search;
    search.rounds = lsq_training_rounds;
    const double error = LsqEncoder(workers, shape, words.data())
                             .encode(workers, search, rows, count, true, step.codes);
    lsq_fit(workers, shape, rows, count, step.codes, words.data());
    const double mean_error = error / static_cast<double>(count);
    lsq_relax(shape, spread_by_dimension(rows, count, shape.dims).data(), mean_error, step.step,
              step.steps, step.seed, words.data());
    codebook_of_words(shape, words.data(), step.codebook);
    return mean_error;
}

void additive_start(const QuantizerShape& shape, const float* matrix, const float* product_codebook,
                    float* codebook) {
    const uint32_t dims = shape.dims;
    const QuantizerShape product{dims, 1, shape.m, shape.metric};
    std::fill_n(codebook, size_t{shape.codebook_rows()} * codewords, 0.0f);
    for (uint32_t k = 0; k < shape.m; ++k)
        for (uint32_t p = product.piece_begin(k); p < product.piece_begin(k + 1); ++p) {
            const float* parts = product_codebook + size_t{p} * codewords;
            for (uint32_t d = 0; d < dims; ++d) {
                const float direction = matrix[size_t{p} * dims + d];
                float* row = codebook + (size_t{k} * dims + d) * codewords;
                for (uint32_t c = 0; c < codewords; ++c) row[c] += parts[c] * direction;
            }
        }
}

}  // namespace pgwarp
