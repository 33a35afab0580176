#include "kernels/nibbles.h"

namespace pgwarp {

void pair_nibble_words(const QuantizerShape& shape, const float* words, float* codebook) noexcept {
    for (uint32_t p = 0; p < shape.parts(); ++p)
        for (uint32_t d = shape.part_begin(p); d < shape.part_begin(p + 1); ++d)
            for (uint32_t c = 0; c < codewords; ++c)
                codebook[size_t{d} * codewords + c] =
                    words[size_t{d} * nibble_words + (p % 2 ? c >> 4 : c & 15)];
}

void nibble_words_of(const QuantizerShape& shape, const float* codebook, float* words) noexcept {
    for (uint32_t p = 0; p < shape.parts(); ++p)
        for (uint32_t d = shape.part_begin(p); d < shape.part_begin(p + 1); ++d)
            for (uint32_t c = 0; c < nibble_words; ++c)
                words[size_t{d} * nibble_words + c] =
                    codebook[size_t{d} * codewords + (p % 2 ? c << 4 : c)];
}

void nibble_half_norms(const float* words, uint32_t part_dims, float* half_norms) noexcept {
    for (uint32_t c = 0; c < nibble_words; ++c) half_norms[c] = 0;
    for (uint32_t d = 0; d < part_dims; ++d)
        for (uint32_t c = 0; c < nibble_words; ++c) {
            const float w = words[size_t{d} * nibble_words + c];
            half_norms[c] += 0.5f * w * w;
        }
}

// Ranks by |w|^2 / 2 - <x, w>, which has the order of |x - w|^2. Compilers vectorise the sixteen
// sums.
uint8_t nearest_nibble(const float* part, uint32_t part_dims, const float* words,
                       const float* half_norms) noexcept {
    float scores[nibble_words];
    for (uint32_t c = 0; c < nibble_words; ++c) scores[c] = half_norms[c];
    for (uint32_t d = 0; d < part_dims; ++d) {
        const float x = part[d];
        const float* row = words + size_t{d} * nibble_words;
        for (uint32_t c = 0; c < nibble_words; ++c) scores[c] -= x * row[c];
    }
    uint32_t best = 0;
    for (uint32_t c = 1; c < nibble_words; ++c)
        if (scores[c] < scores[best]) best = c;
    return static_cast<uint8_t>(best);
}

float encode_nibbles(const QuantizerShape& shape, const float* words, const float* residual,
                     const float* centroid, uint8_t* code) noexcept {
    double offset = 0;
    for (uint32_t p = 0; p < shape.parts(); ++p) {
        const uint32_t first = shape.part_begin(p);
        const uint32_t part_dims = shape.part_begin(p + 1) - first;
        const float* part_words = words + size_t{first} * nibble_words;
        float half_norms[nibble_words];
        nibble_half_norms(part_words, part_dims, half_norms);
        const uint8_t best = nearest_nibble(residual + first, part_dims, part_words, half_norms);
        code[p / 2] = p % 2 ? static_cast<uint8_t>(code[p / 2] | best << 4) : best;
        for (uint32_t d = 0; d < part_dims; ++d) {
            const float w = part_words[size_t{d} * nibble_words + best];
            offset += w * (w + 2.0 * centroid[first + d]);
        }
    }
    return static_cast<float>(offset);
}

NibbleEncoder::NibbleEncoder(const QuantizerShape& shape, const float* codebook)
    : shape_(shape),
      words_(size_t{shape.dims} * nibble_words),
      half_norms_(size_t{shape.parts()} * nibble_words) {
    nibble_words_of(shape, codebook, words_.data());
    for (uint32_t p = 0; p < shape.parts(); ++p) {
        const uint32_t first = shape.part_begin(p);
        nibble_half_norms(words_.data() + size_t{first} * nibble_words,
                          shape.part_begin(p + 1) - first,
                          half_norms_.data() + size_t{p} * nibble_words);
    }
}

void NibbleEncoder::encode(const float* residual, uint8_t* code) const noexcept {
    for (uint32_t p = 0; p < shape_.parts(); ++p) {
        const uint32_t first = shape_.part_begin(p);
        const uint8_t best = nearest_nibble(residual + first, shape_.part_begin(p + 1) - first,
                                            words_.data() + size_t{first} * nibble_words,
                                            half_norms_.data() + size_t{p} * nibble_words);
        code[p / 2] = p % 2 ? static_cast<uint8_t>(code[p / 2] | best << 4) : best;
    }
}

}  // namespace pgwarp
