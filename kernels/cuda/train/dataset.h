// Training rows: resident on the device where they fit into its budget, else in the caller's
// memory, from which every pass streams them.
#pragma once

#include "kernels/cuda/base/blas.h"
#include "kernels/cuda/base/context.h"
#include "kernels/cuda/base/upload.h"
#include "kernels/cuda/base/widen.h"
#include "kernels/executor.h"

#include <functional>
#include <vector>

namespace pgwarp::gpu {

class DeviceRows final : public Dataset {
  public:
    DeviceRows(const Context& context, Uploader& uploader, cudaStream_t stream, const float* rows,
               size_t count, uint32_t dims);
    // Rows that are on the device already.
    DeviceRows(const Context& context, Uploader& uploader, cudaStream_t stream, Buffer<float> rows,
               size_t count, uint32_t dims);

    size_t count() const { return count_; }
    uint32_t dims() const { return dims_; }
    bool resident() const { return resident_.data() != nullptr; }
    float largest() const { return largest_; }  // magnitude

    // Calls visit(rows, first, count) for one chunk after the other. `rows` is on the device, and
    // the visitor launches its work on `stream`. Chunks may have fewer rows than asked for.
    using Visit = std::function<void(const float* rows, size_t first, size_t count)>;
    void visit(size_t chunk_rows, cudaStream_t stream, const Visit& visit) const {
        visit_first(count_, chunk_rows, stream, visit);
    }
    // The same for the first `count` rows.
    void visit_first(size_t count, size_t chunk_rows, cudaStream_t stream,
                     const Visit& visit) const;

    // Turns the rows into residuals: row i becomes row i - centroids[nearest[i]]. `centroids` and
    // `nearest` are on the device. Changes nothing if it throws.
    void subtract(const float* centroids, uint32_t clusters, const uint32_t* nearest,
                  cudaStream_t stream);

    // Drops all rows but the first `count`.
    void keep_first(size_t count, cudaStream_t stream);

    // Rotates every row by a matrix on the device, (to)(dims). `stream` is that of `blas`, here and
    // in all later calls. Where resident rows are rotated in part when the device fails, they are
    // lost.
    void rotate(const Blas& blas, Buffer<float> matrix, uint32_t to, cudaStream_t stream);

    // Copies the given rows to host memory.
    std::vector<float> gather(const std::vector<uint32_t>& indices, cudaStream_t stream) const;

  private:
    // What happened to rows that are not resident: each chunk is changed after its upload.
    struct Change {
        uint32_t from, to;  // dimensions before and after
        // A rotation, where the matrix is not empty:
        Buffer<float> matrix;  // (to)(from)
        const Blas* blas = nullptr;
        // Else residuals:
        Buffer<float> centroids;        // (clusters)(to)
        std::vector<uint32_t> nearest;  // (count)
    };
    struct ChangeScratch {
        Buffer<uint32_t> nearest;
        std::vector<Buffer<float>> rotated;  // for each change
    };
    using NearestOf = std::function<const uint32_t*(const Change& change)>;
    float* change(float* rows, size_t count, const NearestOf& nearest_of, ChangeScratch& scratch,
                  cudaStream_t stream) const;
    void stream_first(size_t count, size_t chunk_rows, cudaStream_t stream,
                      const Visit& visit) const;
    void settle(cudaStream_t stream);
    void shrink(cudaStream_t stream);
    void find_largest(cudaStream_t stream);
    size_t scan_rows() const;

    const Context& context_;
    Uploader& uploader_;
    const float* rows_;  // the caller's, (count)(source_dims)
    size_t count_;
    uint32_t dims_;
    uint32_t source_dims_;
    float largest_ = 0;
    Buffer<float> resident_;
    std::vector<Change> changes_;  // of rows that are not resident
};

// Uploads rows as they arrive; finish() copies them into the order of their positions, and needs
// twice their memory meanwhile.
class DeviceRowsBuilder final : public DatasetBuilder {
  public:
    DeviceRowsBuilder(const Context& context, Uploader& uploader, Stream& stream, uint32_t dims,
                      size_t most_rows, RowElements elements);
    ~DeviceRowsBuilder() override { cudaStreamSynchronize(stream_); }
    void add(uint64_t position, const void* rows, size_t count) override;
    void wait() override {
        context_.use();
        copied_.synchronize();
    }
    size_t count() const noexcept override { return count_; }
    std::unique_ptr<Dataset> finish() override;

  private:
    struct Part {
        uint64_t position;
        const float* rows;
        size_t count;
    };
    const Context& context_;
    Uploader& uploader_;
    RowUpload upload_;
    Stream& stream_;
    uint32_t dims_;
    size_t most_rows_;
    size_t count_ = 0;
    std::vector<Buffer<float>> chunks_;
    size_t chunk_rows_, last_chunk_rows_ = 0;  // room of a chunk; rows in the last one
    std::vector<Part> parts_;
    Event copied_;  // recorded after the last part's upload
};

}  // namespace pgwarp::gpu
