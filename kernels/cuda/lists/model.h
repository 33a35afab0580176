// The trained model on the device, in the forms the kernels read. See kernels/quantizer.h.
#pragma once

#include "kernels/cuda/base/context.h"
#include "kernels/quantizer.h"

namespace pgwarp::gpu {

// What kernels take by value. Pointers to the device.
struct DeviceModel {
    QuantizerShape shape;
    const float* centroids;        // (lists)(dims); null while a codebook is being trained
    const float* codebook;         // (codebook_rows)(256)
    const float* half_norms;       // (m)(256): |codeword|^2 / 2
    const uint32_t* piece_begins;  // (m + 1)
    const uint32_t* piece_of;      // (codebook_rows): the piece a row belongs to
};

// The codebook codeword by codeword: piece by piece, (256)(piece dims).
void transpose_codebook(const DeviceModel& model, float* transposed, cudaStream_t stream);

class Model {
  public:
    // Copies from host memory. centroids may be null.
    Model(const Context& context, cudaStream_t stream, const Quantizer& quantizer);
    const DeviceModel& view() const { return view_; }
    // The codebook again, after it moved.
    void set_codebook(const float* codebook, cudaStream_t stream);
    uint32_t longest_piece() const { return longest_piece_; }

  private:
    Buffer<float> centroids_, codebook_, half_norms_;
    Buffer<uint32_t> piece_begins_, piece_of_;
    uint32_t longest_piece_ = 0;
    DeviceModel view_{};
};

}  // namespace pgwarp::gpu
