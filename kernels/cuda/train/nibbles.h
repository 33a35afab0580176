// Sub-quantizers of four bits on the device: as sub-quantizers of eight, twice as many, whose 256
// words are sixteen over and over. Which of the equal ones is found does not matter; the low four
// bits of its number do.
#pragma once

#include "kernels/cuda/base/stream.h"
#include "kernels/nibbles.h"

#include <vector>

namespace pgwarp::gpu {

// The shape of the halves.
inline QuantizerShape halves_of(const QuantizerShape& shape) {
    return {shape.dims, shape.lists, shape.parts(), shape.metric};
}

// The codebook (dims)(256) of the halves, from one that has all pairs, and back from their first
// sixteen words.
std::vector<float> repeated_nibble_words(const QuantizerShape& shape, const float* codebook);
void pair_repeated_words(const QuantizerShape& shape, const float* repeated, float* codebook);

// Two halves a byte, the first in its lower bits.
void join_halves(const uint8_t* halves, size_t bytes, uint8_t* codes);

// codes &= 15, on the device.
void keep_low_bits(uint8_t* codes, size_t count, cudaStream_t stream);

}  // namespace pgwarp::gpu
