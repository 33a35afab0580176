#include "kernels/product_quantizer.h"

#include "kernels/common/codebook_start.h"
#include "kernels/cpu/encode_piece.h"
#include "kernels/kmeans.h"
#include "kernels/nibbles.h"
#include "kernels/random.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>
#include <optional>
#include <vector>

namespace pgwarp {

namespace {

constexpr size_t tile_rows = 128;

size_t tiles_of(size_t count) {
    return (count + tile_rows - 1) / tile_rows;
}

// An unused codeword moves to the piece of a residual, drawn with a probability proportional to its
// squared error: the rule of k-means++. Where many pieces are equal, as in the corners of pictures,
// the start draws most codewords there. Those pieces have no error, so this moves all but one of
// the codewords away. `errors_up_to`: prefix sums of the pieces' errors.
void reuse_codewords(const float* pieces, size_t stride, uint32_t piece_dims, uint32_t words,
                     const std::vector<double>& errors_up_to, const std::vector<size_t>& used,
                     float* codebook) {
    const double all = errors_up_to.back();
    if (!(all > 0) || !std::isfinite(all)) return;
    Random random(std::bit_cast<uint64_t>(all));  // draws differ between iterations
    for (uint32_t c = 0; c < words; ++c) {
        if (used[c] != 0) continue;
        const auto drawn =
            std::upper_bound(errors_up_to.begin(), errors_up_to.end() - 1, random.uniform() * all);
        const float* piece = pieces + static_cast<size_t>(drawn - errors_up_to.begin()) * stride;
        for (uint32_t d = 0; d < piece_dims; ++d) codebook[size_t{d} * words + c] = piece[d];
    }
}

// Moves the `words` codewords of one sub-quantizer to the means of their pieces and returns the sum
// of squared errors before the move.
double move_codewords(const float* pieces, size_t stride, uint32_t piece_dims, uint32_t words,
                      const std::vector<uint8_t>& codes, float* codebook) {
    std::vector<double> sums(size_t{piece_dims} * words);
    std::vector<double> errors_up_to(codes.size());
    std::vector<size_t> used(words);
    double error = 0;
    for (size_t i = 0; i < codes.size(); ++i) {
        const float* x = pieces + i * stride;
        ++used[codes[i]];
        for (uint32_t d = 0; d < piece_dims; ++d) {
            const size_t at = size_t{d} * words + codes[i];
            const double off = double{x[d]} - codebook[at];
            error += off * off;
            sums[at] += x[d];
        }
        errors_up_to[i] = error;
    }
    for (uint32_t c = 0; c < words; ++c) {
        if (used[c] == 0) continue;
        for (uint32_t d = 0; d < piece_dims; ++d) {
            const size_t at = size_t{d} * words + c;
            codebook[at] = static_cast<float>(sums[at] / static_cast<double>(used[c]));
        }
    }
    reuse_codewords(pieces, stride, piece_dims, words, errors_up_to, used, codebook);
    return error;
}

// |r'|^2 + 2 <c, r'>, the entry's part of the L2 distance. Inner product has no such part.
float entry_offset(const Quantizer& quantizer, const float* centroid, const uint8_t* code) {
    if (!has_norms(quantizer.shape.metric)) return 0;
    double offset = 0;
    for (uint32_t j = 0; j < quantizer.shape.m; ++j)
        for (uint32_t d = quantizer.shape.piece_begin(j); d < quantizer.shape.piece_begin(j + 1);
             ++d) {
            const float r = quantizer.codebook[size_t{d} * codewords + code[j]];
            offset += r * (r + 2.0 * centroid[d]);
        }
    return static_cast<float>(offset);
}

std::vector<float> all_half_norms(const QuantizerShape& shape, const float* codebook) {
    std::vector<float> norms(size_t{shape.m} * codewords);
    for (uint32_t j = 0; j < shape.m; ++j) {
        const uint32_t begin = shape.piece_begin(j);
        half_norms_of(codebook + size_t{begin} * codewords, shape.piece_begin(j + 1) - begin,
                      norms.data() + size_t{j} * codewords);
    }
    return norms;
}

// `nibbles`: null where sub-quantizers have eight bits.
void encode_tile(const Quantizer& quantizer, const Encoding& e, const float* half_norms,
                 const NibbleEncoder* nibbles, size_t begin, size_t end, float* residuals) {
    const QuantizerShape& shape = quantizer.shape;
    for (size_t i = begin; i < end; ++i) {
        const float* centroid = quantizer.centroids + size_t{e.lists[i]} * shape.dims;
        const float* row = e.rows + i * shape.dims;
        float* residual = residuals + (i - begin) * shape.dims;
        for (uint32_t d = 0; d < shape.dims; ++d) residual[d] = row[d] - centroid[d];
    }
    if (nibbles) {
        for (size_t i = begin; i < end; ++i)
            nibbles->encode(residuals + (i - begin) * shape.dims, e.codes + i * shape.m);
    } else {
        for (uint32_t j = 0; j < shape.m; ++j) {
            const uint32_t first = shape.piece_begin(j);
            encode_piece(
                {residuals + first, shape.dims, end - begin, shape.piece_begin(j + 1) - first,
                 quantizer.codebook + size_t{first} * codewords, half_norms + size_t{j} * codewords,
                 e.codes + begin * shape.m + j, shape.m});
        }
    }
    for (size_t i = begin; i < end; ++i)
        e.offsets[i] =
            entry_offset(quantizer, quantizer.centroids + size_t{e.lists[i]} * shape.dims,
                         e.codes + i * shape.m);
}

}  // namespace

void subtract_centroids(float* rows, size_t count, uint32_t dims, const float* centroids,
                        const uint32_t* nearest) {
    for (size_t i = 0; i < count; ++i) {
        const float* centroid = centroids + size_t{nearest[i]} * dims;
        for (uint32_t d = 0; d < dims; ++d) rows[i * dims + d] -= centroid[d];
    }
}

void codebook_start(const QuantizerShape& shape, const float* residuals, size_t count,
                    uint64_t seed, float* codebook) {
    const std::vector<uint32_t> drawn = draw_codewords(shape, count, seed);
    std::vector<float> rows(drawn.size() * shape.dims);
    for (size_t i = 0; i < drawn.size(); ++i)
        std::copy_n(residuals + size_t{drawn[i]} * shape.dims, shape.dims,
                    rows.data() + i * shape.dims);
    codebook_of_rows(shape, rows.data(), drawn.size(), codebook);
}

namespace {

double nibble_step(Workers& workers, const QuantizerShape& shape, const float* residuals,
                   size_t count, float* codebook, uint8_t* all_codes) {
    std::vector<float> words(size_t{shape.dims} * nibble_words);
    nibble_words_of(shape, codebook, words.data());
    std::vector<double> errors(shape.parts());
    // One byte per task: two tasks must not write halves of the same byte.
    workers.run(shape.m, [&](size_t j, int) {
        std::vector<uint8_t> codes(count);
        for (uint32_t half = 0; half < 2; ++half) {
            const uint32_t p = 2 * static_cast<uint32_t>(j) + half;
            const uint32_t first = shape.part_begin(p);
            const uint32_t part_dims = shape.part_begin(p + 1) - first;
            float* part_words = words.data() + size_t{first} * nibble_words;
            float half_norms[nibble_words];
            nibble_half_norms(part_words, part_dims, half_norms);
            for (size_t i = 0; i < count; ++i)
                codes[i] = nearest_nibble(residuals + i * shape.dims + first, part_dims, part_words,
                                          half_norms);
            errors[p] = move_codewords(residuals + first, shape.dims, part_dims, nibble_words,
                                       codes, part_words);
            if (!all_codes) continue;
            for (size_t i = 0; i < count; ++i) {
                uint8_t& code = all_codes[i * shape.m + j];
                code = half ? static_cast<uint8_t>(code | codes[i] << 4) : codes[i];
            }
        }
    });
    pair_nibble_words(shape, words.data(), codebook);
    return std::accumulate(errors.begin(), errors.end(), 0.0) / static_cast<double>(count);
}

}  // namespace

double codebook_step(Workers& workers, const QuantizerShape& shape, const float* residuals,
                     size_t count, float* codebook, uint8_t* all_codes) {
    if (shape.bits == 4) return nibble_step(workers, shape, residuals, count, codebook, all_codes);
    std::vector<float> moved(codebook, codebook + size_t{shape.dims} * codewords);
    std::vector<double> errors(shape.m);
    workers.run(shape.m, [&](size_t j, int) {
        const uint32_t first = shape.piece_begin(static_cast<uint32_t>(j));
        const uint32_t piece_dims = shape.piece_begin(static_cast<uint32_t>(j) + 1) - first;
        float* words = moved.data() + size_t{first} * codewords;
        float half_norms[codewords];
        half_norms_of(words, piece_dims, half_norms);
        std::vector<uint8_t> codes(count);
        encode_piece(
            {residuals + first, shape.dims, count, piece_dims, words, half_norms, codes.data(), 1});
        errors[j] =
            move_codewords(residuals + first, shape.dims, piece_dims, codewords, codes, words);
        if (all_codes)
            for (size_t i = 0; i < count; ++i) all_codes[i * shape.m + j] = codes[i];
    });
    std::memcpy(codebook, moved.data(), moved.size() * sizeof(float));
    return std::accumulate(errors.begin(), errors.end(), 0.0) / static_cast<double>(count);
}

void encode_assigned(Workers& workers, const Quantizer& quantizer, const Encoding& e) {
    std::optional<NibbleEncoder> nibbles;
    std::vector<float> half_norms;
    if (quantizer.shape.bits == 4)
        nibbles.emplace(quantizer.shape, quantizer.codebook);
    else
        half_norms = all_half_norms(quantizer.shape, quantizer.codebook);
    auto residuals = workers.scratch(tile_rows * size_t{quantizer.shape.dims});
    workers.run(tiles_of(e.count), [&](size_t tile, int thread) {
        encode_tile(quantizer, e, half_norms.data(), nibbles ? &*nibbles : nullptr,
                    tile * tile_rows, std::min(e.count, (tile + 1) * tile_rows),
                    residuals[thread].data());
    });
}

void encode(Workers& workers, const Quantizer& quantizer, const Encoding& e) {
    assign_nearest(workers,
                   {e.rows, e.count, quantizer.shape.dims, quantizer.centroids,
                    quantizer.shape.lists, e.lists, nullptr},
                   quantizer.parents);
    encode_assigned(workers, quantizer, e);
}

}  // namespace pgwarp
