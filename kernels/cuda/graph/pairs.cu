#include "kernels/cuda/graph/pairs.h"

#include "kernels/cuda/base/launch.cuh"
#include "kernels/cuda/graph/distance.cuh"
#include "kernels/cuda/graph/exact.h"
#include "kernels/cuda/products/products.h"

#include <algorithm>
#include <cmath>

namespace pgwarp::gpu {

namespace {

// Candidates of one rectangle; one with more is left to the caller to cut.
constexpr size_t candidate_room = size_t{1} << 22;
constexpr size_t largest_side = 16384;
constexpr unsigned scan_threads = 256;
constexpr uint32_t scan_rows = 16;  // rows of a block of scan_values

struct Scan {
    const float* values;  // (a_count)(stride): the factor is in them
    size_t stride;
    uint32_t a_count, b_count;
    uint32_t first_a, first_b;
    const float* a_norms;    // squared, (a_count); null: values are distances (L1)
    const float* b_norms;    // (b_count)
    const uint32_t* scales;  // bits of the largest magnitude: of a, of b
    uint32_t dims;
    Metric metric;
    bool square;  // a is b: only pairs with the larger row from b
    float bound;
    uint2* candidates;  // (candidate_room)
    uint32_t* count;    // may exceed the room
};

// A lower bound of the distance.
__device__ __forceinline__ float low_distance(const Scan& s, float value, float a_norm,
                                              float b_norm) {
    if (!s.a_norms) return value * (1 - 0x1p-22f * static_cast<float>(s.dims));
    const float a = sqrtf(a_norm), b = sqrtf(b_norm);
    const float largest_a = bits_float(s.scales[0]), largest_b = bits_float(s.scales[1]);
    if (!has_norms(s.metric)) return value - product_error(a, b, largest_a, largest_b, s.dims);
    // Norms have the same error as products.
    const float low =
        a_norm + b_norm + value - product_error(a + b, a + b, largest_a, largest_b, s.dims);
    return s.metric == Metric::cosine ? low / 2 : low;
}

// A block takes scan_rows rows and as many columns as it has threads.
__global__ void __launch_bounds__(scan_threads) scan_values(Scan s) {
    const uint32_t column = blockIdx.x * scan_threads + threadIdx.x;
    const uint32_t first = blockIdx.y * scan_rows, end = min(first + scan_rows, s.a_count);
    if (column >= s.b_count) return;
    const float b_norm = s.b_norms ? s.b_norms[column] : 0.0f;
    for (uint32_t row = first; row < end; ++row) {
        if (s.square && column <= row) break;
        const float value = s.values[size_t{row} * s.stride + column];
        const float a_norm = s.a_norms ? s.a_norms[row] : 0.0f;
        // NaN is no bound.
        if (low_distance(s, value, a_norm, b_norm) > s.bound) continue;
        const uint32_t at = atomicAdd(s.count, 1u);
        if (at < candidate_room) s.candidates[at] = {s.first_a + row, s.first_b + column};
    }
}

struct Finish {
    GraphView view;
    const uint2* candidates;
    uint32_t candidate_count;
    float bound;
    RowPair* pairs;  // (candidate_count)
    uint32_t* count;
};

// One warp a candidate.
__global__ void __launch_bounds__(256) finish_pairs(Finish f) {
    const uint32_t candidate = (blockIdx.x * 256 + threadIdx.x) / 32;
    if (candidate >= f.candidate_count) return;
    const uint2 rows = f.candidates[candidate];
    const float distance = row_distance(f.view, rows.x, rows.y);
    if (lane_id() != 0 || !(distance <= f.bound)) return;
    f.pairs[atomicAdd(f.count, 1u)] = {min(rows.x, rows.y), max(rows.x, rows.y), distance};
}

class CudaPairFinder final : public PairFinder {
  public:
    CudaPairFinder(const Context& context, const Blas& blas, Uploader& uploader,
                   cudaStream_t stream, const GraphRows& rows, float bound)
        : context_(context),
          blas_(blas),
          stream_(stream),
          bound_(bound),
          rows_(context, uploader, stream, rows),
          side_(side_for(context, rows)),
          candidates_(context.memory, candidate_room),
          counts_(context.memory, 2),
          scales_(context.memory, 2),
          factors_(context.memory, 2) {
        const GraphView& view = rows_.view();
        DeviceMemory& memory = context.memory;
        values_ = Buffer<float>(memory, side_ * side_);
        if (!has_products(view.metric)) return;
        const size_t halves = side_ * split_width(view.dims);
        a_halves_ = Buffer<__half>(memory, halves);
        b_halves_ = Buffer<__half>(memory, halves);
        a_norms_ = Buffer<float>(memory, side_);
        b_norms_ = Buffer<float>(memory, side_);
        if (!view.centred()) return;
        origin_ = Buffer<float>(memory, view.dims);
        const FinishStream finish(stream_);
        find_origin({view.rows, view.count, view.dims, view.stride}, origin_.data(), stream_);
    }

    size_t best_side() const noexcept override { return side_; }

    bool find(const PairRectangle& rectangle, size_t most, std::vector<RowPair>* found) override {
        if (rectangle.a.size() > side_ || rectangle.b.size() > side_) return false;
        context_.use();
        context_.check_interrupt();
        found->clear();
        const FinishStream finish(stream_);
        clear_async(counts_.data(), 2, stream_);
        fill_values(rectangle);
        scan(rectangle);
        const uint32_t candidates = read_count(0);
        if (candidates > candidate_room) return false;
        if (candidates == 0) return true;
        Buffer<RowPair> pairs(context_.memory, candidates);
        const FinishStream finish_pairs_first(stream_);
        launch("finish_pairs", finish_pairs, {divide_up(candidates, 8u), 256, 0, stream_},
               Finish{rows_.view(), candidates_.data(), candidates, bound_, pairs.data(),
                      counts_ + 1});
        const uint32_t count = read_count(1);
        if (count > most) return false;
        found->resize(count);
        copy_async(found->data(), static_cast<const RowPair*>(pairs.data()), count, stream_);
        check(cudaStreamSynchronize(stream_), "find_pairs");
        // Warps end in any order.
        std::sort(found->begin(), found->end(), [](const RowPair& a, const RowPair& b) {
            return a.first != b.first ? a.first < b.first : a.second < b.second;
        });
        return true;
    }

  private:
    // A square of values, and the halves of both sides, fit into half of the scratch memory.
    static size_t side_for(const Context& context, const GraphRows& rows) {
        const size_t row_bytes = 2 * (split_width(rows.dims) * sizeof(__half) + sizeof(float));
        size_t side = padded_rows(std::clamp<size_t>(rows.count, 8, largest_side));
        while (side > 512 && side * (row_bytes + side * sizeof(float)) > context.scratch() / 2)
            side = padded_rows(side / 2);
        return side;
    }

    static RowRange range_of(const RowSpan& span) {
        return {static_cast<uint32_t>(span.begin), static_cast<uint32_t>(span.end)};
    }

    void fill_values(const PairRectangle& rectangle) {
        const GraphView& view = rows_.view();
        const RowRange a = range_of(rectangle.a), b = range_of(rectangle.b);
        if (!has_products(view.metric)) {
            plain_values(view, a, b, values_.data(), side_, stream_);
            return;
        }
        const auto split = [&](const RowRange& range, Side side, Buffer<__half>& halves,
                               uint32_t* scale, Buffer<float>& norms) {
            split_rows(
                {view.row(range.begin), range.size(), view.dims, view.stride, origin_.data()}, side,
                halves.data(), scale, norms.data(), stream_);
        };
        split(a, Side::left, a_halves_, scales_.data(), a_norms_);
        split(b, Side::right, b_halves_, scales_ + 1, b_norms_);
        multiply(blas_, stream_, {a_halves_.data(), scales_.data(), a.size()},
                 {b_halves_.data(), scales_ + 1, b.size()}, view.dims,
                 view.centred() ? -2.0f : -1.0f, values_.data(), side_, factors_.data());
    }

    void scan(const PairRectangle& rectangle) {
        const GraphView& view = rows_.view();
        const RowRange a = range_of(rectangle.a), b = range_of(rectangle.b);
        const dim3 blocks(divide_up(b.size(), scan_threads), divide_up(a.size(), scan_rows));
        launch("scan_values", scan_values, {blocks, scan_threads, 0, stream_},
               Scan{values_.data(), side_, a.size(), b.size(), a.begin, b.begin, a_norms_.data(),
                    b_norms_.data(), scales_.data(), view.dims, view.metric, rectangle.is_square(),
                    bound_, candidates_.data(), counts_.data()});
    }

    uint32_t read_count(size_t which) {
        uint32_t count = 0;
        copy_async(&count, static_cast<const uint32_t*>(counts_ + which), 1, stream_);
        check(cudaStreamSynchronize(stream_), "find_pairs");
        return count;
    }

    const Context& context_;
    const Blas& blas_;
    const cudaStream_t stream_;
    const float bound_;
    const DeviceGraphRows rows_;
    const size_t side_;
    Buffer<uint2> candidates_;
    Buffer<uint32_t> counts_;  // candidates, pairs
    Buffer<uint32_t> scales_;
    Buffer<float> factors_;
    Buffer<float> values_;                // (side)(side)
    Buffer<__half> a_halves_, b_halves_;  // (side)(split_width)
    Buffer<float> a_norms_, b_norms_;     // (side)
    Buffer<float> origin_;                // (dims), or empty
};

}  // namespace

std::unique_ptr<PairFinder> make_pair_finder(const Context& context, const Blas& blas,
                                             Uploader& uploader, cudaStream_t stream,
                                             const GraphRows& rows, float bound) {
    context.use();
    context.check_interrupt();
    return std::make_unique<CudaPairFinder>(context, blas, uploader, stream, rows, bound);
}

}  // namespace pgwarp::gpu
