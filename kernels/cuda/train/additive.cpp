#include "kernels/cuda/train/additive.h"

#include "kernels/cuda/train/encode_chunks.h"
#include "kernels/cuda/train/sums.h"
#include "kernels/cuda/train/word_fit.h"

#include <algorithm>
#include <numeric>

namespace pgwarp::gpu {

double AdditiveCoder::step(const DeviceRows& rows, const AdditiveStep& step) {
    const LsqShape shape = lsq_shape(step.shape);
    std::vector<float> words(shape.words() * shape.dims);
    words_of_codebook(shape, step.codebook, words.data());
    const double factor = fixed_point_factor(rows.largest(), rows.count());
    LsqSearch search;
    search.rounds = lsq_training_rounds;

    LsqEncoder encoder(context_, stream_, blas_, shape, words.data());
    const size_t chunk_rows = std::min(rows.count(), encoder.chunk_rows());
    Buffer<uint8_t> codes(context_.memory, chunk_rows * shape.books);
    Buffer<float> errors(context_.memory, rows.count());
    Buffer<unsigned long long> sums(context_.memory, words.size());
    Buffer<uint32_t> together(context_.memory, shape.words() * shape.words());
    Buffer<float> fitted(context_.memory, words.size());
    std::vector<uint8_t> found(rows.count() * shape.books);
    std::vector<float> host_errors(rows.count());
    const FinishStream finish(stream_);
    clear_async(sums.data(), sums.size(), stream_);
    clear_async(together.data(), together.size(), stream_);
    copy_async(fitted.data(), encoder.words(), fitted.size(), stream_);
    rows.visit(chunk_rows, stream_, [&](const float* chunk, size_t first, size_t count) {
        uint8_t* before = step.codes + first * shape.books;
        uploader_.upload(codes.data(), static_cast<const uint8_t*>(before), count * shape.books,
                         stream_);
        encoder.encode(search, chunk, count, true, codes.data(), errors + first);
        add_words({chunk, codes.data(), count, shape.dims, shape.books, factor, sums.data()},
                  stream_);
        count_together(shape, codes.data(), count, together.data(), stream_);
        copy_async(found.data() + first * shape.books, codes.data(), count * shape.books, stream_);
    });
    copy_async(host_errors.data(), errors.data(), host_errors.size(), stream_);
    fit_words(context_, stream_, blas_,
              {shape, rows.count(), together.data(), sums.data(), factor, fitted.data()});
    copy_async(words.data(), fitted.data(), words.size(), stream_);
    check(cudaStreamSynchronize(stream_), "additive codes");

    std::vector<uint32_t> some(std::min(rows.count(), spread_rows));
    std::iota(some.begin(), some.end(), 0u);
    const std::vector<float> gathered = rows.gather(some, stream_);
    const double error = std::accumulate(host_errors.begin(), host_errors.end(), 0.0) /
                         static_cast<double>(rows.count());
    lsq_relax(shape, spread_by_dimension(gathered.data(), some.size(), shape.dims).data(), error,
              step.step, step.steps, step.seed, words.data());
    codebook_of_words(shape, words.data(), step.codebook);
    std::copy(found.begin(), found.end(), step.codes);
    return error;
}

LsqEncoder& AdditiveCoder::encoder_for(const Quantizer& quantizer) {
    return kept_.get(quantizer, [&](const LsqShape& shape, const float* words) {
        return std::make_unique<LsqEncoder>(context_, stream_, blas_, shape, words);
    });
}

void AdditiveCoder::encode_residuals(const DeviceRows& residuals, size_t count,
                                     const Quantizer& quantizer, uint8_t* codes) {
    if (count == 0) return;
    LsqEncoder& encoder = encoder_for(quantizer);
    const uint32_t m = quantizer.shape.m;
    const size_t most = std::min(count, encoder.chunk_rows());
    LsqSearch search;
    search.rounds = quantizer.shape.search_rounds;
    Buffer<uint8_t> chunk_codes(context_.memory, most * m);
    const FinishStream finish(stream_);
    residuals.visit_first(count, most, stream_, [&](const float* rows, size_t first, size_t here) {
        encoder.encode(search, rows, here, false, chunk_codes.data(), nullptr);
        copy_async(codes + first * m, static_cast<const uint8_t*>(chunk_codes.data()), here * m,
                   stream_);
    });
    check(cudaStreamSynchronize(stream_), "additive codes");
}

void AdditiveCoder::encode(const Quantizer& quantizer, const Encoding& e) {
    const QuantizerShape& model = quantizer.shape;
    LsqEncoder& encoder = encoder_for(quantizer);
    const size_t chunk_rows =
        std::min({e.count, encoder.chunk_rows(),
                  CentroidMatrix::tile_rows(model.lists, model.dims, context_.scratch() / 4)});
    Buffer<float> centroids(context_.memory, size_t{model.lists} * model.dims);
    uploader_.upload(centroids.data(), quantizer.centroids, centroids.size(), stream_);
    const CentroidMatrix matrix(context_, stream_, centroids.data(), model.lists, model.dims,
                                Origin::centroids, Wanted::nearest);
    LsqSearch search;
    search.rounds = model.search_rounds;
    encode_chunks({context_, uploader_, stream_, blas_, model, matrix, chunk_rows}, e,
                  [&](const EncodedChunk& chunk) {
                      subtract_nearest(chunk.rows, chunk.count, model.dims, centroids.data(),
                                       chunk.lists, stream_);
                      encoder.encode(search, chunk.rows, chunk.count, false, chunk.codes, nullptr);
                      sum_offsets(
                          {lsq_shape(model), model.metric, encoder.words(), centroids.data(),
                           chunk.lists, chunk.codes, chunk.count, chunk.offsets},
                          stream_);
                  });
}

}  // namespace pgwarp::gpu
