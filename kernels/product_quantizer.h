// Trains the product quantizer and encodes vectors. See quantizer.h for the model. Training needs
// at least one residual.
#pragma once

#include "kernels/bfloat16.h"
#include "kernels/common.h"
#include "kernels/quantizer.h"
#include "kernels/workers.h"

namespace pgwarp {

// rows[i] -= centroids[nearest[i]]
void subtract_centroids(float* rows, size_t count, uint32_t dims, const float* centroids,
                        const uint32_t* nearest);

// The start: for each sub-quantizer 256 residuals drawn with `seed`.
void codebook_start(const QuantizerShape& shape, const float* residuals, size_t count,
                    uint64_t seed, float* codebook);

// One Lloyd iteration of all sub-quantizers; moves an unused codeword to where the error is.
// Returns the mean squared error of the residuals before the move. `codes`, (count)(m), where not
// null, receives the codes before the move. On a throw the codebook is unchanged.
double codebook_step(Workers& workers, const QuantizerShape& shape, const float* residuals,
                     size_t count, float* codebook, uint8_t* codes = nullptr);

// What the list scan needs for each row: its list, its code, its offset.
struct Encoding {
    const float* rows;  // (count)(dims), normalised for cosine
    size_t count;
    uint32_t* lists;  // (count)
    uint8_t* codes;   // (count)(m)
    float* offsets;   // (count)
};
void encode(Workers& workers, const Quantizer& quantizer, const Encoding& encoding);

// The same for rows whose lists are given.
void encode_assigned(Workers& workers, const Quantizer& quantizer, const Encoding& encoding);

// Encodes one vector, taking the codebook row by row, as index pages hold it: add() for each
// dimension of a piece, then finish(). Neither throws.
class PieceEncoder {
  public:
    PieceEncoder() noexcept { reset(); }
    void add(float residual, float centroid, const float* codebook_row) noexcept;
    void add(float residual, float centroid, const bfloat16* codebook_row) noexcept;
    struct Result {
        uint8_t code;
        float offset;  // |w|^2 + 2 <c, w>, the piece's part of the entry's offset
    };
    Result finish() noexcept;

  private:
    void reset() noexcept;
    float scores_[codewords];  // |w|^2 / 2 - <r, w>
    float offsets_[codewords];
};

}  // namespace pgwarp
