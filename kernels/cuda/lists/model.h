// The trained model on the device, in the forms the kernels read. See kernels/quantizer.h.
#pragma once

#include "kernels/cuda/base/context.h"
#include "kernels/quantizer.h"

namespace pgwarp::gpu {

// Passed to kernels by value. Pointers are to device memory.
struct DeviceModel {
    QuantizerShape shape;
    const float* centroids;        // (lists)(dims); null while a codebook is being trained
    const float* codebook;         // (codebook_rows)(256)
    const float* half_norms;       // (m)(256): |codeword|^2 / 2
    const uint32_t* piece_begins;  // (m + 1)
    const uint32_t* piece_of;      // (codebook_rows): the piece a row belongs to
};

// Writes the codebook with the dimensions of a codeword adjacent: (256)(piece dims) for each piece.
void transpose_codebook(const DeviceModel& model, float* transposed, cudaStream_t stream);

class Model {
  public:
    // Copies from host memory. centroids and codebook may be null.
    Model(const Context& context, cudaStream_t stream, const Quantizer& quantizer);
    const DeviceModel& view() const { return view_; }
    // Replaces the codebook, after training has changed it.
    void set_codebook(const float* codebook, cudaStream_t stream);
    uint32_t longest_piece() const { return longest_piece_; }

  private:
    Buffer<float> centroids_, codebook_, half_norms_;
    Buffer<uint32_t> piece_begins_, piece_of_;
    uint32_t longest_piece_ = 0;
    DeviceModel view_{};
};

}  // namespace pgwarp::gpu
