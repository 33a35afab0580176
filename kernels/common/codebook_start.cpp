#include "kernels/common/codebook_start.h"

#include "kernels/draw_rows.h"
#include "kernels/nibbles.h"

namespace pgwarp {

namespace {

uint32_t words_of(const QuantizerShape& shape) {
    return shape.bits == 4 ? nibble_words : codewords;
}

}  // namespace

std::vector<uint32_t> draw_codewords(const QuantizerShape& shape, size_t count, uint64_t seed) {
    return draw_rows(count, words_of(shape), seed);
}

void codebook_of_rows(const QuantizerShape& shape, const float* rows, size_t drawn,
                      float* codebook) {
    const uint32_t words = words_of(shape);
    const auto fill = [&](float* to) {
        for (uint32_t d = 0; d < shape.dims; ++d)
            for (uint32_t c = 0; c < words; ++c)
                to[size_t{d} * words + c] = rows[c % drawn * shape.dims + d];
    };
    if (shape.bits != 4) return fill(codebook);
    std::vector<float> nibbles(size_t{shape.dims} * words);
    fill(nibbles.data());
    pair_nibble_words(shape, nibbles.data(), codebook);
}

}  // namespace pgwarp
