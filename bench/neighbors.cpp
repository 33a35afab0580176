// Inner products come from a matrix product of a block of queries and a block of rows. They give a
// cheap score that orders rows as the metric does: |row|² - 2<query, row> for L2. Scores in float32
// lose digits (|row|² may be far larger than the distance), so that more than k rows are kept, and
// sorted by float64 distance.
#include "bench/neighbors.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <utility>

#include "bench/parallel.h"
#include "kernels/cpu/products.h"

namespace pgwarp::bench {
namespace {

constexpr size_t query_block = 64;
constexpr size_t row_block = 2048;

struct Candidate {
    float score;
    int32_t row;
    bool operator<(const Candidate& other) const {
        return score != other.score ? score < other.score : row < other.row;
    }
};

// The `keep` smallest candidates seen so far: a buffer of twice that, cut by nth_element when full.
class Selection {
  public:
    explicit Selection(size_t keep) : keep_(keep) { candidates_.reserve(2 * keep); }

    void offer(float score, size_t row) {
        if (score > bound_) return;
        candidates_.push_back({score, static_cast<int32_t>(row)});
        if (candidates_.size() == 2 * keep_) cut();
    }

    const std::vector<Candidate>& finish() {
        if (candidates_.size() > keep_) cut();
        return candidates_;
    }

  private:
    void cut() {
        std::nth_element(candidates_.begin(), candidates_.begin() + keep_ - 1, candidates_.end());
        candidates_.resize(keep_);
        bound_ = candidates_.back().score;
    }

    size_t keep_;
    float bound_ = std::numeric_limits<float>::infinity();
    std::vector<Candidate> candidates_;
};

// score = constant + factor * <query, row>; constant and factor depend on the row only.
struct RowTerms {
    std::vector<float> constant;
    std::vector<float> factor;
};

RowTerms row_terms(Metric metric, const Vectors& base) {
    RowTerms terms{std::vector<float>(base.rows, 0), std::vector<float>(base.rows, -1)};
    for (size_t row = 0; row < base.rows; row++) {
        double squares = 0;
        for (const float value : base.row(row)) squares += double(value) * value;
        if (metric == Metric::l2) {
            terms.constant[row] = static_cast<float>(squares);
            terms.factor[row] = -2;
        } else if (metric == Metric::cosine) {
            terms.factor[row] = squares > 0 ? static_cast<float>(-1 / std::sqrt(squares)) : 0;
        }
    }
    return terms;
}

// Sorts candidates by exact distance, and writes the nearest to `numbers`, the query's row.
void rank(Metric metric, const Vectors& base, std::span<const float> query,
          const std::vector<Candidate>& candidates, std::span<int32_t> numbers) {
    std::vector<std::pair<double, int32_t>> ranked;
    for (const Candidate& candidate : candidates)
        ranked.emplace_back(distance(metric, query, base.row(candidate.row)), candidate.row);
    std::sort(ranked.begin(), ranked.end());
    for (size_t i = 0; i < numbers.size(); i++) numbers[i] = ranked[i].second;
}

}  // namespace

RowNumbers exact_neighbors(Metric metric, const Vectors& base, const Vectors& queries, size_t k,
                           unsigned threads) {
    if (base.dims != queries.dims)
        throw std::runtime_error("the base has " + std::to_string(base.dims) +
                                 " dimensions, the queries have " + std::to_string(queries.dims));
    const size_t width = std::min(k, base.rows);
    const size_t keep = std::min(2 * width + 16, base.rows);
    const RowTerms terms = row_terms(metric, base);
    RowNumbers result{queries.rows, width, std::vector<int32_t>(queries.rows * width)};
    std::vector<std::vector<float>> products(threads);

    const size_t blocks = (queries.rows + query_block - 1) / query_block;
    parallel_pieces(blocks, threads, [&](unsigned thread, size_t block) {
        const size_t first = block * query_block;
        const size_t count = std::min(query_block, queries.rows - first);
        std::vector<float>& product = products[thread];  // (query)(row)
        product.resize(query_block * row_block + products_scratch(query_block));
        std::vector<Selection> selections(count, Selection(keep));
        for (size_t start = 0; start < base.rows; start += row_block) {
            const size_t rows = std::min(row_block, base.rows - start);
            inner_products({queries.row(first).data(), count, base.row(start).data(), rows,
                            base.dims, 1, product.data()},
                           product.data() + query_block * row_block);
            for (size_t query = 0; query < count; query++) {
                const float* dots = product.data() + query * rows;
                for (size_t i = 0; i < rows; i++) {
                    const size_t row = start + i;
                    const float score = terms.constant[row] + terms.factor[row] * dots[i];
                    selections[query].offer(score, row);
                }
            }
        }
        for (size_t query = 0; query < count; query++)
            rank(metric, base, queries.row(first + query), selections[query].finish(),
                 {result.values.data() + (first + query) * width, width});
    });
    return result;
}

}  // namespace pgwarp::bench
