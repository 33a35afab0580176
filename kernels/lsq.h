// Local search quantization: a residual is the sum of one codeword of each of several codebooks,
// all of full length.
//
// Such codes lose less than those of a product quantizer with as many bytes, and are harder to
// find: the codebooks are not orthogonal, so the choice in one depends on all others. The search
// is the iterated local search of Martinez, Hoos and Little (Solving multi-codebook quantization
// in the GPU, algorithms 1 and 2): some codes are set to chance, then one code after the other is
// set to its best value for the others as they are ("iterated conditional modes"), and the result
// is kept if it is better than the best before. Codebooks are fitted to codes by least squares.
//
// Which code is best for the others is decided by sums of whole numbers: the terms of
//     |x - sum_k w_k|^2 - |x|^2 = sum_k (|w_k|^2 - 2 <x, w_k>) + sum_{k < l} 2 <w_k, w_l>
// in steps of so much that the largest sum for one codebook fits sixteen bits (lsq_scale.h). Which
// of two codes is kept is decided by their errors themselves.
#pragma once

#include "kernels/common.h"
#include "kernels/quantizer.h"
#include "kernels/workers.h"

#include <memory>
#include <vector>

namespace pgwarp {

// `words` are (books)(256)(dims) everywhere below, `codes` (count)(books), rows (count)(dims).
struct LsqShape {
    uint32_t dims;
    uint32_t books;

    size_t words() const { return size_t{books} * codewords; }
};

// The words of an additive quantizer's codebook, (books * dims)(256), and back.
void words_of_codebook(const LsqShape& shape, const float* codebook, float* words);
void codebook_of_words(const LsqShape& shape, const float* words, float* codebook);

// How hard to look for codes.
struct LsqSearch {
    uint32_t rounds = 16;    // of perturbation and descent
    uint32_t sweeps = 4;     // of a descent over all codes, at most
    uint32_t perturbed = 4;  // codes
};

// Finds codes, for one set of codebooks.
class LsqEncoder {
  public:
    // Of its tables, which hold the products of all words with all others. Making them takes as
    // much again.
    static size_t bytes(const LsqShape& shape) {
        return (size_t{shape.books} * shape.books * codewords * sizeof(uint16_t) +
                shape.books * (size_t{shape.dims} + 1) * sizeof(float)) *
               codewords;
    }

    LsqEncoder(Workers& workers, const LsqShape& shape, const float* words);
    ~LsqEncoder();

    // Where `improve`, there are codes already. A row's code does not depend on the rows around,
    // but for rounding where there are few. Returns the sum of the squared errors.
    double encode(Workers& workers, const LsqSearch& search, const float* rows, size_t count,
                  bool improve, uint8_t* codes) const;
    // The same without threads of its own.
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

// --- training: a start, then so many steps of: search codes, fit the words, relax them

// Few rows are learnt soon, and fitting words takes as long for them as for many.
inline uint32_t lsq_iterations(size_t rows) {
    return rows >= 100 * size_t{codewords} ? 25 : 10;
}
inline constexpr uint32_t lsq_training_rounds = 8;  // of the search in each

// The start: the codebooks of a product quantizer of rotated rows, turned back, and its codes.
void lsq_start(Workers& workers, const LsqShape& shape, const float* rows, size_t count,
               uint64_t seed, float* words, uint8_t* codes);

// Replaces the words by those that suit the codes best. Where it throws, they are as they were.
void lsq_fit(Workers& workers, const LsqShape& shape, const float* rows, size_t count,
             const uint8_t* codes, float* words);
// The words of two codebooks can be moved against each other without a change, and a word that
// nobody uses is free: a little weight on staying small makes the solution one.
inline double lsq_fit_weight(size_t rows) {
    return 1e-4 * static_cast<double>(rows) / codewords + 1e-6;
}
// Bytes it takes beside its arguments.
size_t lsq_fit_bytes(const LsqShape& shape);

// Moves the words by chance, so that training does not settle too soon: step i of n adds noise in
// proportion to the rows' spread in each dimension and to what codes are off by, `error` being the
// mean square of that; less from step to step, and none in the last ones.
// (Stochastic relaxation, SR-D: Martinez, Zakhmi, Hoos and Little, LSQ++.)
void lsq_relax(const LsqShape& shape, const float* spread, double error, uint32_t step,
               uint32_t steps, uint64_t seed, float* words);
// Standard deviations, from some of the rows.
inline constexpr size_t spread_rows = 4096;
std::vector<float> spread_by_dimension(const float* rows, size_t count, uint32_t dims);

// --- norms, where they are a byte of the code

// 256 levels that suit the values best, in ascending order, and the nearest of them.
void fit_levels(std::vector<float> values, float* levels);
uint8_t nearest_level(const float* levels, float value);

}  // namespace pgwarp
