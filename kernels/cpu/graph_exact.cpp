// A tile of the distance matrix serves both its rows and its columns. As in exact search, the
// product only rejects pairs that are certainly too far; the few others get their distance from the
// two rows themselves. So lists do not depend on the order of tiles, and threads process tiles in
// any order, with a lock for each block of lists.

#include "kernels/cpu/graph_exact.h"

#include "kernels/cpu/filter.h"
#include "kernels/cpu/graph_lists.h"
#include "kernels/cpu/graph_tile.h"
#include "kernels/cpu/products.h"
#include "kernels/distance.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>
#include <vector>

namespace pgwarp {

namespace {

constexpr size_t tile_rows = 512;

class ExactGraph {
  public:
    ExactGraph(Workers& workers, const GraphRows& rows, size_t border, const RowSpan& part,
               uint32_t degree, Edge* lists)
        : workers_(workers),
          rows_(rows),
          part_(part),
          degree_(degree),
          lists_(lists),
          low_(rows.count),
          scratch_(workers.scratch(scratch_floats(rows.dims))) {
        // No block lies across the border, or across an end of the part.
        size_t ends[] = {border, part.begin, part.end, rows.count};
        std::sort(std::begin(ends), std::end(ends));
        size_t row = 0;
        for (const size_t end : ends)
            for (; row < end; row = std::min(end, row + tile_rows)) begins_.push_back(row);
        first_blocks_ = static_cast<size_t>(
            std::lower_bound(begins_.begin(), begins_.end(), border) - begins_.begin());
        blocks_ = begins_.size();
        begins_.push_back(rows.count);
        locks_.reset(new std::mutex[blocks_]);
        // As in exact search: all sums together are off by at most this share of the norms.
        const float off = static_cast<float>(4 * rows.dims + 16) * 0x1p-24f;
        switch (rows.metric) {
            case Metric::l2:
                factor_ = -2, norm_part_ = 1 - off;
                break;
            case Metric::cosine:
                factor_ = -1, norm_part_ = (1 - off) / 2;
                break;
            case Metric::inner_product:
                factor_ = -1, norm_part_ = -off;
                break;
            // Sums of positive terms: the error is relative to the sum, and so to any bound it
            // exceeds.
            case Metric::l1:
                factor_ = 1 - off, norm_part_ = 0;
                break;
        }
    }

    static size_t scratch_floats(uint32_t dims) {
        return tile_rows * tile_rows + tile_rows +
               std::max(products_scratch(tile_rows), 2 * tile_rows * tile_stride(dims));
    }

    void run(const GraphProgress& progress) {
        workers_.run(blocks_, [&](size_t block, int) {
            for (size_t row = begin_of(block); row < end_of(block); ++row)
                low_[row] = low_term(rows_.row(row));
        });
        // A block with all that follow, or several with all blocks beyond the border: these may be
        // few, and every thread wants some.
        constexpr size_t least_tasks = 64;
        const size_t last = first_blocks_ ? first_blocks_ : blocks_;
        const size_t beyond = blocks_ - first_blocks_;
        const size_t at_once = first_blocks_ ? std::max<size_t>(least_tasks / beyond, 1) : 1;
        const auto first_other = [&](size_t block) { return std::max(block, first_blocks_); };
        uint64_t done = 0, total = 0;
        for (size_t block = 0; block < last; ++block) total += blocks_ - first_other(block);
        for (size_t block = 0; block < last; block += at_once) {
            if (progress) progress(GraphPhase::exact, done, total);
            const size_t others = blocks_ - first_other(block);
            const size_t tasks = std::min(at_once, last - block) * others;
            workers_.run(tasks, [&](size_t task, int thread) {
                const size_t a = block + task / others, b = first_other(block) + task % others;
                if (is_wanted(a) || is_wanted(b))
                    compare(a, b, scratch_[static_cast<size_t>(thread)].data());
            });
            done += tasks;
        }
    }

  private:
    size_t begin_of(size_t block) const { return begins_[block]; }
    size_t end_of(size_t block) const { return begins_[block + 1]; }
    bool is_wanted(size_t block) const {
        return begin_of(block) >= part_.begin && end_of(block) <= part_.end;
    }
    Edge* list_of(size_t row) const { return lists_ + (row - part_.begin) * degree_; }

    // A row's term of the lower bound of a distance. Finite, even where the norm overflows.
    float low_term(const float* row) const {
        return norm_part_ *
               std::min(dot_product(row, row, rows_.dims), std::numeric_limits<float>::max() / 4);
    }

    // Writes (rows of a)(rows of b) to `values`.
    void multiply(size_t a, size_t b, float* values, float* scratch) {
        const size_t a_rows = end_of(a) - begin_of(a), b_rows = end_of(b) - begin_of(b);
        if (has_products(rows_.metric)) {
            inner_products({rows_.row(begin_of(a)), a_rows, rows_.row(begin_of(b)), b_rows,
                            rows_.dims, factor_, values},
                           scratch);
            return;
        }
        const size_t stride = tile_stride(rows_.dims);
        const auto pad = [&](size_t block, float* to) {
            std::fill_n(to, tile_rows * stride, 0.0f);
            for (size_t row = begin_of(block); row < end_of(block); ++row, to += stride)
                std::memcpy(to, rows_.row(row), rows_.dims * sizeof(float));
        };
        float* padded_b = scratch + tile_rows * stride;
        pad(a, scratch);
        pad(b, padded_b);
        // All pairs; padding rows are zeros.
        tile_values(
            {scratch, a_rows, padded_b, b_rows, stride, rows_.metric, false, values, tile_rows});
        for (size_t i = 0; i < a_rows; ++i)
            for (size_t j = 0; j < b_rows; ++j)
                values[i * b_rows + j] = factor_ * values[i * tile_rows + j];
    }

    void compare(size_t a, size_t b, float* room) {
        float* values = room;
        float* reach = room + tile_rows * tile_rows;
        multiply(a, b, values, reach + tile_rows);
        if (is_wanted(a)) {
            const std::lock_guard lock(locks_[a]);
            offer_columns_to_rows(a, b, values);
        }
        if (a == b || !is_wanted(b)) return;
        const std::lock_guard lock(locks_[b]);
        offer_rows_to_columns(a, b, values, reach);
    }

    void offer(size_t row, size_t other) {
        if (row == other) return;
        const float distance =
            graph_distance(rows_.metric, rows_.row(row), rows_.row(other), rows_.dims);
        // A distance that overflowed is the largest float: still a neighbor, not padding.
        const Edge edge{distance < infinitely_far ? distance : std::numeric_limits<float>::max(),
                        static_cast<uint32_t>(other)};
        Edge* list = list_of(row);
        if (!nearer(edge, list[degree_ - 1])) return;
        Edge* at = std::upper_bound(list, list + degree_ - 1, edge, nearer);
        std::move_backward(at, list + degree_ - 1, list + degree_);
        *at = edge;
    }

    float bound(size_t row) const { return list_of(row)[degree_ - 1].distance; }

    void offer_columns_to_rows(size_t a, size_t b, const float* values) {
        const size_t first = begin_of(b), columns = end_of(b) - first;
        for (size_t row = begin_of(a); row < end_of(a); ++row, values += columns)
            for (size_t j = 0;; ++j) {
                j = next_at_most(values, low_.data() + first, j, columns, bound(row) - low_[row]);
                if (j == columns) break;
                offer(row, first + j);
            }
    }

    // Also row by row, as `values` is stored; each column has its own bound.
    void offer_rows_to_columns(size_t a, size_t b, const float* values, float* reach) {
        const size_t first = begin_of(b), columns = end_of(b) - first;
        for (size_t j = 0; j < columns; ++j) reach[j] = low_[first + j] - bound(first + j);
        for (size_t row = begin_of(a); row < end_of(a); ++row, values += columns)
            for (size_t j = 0;; ++j) {
                j = next_at_most(values, reach, j, columns, -low_[row]);
                if (j == columns) break;
                offer(first + j, row);
                reach[j] = low_[first + j] - bound(first + j);
            }
    }

    Workers& workers_;
    const GraphRows& rows_;
    const RowSpan part_;
    const uint32_t degree_;
    Edge* lists_;                 // (part_.size())(degree_)
    std::vector<size_t> begins_;  // (blocks + 1): first rows
    size_t blocks_;
    size_t first_blocks_;  // those before the border
    float factor_ = 0;     // of the product, or of the L1 sum, in the distance
    float norm_part_ = 0;  // of a squared norm in the distance, lowered by the error
    std::vector<float> low_;
    std::unique_ptr<std::mutex[]> locks_;
    std::vector<std::vector<float>> scratch_;
};

}  // namespace

void exact_graph(Workers& workers, const GraphRows& rows, size_t border, const RowSpan& part,
                 uint32_t degree, Edge* lists, const GraphProgress& progress) {
    if (part.size() == 0) return;
    ExactGraph(workers, rows, border, part, degree, lists).run(progress);
}

size_t exact_graph_memory(size_t count, uint32_t dims, int threads) {
    const size_t blocks = count / tile_rows + 5;
    return count * sizeof(float) + blocks * (sizeof(size_t) + sizeof(std::mutex)) +
           static_cast<size_t>(threads) * ExactGraph::scratch_floats(dims) * sizeof(float);
}

}  // namespace pgwarp
