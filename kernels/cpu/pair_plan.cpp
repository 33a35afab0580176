// Whether a filter of fewer dimensions pays, and of how many: by the multiplications that it takes
// and those that it spares.

#include "kernels/cpu/filter.h"
#include "kernels/cpu/pair_filter.h"
#include "kernels/cpu/products.h"
#include "kernels/draw_rows.h"

#include <algorithm>
#include <iterator>
#include <stdexcept>

namespace pgwarp {

namespace {

constexpr size_t most_sample_rows = 8192;  // for the principal directions
constexpr size_t least_sample_rows = 1024;
constexpr size_t trial_rows = 1024;  // twice as many of the sample, whose pairs choose the width
constexpr uint32_t widths[] = {16, 32, 48, 64, 96, 128, 192, 256, 384, 512};
// LAPACK takes seconds with these, which no interrupt ends.
constexpr uint32_t most_dims = 2048;
// A finder's own plan, beside as many bytes as the rows have.
constexpr size_t own_memory = size_t{16} << 20;

// Multiplications that a pair takes which no filter rejects: two rows from anywhere in memory.
double survivor_cost(uint32_t dims) {
    return 400 + 4.0 * dims;
}
// And one that is rejected, beside its product.
constexpr double rejected_cost = 4;

uint32_t most_width(uint32_t dims) {
    return std::min(dims / 4 * 3, std::end(widths)[-1]);
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

// Multiplications for each pair, with vectors of this many dimensions: rows are projected once for
// all pairs that a finder compares.
double pair_cost(const PairWork& work, uint32_t width, double survivors) {
    const double projecting = static_cast<double>(work.dims) * width * work.rows / work.pairs;
    return width + rejected_cost + projecting + survivors * survivor_cost(work.dims);
}

// Sets the width that costs least, by a sample of pairs; 0: products of the rows themselves do.
void choose_width(Workers& workers, const GraphRows& sample, float bound, const PairWork& work,
                  PairPlan* plan) {
    const GraphRows some{sample.rows, std::min(sample.count, 2 * trial_rows), sample.dims,
                         sample.metric};
    const double of_rows = surviving_share(make_plain_filter(workers, some), bound);
    double best = work.dims + rejected_cost + of_rows * survivor_cost(work.dims);
    uint32_t chosen = 0;
    for (const uint32_t width : widths) {
        // Wider ones reject no pair that the rows' products do not.
        if (width > plan->directions.count + 1 || pair_cost(work, width, of_rows) >= best) break;
        plan->width = width;
        const PairFilter filter = make_pair_filter(workers, some, *plan);
        // Rows that are too large.
        if (filter.dims != width) break;
        const double cost = pair_cost(work, width, surviving_share(filter, bound));
        if (cost < best) best = cost, chosen = width;
    }
    plan->width = chosen;
}

// Bytes of choose_width(), at most: products, vectors, and rows in the course of projection.
size_t trial_memory(uint32_t dims, int threads) {
    const size_t projecting = 512 * (size_t{dims} + most_width(dims));
    return (trial_rows * trial_rows + 2 * trial_rows * most_width(dims) +
            static_cast<size_t>(threads) * projecting) *
           sizeof(float);
}

std::shared_ptr<const PairPlan> plan_for_finder(Workers& workers, const GraphRows& rows,
                                                float bound) {
    const auto count = static_cast<double>(rows.count);
    const PairWork work = {rows.dims, rows.metric, count * (count - 1) / 2, count};
    const size_t memory = rows.count * rows.dims * sizeof(float) + own_memory;
    std::vector<float> sample;
    const size_t wanted = pair_sample_rows(work, workers.threads(), memory);
    sample.reserve(wanted * rows.dims);
    for (const uint64_t row : draw_few_rows(rows.count, wanted, 1))
        sample.insert(sample.end(), rows.row(row), rows.row(row) + rows.dims);
    return make_pair_plan(
        workers, {sample.data(), sample.size() / rows.dims, rows.dims, rows.metric}, bound, work);
}

}  // namespace

size_t pair_sample_rows(const PairWork& work, int threads, size_t memory) {
    const uint32_t most = most_width(work.dims);
    if (!has_products(work.metric) || most < widths[0] || work.dims > most_dims) return 0;
    const double trial = trial_rows * trial_rows * (static_cast<double>(work.dims) + most);
    const double cost = directions_work(work.dims, most_sample_rows) + trial;
    // What they spare is known later: little, where many pairs are within the bound.
    if (work.pairs * (work.dims - widths[0]) < 2 * cost) return 0;
    const size_t beside =
        std::max(directions_memory(work.dims, most, threads),
                 size_t{most} * work.dims * sizeof(float) + trial_memory(work.dims, threads));
    const size_t row_bytes = work.dims * sizeof(float);
    if (memory < beside + least_sample_rows * row_bytes) return 0;
    return std::min(most_sample_rows, (memory - beside) / row_bytes);
}

std::shared_ptr<const PairPlan> make_pair_plan(Workers& workers, const GraphRows& sample,
                                               float bound, const PairWork& work) {
    auto plan = std::make_shared<PairPlan>();
    if (sample.count == 0) return plan;
    try {
        plan->directions = find_directions(workers, sample, most_width(sample.dims) - 1);
    } catch (const std::runtime_error&) {
        // There is no LAPACK. It takes longer then, with the same result.
        return plan;
    }
    // Rows near the largest float have no covariance.
    if (plan->directions.error < 0.01) choose_width(workers, sample, bound, work, plan.get());
    return plan;
}

std::shared_ptr<const PairPlan> make_pair_plan(int threads, const Interrupts& interrupts,
                                               const GraphRows& sample, float bound,
                                               const PairWork& work) {
    Workers workers(threads, interrupts);
    return make_pair_plan(workers, sample, bound, work);
}

PairFilter make_pair_filter(Workers& workers, const GraphRows& rows, const PairSearch& search) {
    if (search.plan) return make_pair_filter(workers, rows, *search.plan);
    return make_pair_filter(workers, rows, *plan_for_finder(workers, rows, search.bound));
}

}  // namespace pgwarp
