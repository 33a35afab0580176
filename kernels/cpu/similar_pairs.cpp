// A tile of the distance matrix is a product of two blocks of the filter's vectors. It rejects
// pairs that are certainly too far; the few others get their distance from the two rows themselves.
// So a result does not depend on tiles, threads or the filter.

#include "kernels/similar_pairs.h"

#include "kernels/cpu/filter.h"
#include "kernels/cpu/graph_tile.h"
#include "kernels/cpu/pair_filter.h"
#include "kernels/cpu/products.h"

#include <algorithm>
#include <atomic>
#include <cstring>

namespace pgwarp {

namespace {

constexpr size_t tile_rows = 512;

class CpuPairFinder final : public PairFinder {
  public:
    CpuPairFinder(Workers& workers, const GraphRows& rows, const PairSearch& search)
        : workers_(workers),
          rows_(rows),
          bound_(search.bound),
          filter_(make_pair_filter(workers, rows, search)),
          scratch_(workers.scratch(scratch_floats())) {}

    size_t best_side() const noexcept override { return 16 * tile_rows; }

    bool find(const PairRectangle& rectangle, size_t most, std::vector<RowPair>* found) override {
        const std::vector<PairRectangle> tiles = cut(rectangle);
        std::vector<std::vector<RowPair>> of_tiles(tiles.size());
        std::atomic<size_t> total = 0;
        workers_.run(tiles.size(), [&](size_t tile, int thread) {
            if (total.load(std::memory_order_relaxed) > most) return;
            compare(tiles[tile], scratch_[static_cast<size_t>(thread)].data(), &of_tiles[tile]);
            total.fetch_add(of_tiles[tile].size(), std::memory_order_relaxed);
        });
        if (total > most) return false;
        found->clear();
        for (std::vector<RowPair>& pairs : of_tiles) {
            found->insert(found->end(), pairs.begin(), pairs.end());
            std::vector<RowPair>().swap(pairs);
        }
        return true;
    }

  private:
    size_t scratch_floats() const {
        return tile_rows * tile_rows + (has_products(rows_.metric)
                                            ? products_scratch(tile_rows)
                                            : 2 * tile_rows * tile_stride(rows_.dims));
    }

    static std::vector<PairRectangle> cut(const PairRectangle& rectangle) {
        std::vector<PairRectangle> tiles;
        const bool square = rectangle.is_square();
        const auto block = [](const RowSpan& span, size_t first) {
            return RowSpan{first, std::min(span.end, first + tile_rows)};
        };
        for (size_t a = rectangle.a.begin; a < rectangle.a.end; a += tile_rows)
            for (size_t b = square ? a : rectangle.b.begin; b < rectangle.b.end; b += tile_rows)
                tiles.push_back({block(rectangle.a, a), block(rectangle.b, b)});
        return tiles;
    }

    // Writes (rows of a)(rows of b) to `values`.
    void multiply(const PairRectangle& tile, float* values, float* scratch) const {
        if (has_products(rows_.metric)) {
            inner_products(
                {filter_.vector(tile.a.begin), tile.a.size(), filter_.vector(tile.b.begin),
                 tile.b.size(), filter_.dims, filter_.factor, values},
                scratch);
            return;
        }
        const size_t stride = tile_stride(rows_.dims);
        const auto pad = [&](const RowSpan& block, float* to) {
            std::fill_n(to, tile_rows * stride, 0.0f);
            for (size_t row = block.begin; row < block.end; ++row, to += stride)
                std::memcpy(to, rows_.row(row), rows_.dims * sizeof(float));
        };
        pad(tile.a, scratch);
        pad(tile.b, scratch + tile_rows * stride);
        tile_values({scratch, tile.a.size(), scratch + tile_rows * stride, tile.b.size(), stride,
                     rows_.metric, false, values, tile_rows});
        // In place, front to back: a row moves to where none behind it is.
        for (size_t i = 0; i < tile.a.size(); ++i)
            for (size_t j = 0; j < tile.b.size(); ++j)
                values[i * tile.b.size() + j] = filter_.factor * values[i * tile_rows + j];
    }

    void compare(const PairRectangle& tile, float* room, std::vector<RowPair>* found) const {
        float* values = room;
        multiply(tile, values, room + tile_rows * tile_rows);
        const size_t columns = tile.b.size();
        const float* low = filter_.low.data() + tile.b.begin;
        for (size_t row = tile.a.begin; row < tile.a.end; ++row, values += columns)
            for (size_t j = tile.is_square() ? row + 1 - tile.a.begin : 0; j < columns; ++j) {
                j = next_at_most(values, low, j, columns, bound_ - filter_.low[row]);
                if (j == columns) break;
                offer(row, tile.b.begin + j, found);
            }
    }

    void offer(size_t a, size_t b, std::vector<RowPair>* found) const {
        const float distance = graph_distance(rows_.metric, rows_.row(a), rows_.row(b), rows_.dims);
        if (!(distance <= bound_)) return;
        found->push_back({static_cast<uint32_t>(std::min(a, b)),
                          static_cast<uint32_t>(std::max(a, b)), distance});
    }

    Workers& workers_;
    const GraphRows rows_;
    const float bound_;
    const PairFilter filter_;
    std::vector<std::vector<float>> scratch_;
};

}  // namespace

std::unique_ptr<PairFinder> make_cpu_pair_finder(Workers& workers, const GraphRows& rows,
                                                 const PairSearch& search) {
    return std::make_unique<CpuPairFinder>(workers, rows, search);
}

}  // namespace pgwarp
