#include "kernels/cuda/train/dataset.h"

#include "kernels/cuda/products/products.h"
#include "kernels/cuda/train/sums.h"
#include "kernels/device.h"

#include <algorithm>
#include <cmath>

namespace pgwarp::gpu {

namespace {

constexpr size_t max_scan_rows = 65536;
constexpr size_t chunk_bytes = size_t{64} << 20;

// Rows may take a third of the free memory: a rotation is trained on a rotated copy, and all
// training needs buffers.
bool may_be_resident(const Context& context, size_t floats) {
    return floats * sizeof(float) <= context.memory.available() / 3;
}

}  // namespace

DeviceRows::DeviceRows(const Context& context, Uploader& uploader, cudaStream_t stream,
                       const float* rows, size_t count, uint32_t dims)
    : context_(context),
      uploader_(uploader),
      rows_(rows),
      count_(count),
      dims_(dims),
      source_dims_(dims) {
    if (may_be_resident(context, count * dims)) {
        try {
            resident_ = Buffer<float>(context.memory, count * dims);
        } catch (const OutOfDeviceMemory&) {
            // The memory was taken meanwhile, or is fragmented: stream the rows.
        }
    }
    if (resident()) uploader.upload(resident_.data(), rows, count * dims, stream);
    find_largest(stream);
}

DeviceRows::DeviceRows(const Context& context, Uploader& uploader, cudaStream_t stream,
                       Buffer<float> rows, size_t count, uint32_t dims)
    : context_(context),
      uploader_(uploader),
      rows_(nullptr),
      count_(count),
      dims_(dims),
      source_dims_(dims),
      resident_(std::move(rows)) {
    find_largest(stream);
}

size_t DeviceRows::scan_rows() const {
    return std::clamp<size_t>(context_.scratch() / 4 / (dims_ * sizeof(float)), 1, max_scan_rows);
}

void DeviceRows::find_largest(cudaStream_t stream) {
    if (resident()) {
        largest_ = largest_magnitude(context_, resident_.data(), count_ * dims_, stream);
        return;
    }
    largest_ = 0;
    visit(scan_rows(), stream, [&](const float* chunk, size_t, size_t chunk_count) {
        largest_ =
            std::max(largest_, largest_magnitude(context_, chunk, chunk_count * dims_, stream));
    });
}

void DeviceRows::visit_first(size_t count, size_t chunk_rows, cudaStream_t stream,
                             const Visit& visit) const {
    if (!resident()) return stream_first(count, chunk_rows, stream, visit);
    for (size_t first = 0; first < count; first += chunk_rows) {
        context_.check_interrupt();
        visit(resident_ + first * dims_, first, std::min(chunk_rows, count - first));
    }
}

void DeviceRows::stream_first(size_t count, size_t chunk_rows, cudaStream_t stream,
                              const Visit& visit) const {
    // The visitor knows the changed rows only; those of the caller may be longer.
    if (source_dims_ > dims_) chunk_rows = std::max<size_t>(chunk_rows * dims_ / source_dims_, 1);
    ChunkedRows chunks(context_.memory, uploader_, rows_, count, source_dims_, chunk_rows);
    ChangeScratch scratch;
    const FinishStream finish(stream);
    for (size_t i = 0; i < chunks.chunks(); ++i) {
        context_.check_interrupt();
        const size_t first = chunks.first(i);
        const float* chunk = change(
            chunks.get(i, stream), chunks.rows(i),
            [first](const Change& change) { return change.nearest.data() + first; }, scratch,
            stream);
        visit(chunk, first, chunks.rows(i));
        chunks.release(i, stream);
    }
}

// Applies all changes to rows on the device, (count)(source_dims). Returns where the result is: in
// place, or in `scratch`, which must not get more rows than in its first call. `nearest_of` returns
// the rows' centroids, (count), in host memory that stays until the stream is done.
float* DeviceRows::change(float* rows, size_t count, const NearestOf& nearest_of,
                          ChangeScratch& scratch, cudaStream_t stream) const {
    scratch.rotated.resize(changes_.size());
    for (size_t i = 0; i < changes_.size(); ++i) {
        const Change& change = changes_[i];
        if (change.matrix.data()) {
            scratch.rotated[i].grow(context_.memory, count * change.to);
            // cuBLAS is column-major: (to)(rows) = matrix^T (from)(to) times (from)(rows).
            multiply(*change.blas, stream,
                     {CUBLAS_OP_T, CUBLAS_OP_N, change.to, count, change.from, change.matrix.data(),
                      change.from, rows, change.from, scratch.rotated[i].data()});
            rows = scratch.rotated[i].data();
        } else {
            scratch.nearest.grow(context_.memory, count);
            copy_async(scratch.nearest.data(), nearest_of(change), count, stream);
            subtract_nearest(rows, count, change.to, change.centroids.data(),
                             scratch.nearest.data(), stream);
        }
    }
    return rows;
}

void DeviceRows::subtract(const float* centroids, uint32_t clusters, const uint32_t* nearest,
                          cudaStream_t stream) {
    if (resident()) {
        subtract_nearest(resident_.data(), count_, dims_, centroids, nearest, stream);
        largest_ = largest_magnitude(context_, resident_.data(), count_ * dims_, stream);
        return;
    }
    const size_t floats = size_t{clusters} * dims_;
    Change change{dims_, dims_, {}, nullptr, Buffer<float>(context_.memory, floats), {}};
    change.nearest.resize(count_);
    std::vector<float> host_centroids(floats);
    copy_async(change.nearest.data(), nearest, count_, stream);
    copy_async(host_centroids.data(), centroids, floats, stream);
    copy_async(change.centroids.data(), centroids, floats, stream);
    check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    changes_.push_back(std::move(change));
    float far = 0;
    for (float c : host_centroids) far = std::max(far, std::fabs(c));
    largest_ += far;
}

void DeviceRows::keep_first(size_t count, cudaStream_t stream) {
    count_ = std::min(count_, count);
    settle(stream);
}

void DeviceRows::rotate(const Blas& blas, Buffer<float> matrix, uint32_t to, cudaStream_t stream) {
    if (!resident()) {
        const uint32_t dims_before = dims_;
        const float largest_before = largest_;
        changes_.push_back({dims_, to, std::move(matrix), &blas, {}, {}});
        dims_ = to;
        try {
            settle(stream);
            find_largest(stream);
        } catch (...) {
            // After Interrupted the caller will ask for this rotation again.
            if (!resident()) {
                changes_.pop_back();
                dims_ = dims_before;
                largest_ = largest_before;
            }
            throw;
        }
    } else {
        const size_t row_bytes = to * sizeof(float);
        const size_t chunk_rows = std::min(
            count_, std::clamp<size_t>(context_.scratch() / 4 / row_bytes, 1, max_scan_rows));
        Buffer<float> rotated(context_.memory, chunk_rows * to);
        const FinishStream finish(stream);
        for (size_t first = 0; first < count_; first += chunk_rows) {
            const size_t here = std::min(chunk_rows, count_ - first);
            multiply(blas, stream,
                     {CUBLAS_OP_T, CUBLAS_OP_N, to, here, dims_, matrix.data(), dims_,
                      resident_ + first * dims_, dims_, rotated.data()});
            // In place: rows do not become longer, so that they overwrite no row that is still to
            // be read.
            copy_async(resident_ + first * to, static_cast<const float*>(rotated.data()), here * to,
                       stream);
        }
        dims_ = to;
        shrink(stream);
        find_largest(stream);
    }
}

// Makes streamed rows resident where they fit by now; frees memory that resident rows do not need.
void DeviceRows::settle(cudaStream_t stream) {
    if (resident()) return shrink(stream);
    const size_t floats = count_ * dims_;
    if (!may_be_resident(context_, floats)) return;
    try {
        Buffer<float> rows(context_.memory, floats);
        visit(scan_rows(), stream, [&](const float* chunk, size_t first, size_t count) {
            copy_async(rows + first * dims_, chunk, count * dims_, stream);
        });
        check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
        resident_ = std::move(rows);
    } catch (const OutOfDeviceMemory&) {
        return;
    }
    changes_.clear();
    rows_ = nullptr;
    source_dims_ = dims_;
}

void DeviceRows::shrink(cudaStream_t stream) {
    const size_t floats = count_ * dims_;
    if (floats == 0 || floats >= resident_.size()) return;
    try {
        Buffer<float> smaller(context_.memory, floats);
        const FinishStream finish(stream);
        copy_async(smaller.data(), static_cast<const float*>(resident_.data()), floats, stream);
        check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
        resident_ = std::move(smaller);
    } catch (const OutOfDeviceMemory&) {
        // No room for two buffers: the larger one stays.
    }
}

std::vector<float> DeviceRows::gather(const std::vector<uint32_t>& indices,
                                      cudaStream_t stream) const {
    std::vector<float> rows(indices.size() * dims_);
    if (rows.empty()) return rows;
    if (resident()) {
        Buffer<uint32_t> device_indices(context_.memory, indices.size());
        Buffer<float> gathered(context_.memory, rows.size());
        const FinishStream finish(stream);
        copy_async(device_indices.data(), indices.data(), indices.size(), stream);
        gather_rows(resident_.data(), dims_, device_indices.data(), indices.size(), gathered.data(),
                    stream);
        copy_async(rows.data(), static_cast<const float*>(gathered.data()), rows.size(), stream);
        check(cudaStreamSynchronize(stream), "gather_rows");
        return rows;
    }
    std::vector<float> source(indices.size() * source_dims_);
    for (size_t i = 0; i < indices.size(); ++i)
        std::copy_n(rows_ + size_t{indices[i]} * source_dims_, source_dims_,
                    source.data() + i * source_dims_);
    if (changes_.empty()) return source;
    Buffer<float> uploaded(context_.memory, source.size());
    ChangeScratch scratch;
    std::vector<std::vector<uint32_t>> nearest;
    const FinishStream finish(stream);
    uploader_.upload(uploaded.data(), static_cast<const float*>(source.data()), source.size(),
                     stream);
    const auto nearest_of = [&](const Change& change) {
        nearest.emplace_back();
        for (const uint32_t index : indices) nearest.back().push_back(change.nearest[index]);
        return static_cast<const uint32_t*>(nearest.back().data());
    };
    const float* changed = change(uploaded.data(), indices.size(), nearest_of, scratch, stream);
    copy_async(rows.data(), changed, rows.size(), stream);
    check(cudaStreamSynchronize(stream), "gather");
    return rows;
}

DeviceRowsBuilder::DeviceRowsBuilder(const Context& context, Uploader& uploader, Stream& stream,
                                     uint32_t dims, size_t most_rows, RowElements elements)
    : context_(context),
      uploader_(uploader),
      upload_(context.memory, uploader, elements),
      stream_(stream),
      dims_(dims),
      most_rows_(most_rows),
      chunk_rows_(std::max<size_t>(chunk_bytes / (dims * sizeof(float)), 1)) {}

void DeviceRowsBuilder::add(uint64_t position, const void* rows, size_t count) {
    context_.use();
    context_.check_interrupt();
    if (count == 0) return;
    if (count > most_rows_ - count_) throw std::length_error("more rows than were said");
    if (chunks_.empty() || last_chunk_rows_ + count > chunks_.back().size() / dims_) {
        chunks_.emplace_back(context_.memory, std::max(chunk_rows_, count) * dims_);
        last_chunk_rows_ = 0;
    }
    if (count * dims_ > upload_.room()) {
        stream_.synchronize();
        upload_.reserve(count * dims_);
    }
    float* to = chunks_.back() + last_chunk_rows_ * dims_;
    parts_.push_back({position, to, count});
    last_chunk_rows_ += count;
    count_ += count;
    upload_.upload(to, rows, count * dims_, stream_);
    // Waits for the copy of the previous add(): its caller may reuse those rows now. The copy of
    // these rows may still be running.
    copied_.synchronize();
    copied_.record(stream_);
}

std::unique_ptr<Dataset> DeviceRowsBuilder::finish() {
    context_.use();
    std::sort(parts_.begin(), parts_.end(),
              [](const Part& a, const Part& b) { return a.position < b.position; });
    Buffer<float> rows(context_.memory, count_ * dims_);
    size_t first = 0;
    for (const Part& part : parts_) {
        copy_async(rows + first * dims_, part.rows, part.count * dims_, stream_);
        first += part.count;
    }
    stream_.synchronize();
    parts_.clear();
    chunks_.clear();
    return std::make_unique<DeviceRows>(context_, uploader_, stream_, std::move(rows), count_,
                                        dims_);
}

}  // namespace pgwarp::gpu
