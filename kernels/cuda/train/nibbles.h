// 4-bit sub-quantizers on the device. Each half of a byte is trained and encoded as an 8-bit
// sub-quantizer whose 256 words repeat sixteen distinct ones. Only the low four bits of the word
// that is found matter.
#pragma once

#include "kernels/cuda/base/stream.h"
#include "kernels/nibbles.h"

#include <vector>

namespace pgwarp::gpu {

// The shape with one 8-bit sub-quantizer for each half of a byte.
inline QuantizerShape halves_of(const QuantizerShape& shape) {
    return {shape.dims, shape.lists, shape.parts(), shape.metric};
}

// repeated_nibble_words() makes the codebook (dims)(256) of the halves from the codebook of all
// pairs. pair_repeated_words() goes back: it reads the first sixteen words of each half.
std::vector<float> repeated_nibble_words(const QuantizerShape& shape, const float* codebook);
void pair_repeated_words(const QuantizerShape& shape, const float* repeated, float* codebook);

// Joins two codes of halves into each byte, the first in the low bits.
void join_halves(const uint8_t* halves, size_t bytes, uint8_t* codes);

// codes &= 15, on the device.
void keep_low_bits(uint8_t* codes, size_t count, cudaStream_t stream);

}  // namespace pgwarp::gpu
