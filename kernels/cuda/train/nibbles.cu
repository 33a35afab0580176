#include "kernels/cuda/train/nibbles.h"

#include "kernels/cuda/base/launch.cuh"

namespace pgwarp::gpu {

namespace {

constexpr unsigned threads = 256;

__global__ void __launch_bounds__(threads) low_bits(uint8_t* codes, size_t count) {
    for (size_t i = size_t{blockIdx.x} * threads + threadIdx.x; i < count;
         i += size_t{gridDim.x} * threads)
        codes[i] &= nibble_words - 1;
}

}  // namespace

std::vector<float> repeated_nibble_words(const QuantizerShape& shape, const float* codebook) {
    std::vector<float> words(size_t{shape.dims} * nibble_words);
    nibble_words_of(shape, codebook, words.data());
    std::vector<float> repeated(size_t{shape.dims} * codewords);
    for (size_t i = 0; i < repeated.size(); ++i)
        repeated[i] = words[i / codewords * nibble_words + i % nibble_words];
    return repeated;
}

void pair_repeated_words(const QuantizerShape& shape, const float* repeated, float* codebook) {
    std::vector<float> words(size_t{shape.dims} * nibble_words);
    for (size_t i = 0; i < words.size(); ++i)
        words[i] = repeated[i / nibble_words * codewords + i % nibble_words];
    pair_nibble_words(shape, words.data(), codebook);
}

void join_halves(const uint8_t* halves, size_t bytes, uint8_t* codes) {
    for (size_t i = 0; i < bytes; ++i)
        codes[i] = static_cast<uint8_t>((halves[2 * i] & 15) | (halves[2 * i + 1] & 15) << 4);
}

void keep_low_bits(uint8_t* codes, size_t count, cudaStream_t stream) {
    if (count == 0) return;
    launch("low_bits", low_bits, {1024, threads, 0, stream}, codes, count);
}

}  // namespace pgwarp::gpu
