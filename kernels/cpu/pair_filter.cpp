#include "kernels/cpu/pair_filter.h"

#include "kernels/cpu/filter.h"
#include "kernels/cpu/products.h"
#include "kernels/distance.h"
#include "kernels/draw_rows.h"
#include "kernels/rotation.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

namespace pgwarp {

namespace {

constexpr size_t block_rows = 512;
constexpr size_t direction_rows = 8192;  // sample for the principal directions
constexpr size_t trial_rows = 1024;      // sample whose pairs choose the width
// Fewer rows take less time than their directions.
constexpr size_t least_rows = 4096;
constexpr uint32_t widths[] = {16, 32, 48, 64, 96, 128, 192, 256, 384, 512};
constexpr double unit = 0x1p-24;  // rounding error of a float, relative

// Multiplications that a pair takes which no filter rejects: two rows from anywhere in memory.
double survivor_cost(uint32_t dims) {
    return 400 + 4.0 * dims;
}
// And one that is rejected, beside its product.
constexpr double rejected_cost = 4;

// Principal directions of the rows, around their mean where distances do not depend on an origin.
struct Directions {
    uint32_t count;
    std::vector<float> matrix;  // (count)(dims), the strongest first
    std::vector<float> mean;    // (dims); zeros for inner products
    double error;  // |P - P'|, at most, for the matrix P and the nearest one with orthonormal rows
};

double orthonormal_error(const std::vector<float>& matrix, uint32_t count, uint32_t dims) {
    double sum = 0;
    for (uint32_t i = 0; i < count; ++i)
        for (uint32_t j = 0; j <= i; ++j) {
            const float *a = &matrix[size_t{i} * dims], *b = &matrix[size_t{j} * dims];
            double product = i == j ? -1 : 0;
            for (uint32_t d = 0; d < dims; ++d) product += static_cast<double>(a[d]) * b[d];
            sum += (i == j ? 1 : 2) * product * product;
        }
    return std::sqrt(sum);
}

Directions find_directions(Workers& workers, const GraphRows& rows, uint32_t count) {
    Directions directions{count, std::vector<float>(size_t{count} * rows.dims),
                          std::vector<float>(rows.dims), 0};
    const std::vector<uint64_t> drawn = draw_few_rows(rows.count, direction_rows, 1);
    const bool centred = has_norms(rows.metric);
    std::vector<float> sample;
    sample.reserve((centred ? 1 : 2) * drawn.size() * rows.dims);
    std::vector<double> sums(rows.dims);
    for (const uint64_t row : drawn)
        for (uint32_t d = 0; d < rows.dims; ++d) {
            sample.push_back(rows.row(row)[d]);
            sums[d] += sample.back();
        }
    // Rows with their negatives have no mean: directions around the origin.
    if (!centred)
        for (size_t i = 0, end = sample.size(); i < end; ++i) sample.push_back(-sample[i]);
    principal_directions(workers, sample.data(), sample.size() / rows.dims, rows.dims, count,
                         directions.matrix.data());
    if (centred)
        for (uint32_t d = 0; d < rows.dims; ++d)
            directions.mean[d] = static_cast<float>(sums[d] / static_cast<double>(drawn.size()));
    directions.error = orthonormal_error(directions.matrix, count, rows.dims);
    return directions;
}

struct Reduction {
    const GraphRows& rows;
    const Directions& directions;
    uint32_t width;
    double delta;  // error of a projection, relative to the length of the centred row
};

Reduction make_reduction(const GraphRows& rows, const Directions& directions, uint32_t width) {
    // Of each product at most (dims + 2) units of both lengths.
    const double rounding = std::sqrt(static_cast<double>(width)) * (rows.dims + 2) * unit;
    return {rows, directions, width, directions.error + rounding};
}

// Writes the vectors of some rows, (count)(width), and their squared norms. False: a norm is too
// large for float32.
bool reduce_rows(const Reduction& r, size_t first, size_t count, float* vectors, float* norms) {
    const uint32_t dims = r.rows.dims, kept = r.width - 1;
    std::vector<float> centred(count * dims), projected(count * kept);
    std::vector<float> scratch(products_scratch(count));
    for (size_t i = 0; i < count; ++i)
        for (uint32_t d = 0; d < dims; ++d)
            centred[i * dims + d] = r.rows.row(first + i)[d] - r.directions.mean[d];
    inner_products(
        {centred.data(), count, r.directions.matrix.data(), kept, dims, 1, projected.data()},
        scratch.data());
    for (size_t i = 0; i < count; ++i) {
        const double norm = squared_norm(centred.data() + i * dims, dims);
        if (!(norm < std::numeric_limits<float>::max() / 8)) return false;
        const double left = norm * (1 + 3 * r.delta) - squared_norm(&projected[i * kept], kept);
        float* vector = vectors + i * r.width;
        std::copy_n(&projected[i * kept], kept, vector);
        vector[kept] = static_cast<float>(std::sqrt(std::max(left, 0.0)) * (1 + 2 * unit));
        norms[i] = static_cast<float>(norm);
    }
    return true;
}

// The factor of the product and of the norms in the distance, lowered by an error that is relative
// to the norms.
void set_factors(Metric metric, float off, PairFilter* filter, float* norm_part) {
    switch (metric) {
        case Metric::l2:
            filter->factor = -2, *norm_part = 1 - off;
            break;
        case Metric::cosine:
            filter->factor = -1, *norm_part = (1 - off) / 2;
            break;
        case Metric::inner_product:
            filter->factor = -1, *norm_part = -off;
            break;
        // Sums of positive terms: the error is relative to the sum.
        case Metric::l1:
            filter->factor = 1 - off, *norm_part = 0;
            break;
    }
}

// The error that products, norms and the distance itself have by rounding, relative to the norms.
float rounding_share(uint32_t dims) {
    return static_cast<float>((4.0 * dims + 32) * unit);
}

// Empty where the rows are too large.
PairFilter reduce_all(Workers& workers, const Reduction& reduction) {
    const GraphRows& rows = reduction.rows;
    PairFilter filter{};
    float norm_part = 0;
    set_factors(rows.metric, rounding_share(rows.dims) + static_cast<float>(3 * reduction.delta),
                &filter, &norm_part);
    filter.dims = reduction.width;
    filter.low.resize(rows.count);
    filter.reduced.resize(rows.count * filter.dims);
    filter.vectors = filter.reduced.data();
    const size_t blocks = (rows.count + block_rows - 1) / block_rows;
    std::vector<char> fits(blocks);
    workers.run(blocks, [&](size_t block, int) {
        const size_t first = block * block_rows, count = std::min(block_rows, rows.count - first);
        fits[block] = reduce_rows(reduction, first, count, &filter.reduced[first * filter.dims],
                                  &filter.low[first]);
        for (size_t i = first; i < first + count; ++i) filter.low[i] *= norm_part;
    });
    if (std::find(fits.begin(), fits.end(), 0) != fits.end()) return {};
    return filter;
}

// Share of the pairs of a sample that the filter does not reject; its rows are all of the filter's.
double surviving_share(const PairFilter& filter, float bound) {
    const size_t half = filter.low.size() / 2;
    std::vector<float> products(half * half), scratch(products_scratch(half));
    inner_products({filter.vectors, half, filter.vector(half), half, filter.dims, filter.factor,
                    products.data()},
                   scratch.data());
    size_t survivors = 0;
    for (size_t i = 0; i < half; ++i)
        for (size_t j = 0;; ++j, ++survivors) {
            j = next_at_most(&products[i * half], &filter.low[half], j, half,
                             bound - filter.low[i]);
            if (j == half) break;
        }
    return static_cast<double>(survivors) / static_cast<double>(half * half);
}

// The width that costs least, by a sample of pairs; 0: products of the rows themselves do.
uint32_t choose_width(Workers& workers, const GraphRows& rows, const Directions& directions,
                      float bound) {
    const std::vector<uint64_t> drawn = draw_few_rows(rows.count, 2 * trial_rows, 2);
    std::vector<float> sample;
    for (const uint64_t row : drawn)
        sample.insert(sample.end(), rows.row(row), rows.row(row) + rows.dims);
    const GraphRows some{sample.data(), drawn.size(), rows.dims, rows.metric};
    const double of_rows =
        surviving_share(make_plain_filter(workers, some), bound) * survivor_cost(rows.dims);
    double best = rows.dims + rejected_cost + of_rows;
    uint32_t chosen = 0;
    for (const uint32_t width : widths) {
        // Wider ones reject no pair that the rows' products do not.
        if (width > directions.count + 1 || width + rejected_cost + of_rows >= best) break;
        const PairFilter filter = reduce_all(workers, make_reduction(some, directions, width));
        if (filter.low.empty()) return 0;
        const double cost =
            width + rejected_cost + surviving_share(filter, bound) * survivor_cost(rows.dims);
        if (cost < best) best = cost, chosen = width;
    }
    return chosen;
}

}  // namespace

PairFilter make_plain_filter(Workers& workers, const GraphRows& rows) {
    PairFilter filter{};
    float norm_part = 0;
    set_factors(rows.metric, rounding_share(rows.dims), &filter, &norm_part);
    filter.vectors = rows.rows;
    filter.dims = rows.dims;
    filter.low.resize(rows.count);
    workers.run((rows.count + block_rows - 1) / block_rows, [&](size_t block, int) {
        const size_t end = std::min(rows.count, (block + 1) * block_rows);
        // Finite, even where the norm overflows.
        for (size_t row = block * block_rows; row < end; ++row)
            filter.low[row] =
                norm_part * std::min(dot_product(rows.row(row), rows.row(row), rows.dims),
                                     std::numeric_limits<float>::max() / 4);
    });
    return filter;
}

PairFilter make_reduced_filter(Workers& workers, const GraphRows& rows, uint32_t dims) {
    const Directions directions = find_directions(workers, rows, dims - 1);
    return reduce_all(workers, make_reduction(rows, directions, dims));
}

PairFilter make_pair_filter(Workers& workers, const GraphRows& rows, float bound) {
    const uint32_t most = std::min(rows.dims / 4 * 3, std::end(widths)[-1]);
    if (!has_products(rows.metric) || rows.count < least_rows || most < widths[0])
        return make_plain_filter(workers, rows);
    try {
        const Directions directions = find_directions(workers, rows, most - 1);
        // Rows near the largest float have no covariance.
        if (!(directions.error < 0.01)) return make_plain_filter(workers, rows);
        const uint32_t width = choose_width(workers, rows, directions, bound);
        if (width > 0) {
            PairFilter filter = reduce_all(workers, make_reduction(rows, directions, width));
            if (!filter.low.empty()) return filter;
        }
    } catch (const std::runtime_error&) {
        // There is no LAPACK. It takes longer then, with the same result.
    }
    return make_plain_filter(workers, rows);
}

}  // namespace pgwarp
