#include "kernels/cuda/graph/pairs.h"

#include "kernels/cuda/base/launch.cuh"
#include "kernels/cuda/graph/distance.cuh"
#include "kernels/cuda/graph/exact.h"
#include "kernels/cuda/products/products.h"

#include <algorithm>
#include <cmath>

namespace pgwarp::gpu {

namespace {

// Candidates of one rectangle; the caller cuts a rectangle that has more.
constexpr size_t candidate_room = size_t{1} << 22;
// More candidates of a rectangle take longer than a more exact product, which leaves fewer.
constexpr uint32_t many_candidates = 1u << 18;
constexpr size_t largest_side = 16384;
constexpr unsigned scan_threads = 256;
constexpr unsigned scan_columns = 4;  // of a thread
constexpr uint32_t scan_rows = 16;    // of a block
constexpr int loaded_rows = 4;        // at a time

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
    Terms terms;  // of the products
    bool square;  // a is b: only pairs with the larger row from b
    float bound;
    uint2* candidates;  // (candidate_room)
    uint32_t* count;    // may exceed the room
};

// What the limit needs of a row.
struct RowTerms {
    float squared, length;
    float off;  // at most the distance of the row from its halves
};

__device__ __forceinline__ RowTerms terms_of(const Scan& s, float norm, uint32_t scale) {
    if (s.terms == Terms::all) return {norm, sqrtf(norm), 0};
    // A half has 11 bits, and nothing below 2^-39 of the largest number (products.h).
    const float length = sqrtf(norm);
    const float least = 0x1p-39f * sqrtf(static_cast<float>(s.dims)) * bits_float(scale);
    return {norm, length, 0x1.1p-11f * length + least};
}

// No pair within the bound has a greater value. Values and norms of halves have three errors: the
// distance is off by at most that of both rows from their halves (the triangle inequality), and the
// sums of products and the norms by their rounding.
__device__ __forceinline__ float greatest_value(const Scan& s, const RowTerms& a,
                                                const RowTerms& b) {
    const float largest_a = bits_float(s.scales[0]), largest_b = bits_float(s.scales[1]);
    if (!has_norms(s.metric)) {
        const float rounding = product_error(a.length, b.length, largest_a, largest_b, s.dims);
        return s.bound + 2 * rounding + a.off * b.length + b.off * a.length;
    }
    const float length = a.length + b.length;
    const float reach = sqrtf(s.metric == Metric::cosine ? 2 * s.bound : s.bound) + a.off + b.off;
    return reach * reach + product_error(length, length, largest_a, largest_b, s.dims) - a.squared -
           b.squared;
}

__device__ __forceinline__ void test_value(const Scan& s, float value, float greatest, uint32_t row,
                                           uint32_t column) {
    // NaN is no bound.
    if (value > greatest || column >= s.b_count || (s.square && column <= row)) return;
    const uint32_t at = atomicAdd(s.count, 1u);
    if (at < candidate_room) s.candidates[at] = {s.first_a + row, s.first_b + column};
}

__device__ __forceinline__ float4 load_values(const Scan& s, uint32_t row, uint32_t column) {
    const float* from = s.values + size_t{row} * s.stride + column;
    if (column + scan_columns <= s.b_count) return __ldcs(reinterpret_cast<const float4*>(from));
    const auto value = [&](uint32_t c) { return column + c < s.b_count ? from[c] : 0.0f; };
    return {value(0), value(1), value(2), value(3)};
}

__global__ void __launch_bounds__(scan_threads) scan_values(Scan s) {
    __shared__ RowTerms rows[scan_rows];
    const uint32_t first = blockIdx.y * scan_rows, end = min(first + scan_rows, s.a_count);
    const uint32_t column = (blockIdx.x * scan_threads + threadIdx.x) * scan_columns;
    const bool products = s.a_norms != nullptr;
    if (products && threadIdx.x < end - first)
        rows[threadIdx.x] = terms_of(s, s.a_norms[first + threadIdx.x], s.scales[0]);
    __syncthreads();
    if (column >= s.b_count || (s.square && column + scan_columns <= first)) return;
    RowTerms others[scan_columns];
    for (unsigned c = 0; products && c < scan_columns; ++c)
        others[c] = terms_of(s, column + c < s.b_count ? s.b_norms[column + c] : 0, s.scales[1]);
    // Sums of float32.
    const float greatest_sum = s.bound / (1 - 0x1p-22f * static_cast<float>(s.dims));
    for (uint32_t row = first; row < end; row += loaded_rows) {
        float4 values[loaded_rows];
#pragma unroll
        for (int r = 0; r < loaded_rows; ++r)
            values[r] = load_values(s, min(row + r, end - 1), column);
#pragma unroll
        for (int r = 0; r < loaded_rows; ++r) {
            if (row + r >= end) break;
            const float four[scan_columns] = {values[r].x, values[r].y, values[r].z, values[r].w};
#pragma unroll
            for (unsigned c = 0; c < scan_columns; ++c)
                test_value(
                    s, four[c],
                    products ? greatest_value(s, rows[row + r - first], others[c]) : greatest_sum,
                    row + r, column + c);
        }
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
        uint32_t candidates = find_candidates(rectangle);
        if (candidates > candidate_room && terms_ == Terms::first) {
            terms_ = Terms::all;
            candidates = find_candidates(rectangle);
        }
        if (candidates > candidate_room) return false;
        if (candidates == 0) return true;
        Buffer<RowPair> pairs(context_.memory, candidates);
        const FinishStream finish_pairs_first(stream_);
        launch("finish_pairs", finish_pairs, {divide_up(candidates, 8u), 256, 0, stream_},
               Finish{rows_.view(), candidates_.data(), candidates, bound_, pairs.data(),
                      counts_ + 1});
        const uint32_t count = read_count(1);
        if (candidates > many_candidates && count < candidates / 2) terms_ = Terms::all;
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

    // Returns how many there are.
    uint32_t find_candidates(const PairRectangle& rectangle) {
        clear_async(counts_.data(), 2, stream_);
        fill_values(rectangle);
        scan(rectangle);
        return read_count(0);
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
            if (terms_ == Terms::first && view.centred())
                half_norms({halves.data(), scale, range.size()}, view.dims, norms.data(), stream_);
        };
        split(a, Side::left, a_halves_, scales_.data(), a_norms_);
        split(b, Side::right, b_halves_, scales_ + 1, b_norms_);
        multiply(blas_, stream_, {a_halves_.data(), scales_.data(), a.size()},
                 {b_halves_.data(), scales_ + 1, b.size()}, view.dims,
                 view.centred() ? -2.0f : -1.0f, values_.data(), side_, factors_.data(), terms_);
    }

    void scan(const PairRectangle& rectangle) {
        const GraphView& view = rows_.view();
        const RowRange a = range_of(rectangle.a), b = range_of(rectangle.b);
        const dim3 blocks(divide_up(b.size(), scan_threads * scan_columns),
                          divide_up(a.size(), scan_rows));
        launch("scan_values", scan_values, {blocks, scan_threads, 0, stream_},
               Scan{values_.data(), side_, a.size(), b.size(), a.begin, b.begin, a_norms_.data(),
                    b_norms_.data(), scales_.data(), view.dims, view.metric, terms_,
                    rectangle.is_square(), bound_, candidates_.data(), counts_.data()});
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
    Terms terms_ = Terms::first;  // all: rows are too near to each other for halves
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
