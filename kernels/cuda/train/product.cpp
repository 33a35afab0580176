#include "kernels/cuda/train/product.h"

#include "kernels/common/codebook_start.h"
#include "kernels/cuda/products/products.h"
#include "kernels/cuda/train/cluster_sums.h"
#include "kernels/cuda/train/draw_pieces.h"
#include "kernels/cuda/train/nibbles.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

namespace pgwarp::gpu {

namespace {

constexpr size_t max_chunk_rows = 65536;

// Residuals and codes on the device.
void encode(Encoder& encoder, const float* residuals, size_t count, uint8_t* codes) {
    DeviceEncoding encoding;
    encoding.rows = residuals;
    encoding.count = count;
    encoding.codes = codes;
    encoder.encode(encoding);
}

}  // namespace

size_t ProductCoder::chunk_rows(uint32_t dims) const {
    return std::min(max_chunk_rows,
                    CentroidMatrix::tile_rows(codewords, dims, context_.scratch() / 2));
}

void ProductCoder::start(const DeviceRows& residuals, const QuantizerShape& shape, uint64_t seed,
                         float* codebook) const {
    const std::vector<uint32_t> drawn = draw_codewords(shape, residuals.count(), seed);
    const std::vector<float> rows = residuals.gather(drawn, stream_);
    codebook_of_rows(shape, rows.data(), drawn.size(), codebook);
}

double ProductCoder::step(const DeviceRows& residuals, const QuantizerShape& shape, float* codebook,
                          CodedRows* coded) {
    const bool halves = shape.bits == 4;
    CodedRows moved;
    moved.shape = halves ? halves_of(shape) : shape;
    if (halves)
        moved.codebook = repeated_nibble_words(shape, codebook);
    else
        moved.codebook.assign(codebook, codebook + size_t{shape.dims} * codewords);
    if (coded) moved.codes = Buffer<uint8_t>(context_.memory, residuals.count() * moved.shape.m);
    const double error = move(residuals, moved.shape, halves ? nibble_words : codewords,
                              moved.codebook.data(), moved.codes.data());
    if (halves)
        pair_repeated_words(shape, moved.codebook.data(), codebook);
    else
        std::copy(moved.codebook.begin(), moved.codebook.end(), codebook);
    if (coded) *coded = std::move(moved);
    return error;
}

void ProductCoder::encode_residuals(const DeviceRows& residuals, size_t count,
                                    const Quantizer& quantizer, uint8_t* codes) {
    if (count == 0) return;
    const bool halves = quantizer.shape.bits == 4;
    const QuantizerShape shape = halves ? halves_of(quantizer.shape) : quantizer.shape;
    std::vector<float> repeated;
    if (halves) repeated = repeated_nibble_words(quantizer.shape, quantizer.codebook);
    const Model model(context_, stream_,
                      {shape, nullptr, halves ? repeated.data() : quantizer.codebook});
    const Rotation& rotation = quantizer.rotation;
    const size_t most = std::min(count, chunk_rows(shape.dims));
    Encoder encoder(context_, stream_, blas_, model, most);
    Buffer<float> matrix, rotated;
    if (rotation.matrix) {
        matrix = Buffer<float>(context_.memory, size_t{rotation.to} * rotation.from);
        rotated = Buffer<float>(context_.memory, most * rotation.to);
    }
    Buffer<uint8_t> chunk_codes(context_.memory, most * shape.m);
    std::vector<uint8_t> half_codes(halves ? most * shape.m : 0);
    const FinishStream finish(stream_);
    copy_async(matrix.data(), rotation.matrix, matrix.size(), stream_);
    residuals.visit_first(count, most, stream_, [&](const float* rows, size_t first, size_t here) {
        if (rotation.matrix) {
            multiply(blas_, stream_,
                     {CUBLAS_OP_T, CUBLAS_OP_N, rotation.to, here, rotation.from, matrix.data(),
                      rotation.from, rows, rotation.from, rotated.data()});
            rows = rotated.data();
        }
        encode(encoder, rows, here, chunk_codes.data());
        uint8_t* to = halves ? half_codes.data() : codes + first * shape.m;
        copy_async(to, static_cast<const uint8_t*>(chunk_codes.data()), here * shape.m, stream_);
        if (!halves) return;
        check(cudaStreamSynchronize(stream_), "encode_residuals");
        join_halves(half_codes.data(), here * quantizer.shape.m, codes + first * quantizer.shape.m);
    });
    check(cudaStreamSynchronize(stream_), "encode_residuals");
}

double ProductCoder::move(const DeviceRows& rows, const QuantizerShape& shape, uint32_t words,
                          float* codebook, uint8_t* all_codes) {
    const size_t chunk_rows = this->chunk_rows(shape.dims);
    const size_t floats = size_t{shape.dims} * codewords;
    const double factor = fixed_point_factor(rows.largest(), rows.count());

    const Model model(context_, stream_, {shape, nullptr, codebook});
    Encoder encoder(context_, stream_, blas_, model, std::min(chunk_rows, rows.count()));
    Buffer<float> means(context_.memory, floats);
    copy_async(means.data(), static_cast<const float*>(codebook), floats, stream_);
    ClusterSums sums(context_.memory, floats, size_t{shape.m} * codewords, stream_);
    Buffer<uint8_t> chunk_codes;
    if (!all_codes) chunk_codes = Buffer<uint8_t>(context_.memory, chunk_rows * shape.m);
    const FinishStream finish(stream_);
    rows.visit(chunk_rows, stream_, [&](const float* chunk, size_t first, size_t count) {
        uint8_t* codes = all_codes ? all_codes + first * shape.m : chunk_codes.data();
        encode(encoder, chunk, count, codes);
        if (words < codewords) keep_low_bits(codes, count * shape.m, stream_);
        add_codes(
            model.view(),
            {chunk, codes, count, factor, sums.sums.data(), sums.counts.data(), sums.errors.data()},
            stream_);
    });
    code_means(model.view(), sums.sums.data(), sums.counts.data(), factor, means.data(), stream_);
    std::vector<float> moved(floats);
    copy_async(moved.data(), means.data(), floats, stream_);
    std::vector<size_t> used = sums.sizes(stream_);
    for (size_t w = 0; w < used.size(); ++w)
        if (w % codewords >= words) used[w] = 1;
    const double error = sums.error(stream_);
    reuse_codewords(rows, model, encoder, used, error, moved.data());
    std::memcpy(codebook, moved.data(), floats * sizeof(float));
    return error / static_cast<double>(rows.count());
}

// Moves unused codewords to pieces of rows, drawn by PieceDraw. `model` has the codebook from
// before the step, `codebook` the one after. `used`, (m)(256): rows of each codeword; `error`: sum
// over all rows.
void ProductCoder::reuse_codewords(const DeviceRows& rows, const Model& model, Encoder& encoder,
                                   const std::vector<size_t>& used, double error, float* codebook) {
    const QuantizerShape& shape = model.view().shape;
    std::vector<uint32_t> pieces;
    ptrdiff_t most = 0;
    const auto used_of = [&](uint32_t piece) {
        return used.begin() + static_cast<ptrdiff_t>(size_t{piece} * codewords);
    };
    for (uint32_t j = 0; j < shape.m; ++j) {
        const ptrdiff_t unused = std::count(used_of(j), used_of(j) + codewords, size_t{0});
        if (unused > 0) pieces.push_back(j);
        most = std::max(most, unused);
    }
    if (pieces.empty() || !(error > 0) || !std::isfinite(error)) return;

    const size_t chunk_rows = this->chunk_rows(shape.dims);
    const double mean_error = error / static_cast<double>(rows.count()) / shape.m;
    // Rounded to float: the last bits of the sum depend on the chunk size, and must not change the
    // seed.
    const uint64_t seed = std::bit_cast<uint32_t>(static_cast<float>(error));
    PieceDraw draw(context_, stream_, pieces, static_cast<uint32_t>(most), chunk_rows, seed,
                   mean_error);
    Buffer<uint8_t> codes(context_.memory, chunk_rows * shape.m);
    const FinishStream finish(stream_);
    rows.visit(chunk_rows, stream_, [&](const float* chunk, size_t first, size_t count) {
        encode(encoder, chunk, count, codes.data());
        draw.add(model.view(), chunk, codes.data(), first, count);
    });
    const std::vector<std::vector<uint32_t>> drawn = draw.finish();
    for (size_t i = 0; i < pieces.size(); ++i) {
        const std::vector<float> gathered = rows.gather(drawn[i], stream_);
        size_t next = 0;
        for (uint32_t c = 0; c < codewords && next < drawn[i].size(); ++c) {
            if (used_of(pieces[i])[c] != 0) continue;
            const float* row = gathered.data() + next++ * shape.dims;
            for (uint32_t d = shape.piece_begin(pieces[i]); d < shape.piece_begin(pieces[i] + 1);
                 ++d)
                codebook[size_t{d} * codewords + c] = row[d];
        }
    }
}

}  // namespace pgwarp::gpu
