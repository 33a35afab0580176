#include "kernels/cpu/pair_filter.h"

#include "kernels/cpu/products.h"
#include "kernels/distance.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace pgwarp {

namespace {

constexpr size_t block_rows = 512;
constexpr double unit = 0x1p-24;  // rounding error of a float, relative

struct Reduction {
    const GraphRows& rows;
    const PairDirections& directions;
    uint32_t width;
    double delta;  // error of a projection, relative to the length of the centred row
};

Reduction make_reduction(const GraphRows& rows, const PairDirections& directions, uint32_t width) {
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

PairFilter make_pair_filter(Workers& workers, const GraphRows& rows, const PairPlan& plan) {
    if (plan.width > 0) {
        PairFilter filter = reduce_all(workers, make_reduction(rows, plan.directions, plan.width));
        if (!filter.low.empty()) return filter;
    }
    return make_plain_filter(workers, rows);
}

}  // namespace pgwarp
