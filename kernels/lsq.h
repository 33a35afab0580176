// Local search quantization (LSQ): a residual is the sum of one codeword from each of several
// codebooks, and every codeword has all dimensions.
//
// These codes lose less than those of a product quantizer with the same number of bytes, and are
// harder to find: the codebooks are not orthogonal, so the choice in one depends on all others. The
// search is the iterated local search of Martinez, Hoos and Little (Solving multi-codebook
// quantization in the GPU, algorithms 1 and 2). It sets some codes to random values, then sets one
// code after the other to its best value given the others ("iterated conditional modes"), and keeps
// the result if it is better than the best so far. Codebooks are fitted to codes by least squares.
//
// The best code given the others is chosen by sums of integers: the terms of
//     |x - sum_k w_k|^2 - |x|^2 = sum_k (|w_k|^2 - 2 <x, w_k>) + sum_{k < l} 2 <w_k, w_l>
// quantized with a step that lets the largest sum for one codebook fit 16 bits (lsq_scale.h). Which
// of two whole codes is kept is decided by their errors in float.
#pragma once

#include "kernels/common.h"
#include "kernels/quantizer.h"
#include "kernels/workers.h"

#include <memory>
#include <vector>

namespace pgwarp {

// Shapes below: `words` (books)(256)(dims), `codes` (count)(books), rows (count)(dims).
struct LsqShape {
    uint32_t dims;
    uint32_t books;

    size_t words() const { return size_t{books} * codewords; }
};

// Converts between an additive quantizer's codebook, (books * dims)(256), and words.
void words_of_codebook(const LsqShape& shape, const float* codebook, float* words);
void codebook_of_words(const LsqShape& shape, const float* words, float* codebook);

// The effort of the search for codes.
struct LsqSearch {
    uint32_t rounds = 16;    // of perturbation and descent
    uint32_t sweeps = 4;     // over all codes in one descent, at most
    uint32_t perturbed = 4;  // codes set to random values in a round
};

// Finds codes for one set of codebooks.
class LsqEncoder {
  public:
    // Size of the tables, which hold the products of all words with all others. The constructor
    // needs the same amount again while it makes them.
    static size_t bytes(const LsqShape& shape) {
        return (size_t{shape.books} * shape.books * codewords * sizeof(uint16_t) +
                shape.books * (size_t{shape.dims} + 1) * sizeof(float)) *
               codewords;
    }

    LsqEncoder(Workers& workers, const LsqShape& shape, const float* words);
    ~LsqEncoder();

    // With `improve`, the search starts from the codes given. A row's code does not depend on the
    // other rows, except by rounding where there are few rows. Returns the sum of squared errors.
    double encode(Workers& workers, const LsqSearch& search, const float* rows, size_t count,
                  bool improve, uint8_t* codes) const;
    // The same on the calling thread alone.
    double encode(const LsqSearch& search, const float* rows, size_t count, bool improve,
                  uint8_t* codes) const;

    const LsqShape& shape() const;
    const float* words() const;

  private:
    struct Tables;
    struct Batch;
    double search_batch(const LsqSearch& search, const float* rows, size_t count, bool improve,
                        uint8_t* codes, Batch& batch) const;
    std::unique_ptr<Tables> tables_;
};

// The sum of a code's words, (dims).
void lsq_decode(const LsqShape& shape, const float* words, const uint8_t* code, float* out);

// --- training: a start, then steps; a step searches codes, fits the words and relaxes them

// Small samples converge sooner, and fitting words takes as long for few rows as for many.
inline uint32_t lsq_iterations(size_t rows) {
    return rows >= 100 * size_t{codewords} ? 25 : 10;
}
inline constexpr uint32_t lsq_training_rounds = 8;  // of the search, in each step

// The start: codebooks of a product quantizer of rotated rows, rotated back, and its codes.
void lsq_start(Workers& workers, const LsqShape& shape, const float* rows, size_t count,
               uint64_t seed, float* words, uint8_t* codes);

// Replaces the words by the least-squares fit to the codes. On a throw the words are unchanged.
void lsq_fit(Workers& workers, const LsqShape& shape, const float* rows, size_t count,
             const uint8_t* codes, float* words);
// Regularization. Words of two codebooks can shift against each other without changing any sum, and
// an unused word is unconstrained: a small weight on the norm makes the solution unique.
inline double lsq_fit_weight(size_t rows) {
    return 1e-4 * static_cast<double>(rows) / codewords + 1e-6;
}
// Bytes that lsq_fit() takes beside its arguments.
size_t lsq_fit_bytes(const LsqShape& shape);

// Adds noise to the words, so that training does not converge too early. The noise of step i of n
// is proportional to the rows' spread in each dimension and to the root of `error`, the mean
// squared error of the codes. It decreases from step to step and is zero in the last ones.
// (Stochastic relaxation, SR-D: Martinez, Zakhmi, Hoos and Little, LSQ++.)
void lsq_relax(const LsqShape& shape, const float* spread, double error, uint32_t step,
               uint32_t steps, uint64_t seed, float* words);
// Standard deviation of each dimension, from a sample of the rows.
inline constexpr size_t spread_rows = 4096;
std::vector<float> spread_by_dimension(const float* rows, size_t count, uint32_t dims);

// --- norms, where a byte of the code holds them

// Fits 256 levels to the values, in ascending order; finds the nearest level.
void fit_levels(std::vector<float> values, float* levels);
uint8_t nearest_level(const float* levels, float value);

}  // namespace pgwarp
