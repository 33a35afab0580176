// Approximate neighbors are enough: each row goes into the bucket of its nearest of about √n
// pivots, and neighbors are searched within a bucket. This takes n√n distances instead of n².
#include "bench/generator.h"

#include <algorithm>
#include <cmath>

#include "bench/neighbors.h"
#include "bench/parallel.h"
#include "bench/random.h"

namespace pgwarp::bench {
namespace {

constexpr size_t neighbors_kept = 8;

Vectors gather(const Vectors& base, std::span<const size_t> rows) {
    Vectors part{rows.size(), base.dims, {}};
    part.values.reserve(rows.size() * base.dims);
    for (const size_t row : rows) {
        const auto values = base.row(row);
        part.values.insert(part.values.end(), values.begin(), values.end());
    }
    return part;
}

std::vector<std::vector<size_t>> buckets_by_pivot(const Vectors& base, uint64_t seed) {
    const size_t count = std::max<size_t>(1, size_t(std::sqrt(double(base.rows))));
    std::vector<size_t> pivots = shuffled(base.rows, seed);
    pivots.resize(count);
    const RowNumbers nearest =
        exact_neighbors(Metric::l2, gather(base, pivots), base, 1, default_threads());
    std::vector<std::vector<size_t>> buckets(count);
    for (size_t row = 0; row < base.rows; row++) buckets[nearest.values[row]].push_back(row);
    return buckets;
}

}  // namespace

double quantisation_step(const Vectors& base, bool bytes) {
    if (bytes) return 1;
    const size_t stride = std::max<size_t>(1, base.values.size() / 1000000);
    double sum = 0, squares = 0, step = 1;
    size_t count = 0;
    for (size_t i = 0; i < base.values.size(); i += stride, count++) {
        const double value = base.values[i];
        sum += value;
        squares += value * value;
        while (step >= 0x1p-12 && value != step * std::nearbyint(value / step)) step /= 2;
    }
    if (step >= 0x1p-12) return step;
    const double mean = sum / double(count);
    return std::sqrt(std::max(0.0, squares / double(count) - mean * mean)) / 256;
}

Generator::Generator(const Vectors& base, bool bytes, uint64_t seed, double step)
    : base_(base),
      bytes_(bytes),
      seed_(seed),
      step_(step > 0 ? step : quantisation_step(base, bytes)),
      width_(neighbors_kept),
      near_(base.rows * neighbors_kept, -1) {
    const auto buckets = buckets_by_pivot(base, seed);
    parallel_pieces(buckets.size(), default_threads(), [&](unsigned, size_t piece) {
        const std::vector<size_t>& bucket = buckets[piece];
        if (bucket.empty()) return;
        const Vectors part = gather(base, bucket);
        // One more, because a row is its own nearest neighbor.
        const RowNumbers found = exact_neighbors(Metric::l2, part, part, width_ + 1, 1);
        for (size_t i = 0; i < bucket.size(); i++) {
            int32_t* near = near_.data() + bucket[i] * width_;
            size_t kept = 0;
            for (const int32_t other : found.row(i))
                if (size_t(other) != i && kept < width_)
                    near[kept++] = static_cast<int32_t>(bucket[other]);
        }
    });
}

size_t Generator::near_of(size_t row, Random& random) const {
    const auto begin = near_.begin() + row * width_;
    const size_t choices = size_t(std::find(begin, begin + width_, -1) - begin);
    return choices > 0 ? size_t(begin[random.below(choices)]) : row;
}

void Generator::add_between(size_t from, Random& random, std::vector<float>& made) const {
    const size_t to = near_of(from, random);
    const double part = random.uniform();
    for (size_t i = 0; i < base_.dims; i++) {
        const double a = base_.row(from)[i], b = base_.row(to)[i];
        // A dimension in which both are zero stays zero: an image keeps its black border, a sparse
        // vector its zeros.
        const double noise = a == 0 && b == 0 ? 0 : step_ * (2 * random.uniform() - 1);
        const double value = a + part * (b - a) + noise;
        made.push_back(
            static_cast<float>(bytes_ ? std::clamp(std::nearbyint(value), 0.0, 255.0) : value));
    }
}

std::vector<float> Generator::row(size_t index) const {
    if (index < base_.rows) return {base_.row(index).begin(), base_.row(index).end()};
    Random random(seed_, index);
    std::vector<float> made;
    made.reserve(base_.dims);
    add_between(random.below(base_.rows), random, made);
    return made;
}

std::vector<float> Generator::pair(size_t index) const {
    Random random(seed_, index);
    const size_t first = index < base_.rows ? index : random.below(base_.rows);
    std::vector<float> made;
    made.reserve(2 * base_.dims);
    add_between(first, random, made);
    add_between(near_of(first, random), random, made);
    return made;
}

}  // namespace pgwarp::bench
