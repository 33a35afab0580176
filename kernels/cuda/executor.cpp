#include "kernels/cuda/executor.h"

#include "kernels/common/groups.h"
#include "kernels/cuda/train/additive.h"
#include "kernels/cuda/products/assign.h"
#include "kernels/cuda/train/cluster_sums.h"
#include "kernels/cuda/train/dataset.h"
#include "kernels/cuda/train/encode.h"
#include "kernels/cuda/train/encode_chunks.h"
#include "kernels/cuda/products/exact_search.h"
#include "kernels/cuda/train/moments.h"
#include "kernels/cuda/train/nibbles.h"
#include "kernels/cuda/train/product.h"
#include "kernels/cuda/train/rotation.h"
#include "kernels/cuda/train/row_pass.h"
#include "kernels/cuda/base/stream.h"
#include "kernels/draw_rows.h"

#include <algorithm>
#include <cstring>

namespace pgwarp::gpu {

namespace {

// Rows of a tile. Larger tiles gain nothing: their products exceed every cache anyway.
constexpr size_t max_tile_rows = 65536;
constexpr size_t max_nearest_rows = 1 << 20;

class CudaExecutor final : public Executor {
  public:
    explicit CudaExecutor(const Context& context) : context_(context), blas_(stream_) {}
    ~CudaExecutor() override {
        for (void* memory : registered_) cudaHostUnregister(memory);
    }

    const char* name() const noexcept override { return context_.name; }

    std::unique_ptr<Dataset> take(float* rows, size_t count, uint32_t dims) override {
        context_.use();
        return std::make_unique<DeviceRows>(context_, uploader_, stream_, rows, count, dims);
    }

    void kmeans_start(Dataset& data, uint32_t clusters, uint64_t seed, float* centroids) override {
        context_.use();
        const auto& rows = static_cast<DeviceRows&>(data);
        const std::vector<uint64_t> few = draw_few_rows(rows.count(), clusters, seed);
        const std::vector<uint32_t> drawn(few.begin(), few.end());
        const std::vector<float> gathered = rows.gather(drawn, stream_);
        for (uint32_t c = 0; c < clusters; ++c)
            std::memcpy(centroids + size_t{c} * rows.dims(),
                        gathered.data() + c % drawn.size() * rows.dims(),
                        rows.dims() * sizeof(float));
    }

    double kmeans_step(Dataset& data, uint32_t clusters, float* centroids) override;
    KmeansSums kmeans_sums(Dataset& data, uint32_t clusters, const float* centroids) override;
    void gather(Dataset& data, std::span<const uint32_t> numbers, float* out) override {
        context_.use();
        const std::vector<float> gathered =
            static_cast<DeviceRows&>(data).gather({numbers.begin(), numbers.end()}, stream_);
        std::copy(gathered.begin(), gathered.end(), out);
    }
    void assign(Dataset& data, uint32_t clusters, const float* centroids,
                uint32_t* nearest) override;
    void make_residuals(Dataset& data, uint32_t clusters, const float* centroids,
                        const Parents& parents) override;

    void keep_first(Dataset& data, size_t count) override {
        context_.use();
        static_cast<DeviceRows&>(data).keep_first(count, stream_);
    }
    void rotate_rows(Dataset& data, const Rotation& rotation) override {
        context_.use();
        context_.check_interrupt();
        static_cast<DeviceRows&>(data).rotate(
            blas_, upload_floats(rotation.matrix, size_t{rotation.to} * rotation.from), rotation.to,
            stream_);
    }
    double variance(const FirstRows& first) override {
        context_.use();
        return variance_of(context_, static_cast<DeviceRows&>(first.rows), first.count, stream_);
    }

    void codebook_start(Dataset& data, const QuantizerShape& shape, uint64_t seed,
                        float* codebook) override {
        context_.use();
        product_.start(static_cast<DeviceRows&>(data), shape, seed, codebook);
    }
    double codebook_step(Dataset& data, const QuantizerShape& shape, float* codebook) override {
        context_.use();
        return product_.step(static_cast<DeviceRows&>(data), shape, codebook);
    }
    double additive_step(Dataset& data, const AdditiveStep& step) override {
        context_.use();
        return additive_.step(static_cast<DeviceRows&>(data), step);
    }

    void principal_directions(const FirstRows& first, uint32_t to, float* matrix) override {
        context_.use();
        rotations_.principal_directions(static_cast<DeviceRows&>(first.rows), first.count, to,
                                        matrix);
    }
    void rotation_start(const FirstRows& first, const QuantizerShape& shape, uint64_t seed,
                        float* matrix, float* codebook) override {
        context_.use();
        rotations_.start(static_cast<DeviceRows&>(first.rows), first.count, shape, seed, matrix,
                         codebook);
    }
    double rotation_step(const FirstRows& first, const QuantizerShape& shape, float* matrix,
                         float* codebook) override {
        context_.use();
        return rotations_.step(static_cast<DeviceRows&>(first.rows), first.count, shape, matrix,
                               codebook);
    }
    void rotate(const Rotation& rotation, const float* rows, size_t count, float* out) override {
        rotations_.rotate(rotation, rows, count, out);
    }

    void encode_residuals(const FirstRows& first, const Quantizer& quantizer,
                          uint8_t* codes) override;
    double code_error(const FirstRows& first, const QuantizerShape& shape, const float* codebook,
                      const uint8_t* codes) override;
    void encode(const Quantizer& quantizer, const Encoding& encoding) override;
    void exact_search(const ExactSearch& search) override;

    std::unique_ptr<RowPass> begin_pass(const RowPassInput& input) override {
        // Rotated rows, 4-bit codes and additive codes are encoded block by block.
        const Quantizer* model = input.quantizer;
        const bool plain = !model || (!model->rotation.matrix && model->shape.bits == 8 &&
                                      !model->shape.additive());
        return plain ? make_row_pass(context_, uploader_, input)
                     : make_plain_pass(*this, *this, input);
    }
    std::unique_ptr<DatasetBuilder> build_dataset(uint32_t dims, size_t most_rows,
                                                  RowElements elements) override {
        context_.use();
        return std::make_unique<DeviceRowsBuilder>(context_, uploader_, stream_, dims, most_rows,
                                                   elements);
    }
    // Pins host memory for repeated DMA. Where pinning fails, rows go through a staging buffer.
    void register_memory(void* memory, size_t bytes) noexcept override {
        if (cudaSetDevice(context_.device) == cudaSuccess &&
            cudaHostRegister(memory, bytes, cudaHostRegisterPortable) == cudaSuccess)
            registered_.push_back(memory);
        else
            cudaGetLastError();
    }
    void unregister_memory(void* memory) noexcept override {
        if (std::erase(registered_, memory) > 0 && cudaHostUnregister(memory) != cudaSuccess)
            cudaGetLastError();
    }

  private:
    void encode_halves(const Quantizer& quantizer, const Encoding& encoding);
    Buffer<float> upload_floats(const float* from, size_t count) {
        Buffer<float> to(context_.memory, count);
        uploader_.upload(to.data(), from, count, stream_);
        return to;
    }
    void add_clusters(const DeviceRows& rows, uint32_t clusters, const Buffer<float>& means,
                      ClusterSums& sums, Buffer<uint32_t>& nearest);
    static double factor_of(const DeviceRows& rows) {
        return fixed_point_factor(rows.largest(), rows.count());
    }
    void find_all_nearest(const DeviceRows& rows, uint32_t clusters, const Buffer<float>& means,
                          Buffer<uint32_t>& nearest);
    void fill_empty_clusters(Dataset& data, const Buffer<uint32_t>& nearest, uint32_t clusters,
                             float* centroids);
    // Rows of a chunk when only the nearest centroid is needed: a kernel that works by tiles does
    // not store the products.
    size_t nearest_rows(uint32_t clusters, uint32_t dims) const {
        if (!fits_tiles(context_, dims)) return tile_rows(clusters, dims);
        const size_t row_bytes = 2 * dims * sizeof(float) + sizeof(uint64_t);
        return std::clamp<size_t>(context_.scratch() / 8 / row_bytes, 1, max_nearest_rows);
    }
    size_t tile_rows(uint32_t clusters, uint32_t dims) const {
        return std::min(max_tile_rows,
                        CentroidMatrix::tile_rows(clusters, dims, context_.scratch() / 2));
    }

    const Context& context_;
    Stream stream_;
    Blas blas_;
    Uploader uploader_;
    AdditiveCoder additive_{context_, uploader_, stream_, blas_};
    ProductCoder product_{context_, stream_, blas_};
    RotationTrainer rotations_{product_, context_, uploader_, stream_, blas_};
    std::vector<void*> registered_;
};

// Adds every row to the sums of its nearest centroid. All but `rows` are on the device.
void CudaExecutor::add_clusters(const DeviceRows& rows, uint32_t clusters,
                                const Buffer<float>& means, ClusterSums& sums,
                                Buffer<uint32_t>& nearest) {
    const uint32_t dims = rows.dims();
    const size_t chunk_rows = nearest_rows(clusters, dims);
    const double factor = factor_of(rows);
    const CentroidMatrix matrix(context_, stream_, means.data(), clusters, dims, Origin::centroids,
                                Wanted::nearest);
    ProductTile tile;
    const FinishStream finish(stream_);
    rows.visit(chunk_rows, stream_, [&](const float* chunk, size_t first, size_t count) {
        matrix.find_nearest(blas_, stream_, {chunk, count, dims, dims}, tile, nearest + first);
        add_rows({chunk, nearest + first, means.data(), count, dims, factor, sums.sums.data(),
                  sums.counts.data(), sums.errors.data()},
                 stream_);
    });
}

KmeansSums CudaExecutor::kmeans_sums(Dataset& data, uint32_t clusters, const float* centroids) {
    context_.use();
    const auto& rows = static_cast<DeviceRows&>(data);
    const size_t floats = size_t{clusters} * rows.dims();
    const Buffer<float> means = upload_floats(centroids, floats);
    ClusterSums sums(context_.memory, floats, clusters, stream_);
    Buffer<uint32_t> nearest(context_.memory, rows.count());
    const FinishStream finish(stream_);
    add_clusters(rows, clusters, means, sums, nearest);
    std::vector<unsigned long long> fixed(floats);
    copy_async(fixed.data(), static_cast<const unsigned long long*>(sums.sums.data()), floats,
               stream_);
    const std::vector<size_t> sizes = sums.sizes(stream_);
    KmeansSums result;
    result.sizes.assign(sizes.begin(), sizes.end());
    result.error = sums.error(stream_);
    result.sums.resize(floats);
    const double factor = factor_of(rows);
    for (size_t i = 0; i < floats; ++i)
        result.sums[i] = static_cast<double>(static_cast<long long>(fixed[i])) / factor;
    return result;
}

double CudaExecutor::kmeans_step(Dataset& data, uint32_t clusters, float* centroids) {
    context_.use();
    const auto& rows = static_cast<DeviceRows&>(data);
    const uint32_t dims = rows.dims();
    const size_t floats = size_t{clusters} * dims;

    Buffer<float> means = upload_floats(centroids, floats);
    ClusterSums sums(context_.memory, floats, clusters, stream_);
    Buffer<uint32_t> nearest(context_.memory, rows.count());
    const FinishStream finish(stream_);
    add_clusters(rows, clusters, means, sums, nearest);
    row_means(sums.sums.data(), sums.counts.data(), clusters, dims, factor_of(rows), means.data(),
              stream_);
    std::vector<float> moved(floats);
    copy_async(moved.data(), means.data(), floats, stream_);
    const std::vector<size_t> sizes = sums.sizes(stream_);
    const double error = sums.error(stream_);
    if (std::find(sizes.begin(), sizes.end(), 0) != sizes.end())
        fill_empty_clusters(data, nearest, clusters, moved.data());
    std::memcpy(centroids, moved.data(), floats * sizeof(float));
    return error / static_cast<double>(rows.count());
}

void CudaExecutor::fill_empty_clusters(Dataset& data, const Buffer<uint32_t>& nearest,
                                       uint32_t clusters, float* centroids) {
    const auto& rows = static_cast<DeviceRows&>(data);
    std::vector<uint32_t> cluster_of(rows.count());
    copy_async(cluster_of.data(), nearest.data(), cluster_of.size(), stream_);
    stream_.synchronize();
    const Groups groups(cluster_of, clusters);
    const auto fetch = [&](std::span<const uint32_t> numbers, float* out) {
        gather(data, numbers, out);
    };
    fill_empty_fetching(groups, fetch, rows.dims(), centroids);
}

// Finds the nearest centroid of every row. `means` and `nearest` are on the device.
void CudaExecutor::find_all_nearest(const DeviceRows& rows, uint32_t clusters,
                                    const Buffer<float>& means, Buffer<uint32_t>& nearest) {
    const uint32_t dims = rows.dims();
    const size_t chunk_rows = nearest_rows(clusters, dims);
    const CentroidMatrix matrix(context_, stream_, means.data(), clusters, dims, Origin::centroids,
                                Wanted::nearest);
    ProductTile tile;
    const FinishStream finish(stream_);
    rows.visit(chunk_rows, stream_, [&](const float* chunk, size_t first, size_t count) {
        matrix.find_nearest(blas_, stream_, {chunk, count, dims, dims}, tile, nearest + first);
    });
}

void CudaExecutor::assign(Dataset& data, uint32_t clusters, const float* centroids,
                          uint32_t* nearest) {
    context_.use();
    const auto& rows = static_cast<DeviceRows&>(data);
    const Buffer<float> means = upload_floats(centroids, size_t{clusters} * rows.dims());
    Buffer<uint32_t> found(context_.memory, rows.count());
    find_all_nearest(rows, clusters, means, found);
    copy_async(nearest, found.data(), rows.count(), stream_);
    stream_.synchronize();
}

// All centroids: a matrix product with few rows.
void CudaExecutor::make_residuals(Dataset& data, uint32_t clusters, const float* centroids,
                                  const Parents&) {
    context_.use();
    auto& rows = static_cast<DeviceRows&>(data);
    const Buffer<float> means = upload_floats(centroids, size_t{clusters} * rows.dims());
    Buffer<uint32_t> nearest(context_.memory, rows.count());
    const FinishStream finish(stream_);
    find_all_nearest(rows, clusters, means, nearest);
    rows.subtract(means.data(), clusters, nearest.data(), stream_);
    stream_.synchronize();
}

void CudaExecutor::encode_halves(const Quantizer& quantizer, const Encoding& e) {
    const QuantizerShape shape = halves_of(quantizer.shape);
    const std::vector<float> repeated = repeated_nibble_words(quantizer.shape, quantizer.codebook);
    // In parts, because codes of halves, a byte each, take twice the memory.
    const size_t part = std::min(e.count, max_tile_rows);
    std::vector<uint8_t> halves(part * shape.m);
    for (size_t first = 0; first < e.count; first += part) {
        const size_t here = std::min(part, e.count - first);
        encode(
            {shape, quantizer.centroids, repeated.data()},
            {e.rows + first * shape.dims, here, e.lists + first, halves.data(), e.offsets + first});
        join_halves(halves.data(), here * quantizer.shape.m, e.codes + first * quantizer.shape.m);
    }
}

void CudaExecutor::encode_residuals(const FirstRows& first, const Quantizer& quantizer,
                                    uint8_t* codes) {
    context_.use();
    const auto& rows = static_cast<DeviceRows&>(first.rows);
    if (quantizer.shape.additive())
        additive_.encode_residuals(rows, first.count, quantizer, codes);
    else
        product_.encode_residuals(rows, first.count, quantizer, codes);
}

double CudaExecutor::code_error(const FirstRows& first, const QuantizerShape& shape,
                                const float* codebook, const uint8_t* codes) {
    context_.use();
    if (first.count == 0) return 0;
    const auto& rows = static_cast<DeviceRows&>(first.rows);
    const size_t chunk_rows = std::min(first.count, tile_rows(codewords, shape.dims));
    const Model model(context_, stream_, {shape, nullptr, codebook});
    Buffer<uint8_t> chunk_codes(context_.memory, chunk_rows * shape.m);
    Buffer<float> decoded(context_.memory, chunk_rows * shape.dims);
    Buffer<double> errors(context_.memory, error_blocks);
    const FinishStream finish(stream_);
    clear_async(errors.data(), errors.size(), stream_);
    rows.visit_first(
        first.count, chunk_rows, stream_, [&](const float* chunk, size_t begin, size_t count) {
            uploader_.upload(chunk_codes.data(), codes + begin * shape.m, count * shape.m, stream_);
            decode_codes(model.view(), chunk_codes.data(), count, decoded.data(), stream_);
            add_squares(chunk, decoded.data(), count * shape.dims, errors.data(), stream_);
        });
    return sum_of_errors(errors, stream_) / static_cast<double>(first.count);
}

void CudaExecutor::encode(const Quantizer& quantizer, const Encoding& e) {
    context_.use();
    if (e.count == 0) return;
    if (quantizer.shape.additive()) return additive_.encode(quantizer, e);
    if (quantizer.shape.bits == 4) return encode_halves(quantizer, e);
    const QuantizerShape& shape = quantizer.shape;
    const size_t chunk_rows = tile_rows(shape.lists, shape.dims);
    const Model model(context_, stream_, quantizer);
    const CentroidMatrix matrix(context_, stream_, model.view().centroids, shape.lists, shape.dims,
                                Origin::centroids, Wanted::nearest);
    Encoder encoder(context_, stream_, blas_, model, std::min(chunk_rows, e.count));
    encode_chunks(
        {context_, uploader_, stream_, blas_, shape, matrix, chunk_rows}, e,
        [&](const EncodedChunk& chunk) {
            encoder.encode({chunk.rows, chunk.count, chunk.lists, chunk.codes, chunk.offsets});
        });
}

void CudaExecutor::exact_search(const ExactSearch& s) {
    context_.use();
    if (s.query_count == 0 || s.row_count == 0 || s.k == 0) return;
    if (s.k > max_exact_k)
        throw std::runtime_error("exact search on a device finds at most " +
                                 std::to_string(max_exact_k) + " neighbors");
    const Buffer<float> queries = upload_floats(s.queries, s.query_count * s.dims);
    const size_t results = s.query_count * s.k;
    Buffer<Neighbor> nearest(context_.memory, results);
    bool merge = s.row_count < s.k;
    for (size_t q = 0; q < s.query_count && !merge; ++q)
        merge = s.nearest[q * s.k].distance < std::numeric_limits<float>::infinity();
    if (merge)
        uploader_.upload(nearest.data(), static_cast<const Neighbor*>(s.nearest), results, stream_);

    // As many rows at a time as fit into memory beside the tiles.
    const size_t row_bytes = s.dims * sizeof(float) + sizeof(uint64_t);
    const size_t room = context_.memory.available() - context_.scratch() / 2;
    const size_t most = std::clamp<size_t>(room / 2 / row_bytes, 1, size_t{1} << 31);
    const size_t block_rows = std::min(s.row_count, most);
    Buffer<float> rows(context_.memory, block_rows * s.dims);
    Buffer<uint64_t> ids(context_.memory, block_rows);
    Stream copies;
    Event copied;
    const FinishStream finish_copies(copies), finish(stream_);
    for (size_t first = 0; first < s.row_count; first += block_rows) {
        const size_t count = std::min(block_rows, s.row_count - first);
        size_t there = 0;
        uploader_.upload(ids.data(), s.ids + first, count, stream_);
        DeviceExactSearch search;
        search.queries = queries.data();
        search.query_count = s.query_count;
        search.rows = rows.data();
        search.row_count = count;
        search.ids = ids.data();
        search.dims = s.dims;
        search.metric = s.metric;
        search.k = s.k;
        search.nearest = nearest.data();
        search.merge = merge;
        search.ready = [&](size_t end) {
            if (end <= there) return;
            uploader_.upload(rows + there * s.dims, s.rows + (first + there) * s.dims,
                             (end - there) * s.dims, copies);
            copied.record(copies);
            stream_.wait(copied);
            there = end;
        };
        gpu::exact_search(context_, blas_, stream_, search);
        merge = true;
    }
    copy_async(s.nearest, nearest.data(), results, stream_);
    stream_.synchronize();
}

}  // namespace

std::unique_ptr<Executor> make_executor(const Context& context) {
    context.use();
    return std::make_unique<CudaExecutor>(context);
}

}  // namespace pgwarp::gpu
