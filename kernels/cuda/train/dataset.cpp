#include "kernels/cuda/train/dataset.h"

#include "kernels/cuda/train/sums.h"

#include <algorithm>
#include <cmath>

namespace pgwarp::gpu {

namespace {

constexpr size_t most_scan_rows = 65536;
constexpr size_t chunk_bytes = size_t{64} << 20;

}  // namespace

DeviceRows::DeviceRows(const Context& context, Uploader& uploader, cudaStream_t stream,
                       const float* rows, size_t count, uint32_t dims)
    : context_(context), uploader_(uploader), rows_(rows), count_(count), dims_(dims) {
    // Rows may take half of the free memory: training needs buffers as well.
    const size_t bytes = count * dims * sizeof(float);
    if (bytes <= context.memory.available() / 2) {
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
      resident_(std::move(rows)) {
    find_largest(stream);
}

void DeviceRows::find_largest(cudaStream_t stream) {
    if (resident()) {
        largest_ = largest_magnitude(context_, resident_.data(), count_ * dims_, stream);
        return;
    }
    const size_t scan_rows =
        std::clamp<size_t>(context_.scratch() / 4 / (dims_ * sizeof(float)), 1, most_scan_rows);
    visit(scan_rows, stream, [&](const float* chunk, size_t, size_t chunk_count) {
        largest_ =
            std::max(largest_, largest_magnitude(context_, chunk, chunk_count * dims_, stream));
    });
}

void DeviceRows::visit(size_t chunk_rows, cudaStream_t stream, const Visit& visit) const {
    if (resident()) {
        for (size_t first = 0; first < count_; first += chunk_rows) {
            context_.check_interrupt();
            visit(resident_ + first * dims_, first, std::min(chunk_rows, count_ - first));
        }
        return;
    }
    ChunkedRows chunks(context_.memory, uploader_, rows_, count_, dims_, chunk_rows);
    Buffer<uint32_t> nearest;
    const FinishStream finish(stream);
    for (size_t i = 0; i < chunks.chunks(); ++i) {
        context_.check_interrupt();
        float* chunk = chunks.get(i, stream);
        if (!nearest_.empty()) {
            nearest.grow(context_.memory, chunk_rows);
            copy_async(nearest.data(), nearest_.data() + chunks.first(i), chunks.rows(i), stream);
            subtract_nearest(chunk, chunks.rows(i), dims_, device_centroids_.data(), nearest.data(),
                             stream);
        }
        visit(chunk, chunks.first(i), chunks.rows(i));
        chunks.release(i, stream);
    }
}

void DeviceRows::subtract(const float* centroids, uint32_t clusters, const uint32_t* nearest,
                          cudaStream_t stream) {
    if (resident()) {
        subtract_nearest(resident_.data(), count_, dims_, centroids, nearest, stream);
        largest_ = largest_magnitude(context_, resident_.data(), count_ * dims_, stream);
        return;
    }
    if (!nearest_.empty()) throw std::logic_error("rows are residuals already");
    const size_t floats = size_t{clusters} * dims_;
    Buffer<float> device_centroids(context_.memory, floats);
    std::vector<uint32_t> host_nearest(count_);
    std::vector<float> host_centroids(floats);
    copy_async(host_nearest.data(), nearest, count_, stream);
    copy_async(host_centroids.data(), centroids, floats, stream);
    copy_async(device_centroids.data(), centroids, floats, stream);
    check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    nearest_ = std::move(host_nearest);
    centroids_ = std::move(host_centroids);
    device_centroids_ = std::move(device_centroids);
    float far = 0;
    for (float c : centroids_) far = std::max(far, std::fabs(c));
    largest_ += far;
}

std::vector<float> DeviceRows::gather(const std::vector<uint32_t>& indices,
                                      cudaStream_t stream) const {
    std::vector<float> rows(indices.size() * dims_);
    if (resident()) {
        Buffer<uint32_t> device_indices(context_.memory, indices.size());
        Buffer<float> gathered(context_.memory, rows.size());
        const FinishStream finish(stream);
        copy_async(device_indices.data(), indices.data(), indices.size(), stream);
        gather_rows(resident_.data(), dims_, device_indices.data(), indices.size(), gathered.data(),
                    stream);
        copy_async(rows.data(), gathered.data(), rows.size(), stream);
        check(cudaStreamSynchronize(stream), "gather_rows");
        return rows;
    }
    for (size_t i = 0; i < indices.size(); ++i)
        for (uint32_t d = 0; d < dims_; ++d) {
            const float x = rows_[size_t{indices[i]} * dims_ + d];
            rows[i * dims_ + d] =
                nearest_.empty() ? x : x - centroids_[size_t{nearest_[indices[i]]} * dims_ + d];
        }
    return rows;
}

DeviceRowsBuilder::DeviceRowsBuilder(const Context& context, Uploader& uploader, Stream& stream,
                                     uint32_t dims, size_t most_rows)
    : context_(context),
      uploader_(uploader),
      stream_(stream),
      dims_(dims),
      most_rows_(most_rows),
      chunk_rows_(std::max<size_t>(chunk_bytes / (dims * sizeof(float)), 1)) {}

void DeviceRowsBuilder::add(uint64_t position, const float* rows, size_t count) {
    context_.use();
    context_.check_interrupt();
    if (count == 0) return;
    if (count > most_rows_ - count_) throw std::length_error("more rows than were said");
    if (chunks_.empty() || last_chunk_rows_ + count > chunks_.back().size() / dims_) {
        chunks_.emplace_back(context_.memory, std::max(chunk_rows_, count) * dims_);
        last_chunk_rows_ = 0;
    }
    float* to = chunks_.back() + last_chunk_rows_ * dims_;
    parts_.push_back({position, to, count});
    last_chunk_rows_ += count;
    count_ += count;
    uploader_.upload(to, rows, count * dims_, stream_);
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
