// Uploads of rows whose elements are floats or halves. Halves travel as they are, and become floats
// on the device.
#pragma once

#include "kernels/cuda/base/upload.h"
#include "kernels/row_elements.h"

namespace pgwarp::gpu {

// Converts halves, which are finite, to floats on the device.
void widen(const float16* halves, size_t count, float* floats, cudaStream_t stream);

class RowUpload {
  public:
    RowUpload(DeviceMemory& memory, Uploader& uploader, RowElements elements)
        : memory_(memory), uploader_(uploader), elements_(elements) {}

    // Makes room for uploads of up to `count` elements. No upload may be in progress.
    void reserve(size_t count) {
        if (elements_ == RowElements::float16) halves_.grow(memory_, count);
    }
    size_t room() const { return elements_ == RowElements::float16 ? halves_.size() : SIZE_MAX; }

    // See Uploader::upload(). All uploads are on one stream: each uses the memory of the one
    // before.
    void upload(float* to, const void* rows, size_t count, cudaStream_t stream);

  private:
    DeviceMemory& memory_;
    Uploader& uploader_;
    RowElements elements_;
    Buffer<float16> halves_;
};

}  // namespace pgwarp::gpu
