// Products and nearest others of short vectors against float64; and the nearest of long ones, which
// are found another way.

#include "kernels/cuda/products/assign.h"
#include "kernels/cuda/products/parent_tiles.h"
#include "kernels/cuda/products/tile_products.h"

#include "kernels/list_levels.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "test/kernels/cuda_fixture.h"

namespace pgwarp::gpu {
namespace {

struct TileCase {
    uint32_t dims;
    size_t rows, others;
    float scale = 1;
    float shift = 0;  // added to all numbers

    friend std::ostream& operator<<(std::ostream& out, const TileCase& c) {
        return out << c.dims << " dims, " << c.rows << " x " << c.others << ", scale " << c.scale
                   << ", shift " << c.shift;
    }
};

class CudaTileProducts : public CudaTest {
  protected:
    struct Vectors {
        std::vector<float> rows, others;
    };
    static Vectors make_vectors(const TileCase& c, std::mt19937& random) {
        Vectors v{normal_floats(random, c.rows * c.dims, c.scale),
                  normal_floats(random, c.others * c.dims, c.scale)};
        // Rows of different sizes.
        for (size_t r = 0; r < c.rows; r += 5)
            for (uint32_t d = 0; d < c.dims; ++d) v.rows[r * c.dims + d] *= 1e-3f;
        for (float& x : v.rows) x += c.shift;
        for (float& x : v.others) x += c.shift;
        // Others that are there twice, far apart too, and rows that are one of them.
        for (size_t o = 3; o < c.others; o += 37)
            std::copy_n(v.others.begin() + (o / 2) * c.dims, c.dims, v.others.begin() + o * c.dims);
        for (size_t r = 1; r < c.rows; r += 3)
            std::copy_n(v.others.begin() + (r * 31 % c.others) * c.dims, c.dims,
                        v.rows.begin() + r * c.dims);
        return v;
    }

    static double dot(const float* a, const float* b, uint32_t dims) {
        double sum = 0;
        for (uint32_t d = 0; d < dims; ++d) sum += static_cast<double>(a[d]) * b[d];
        return sum;
    }

    // Through CentroidMatrix, as builds do: from amidst the others.
    void check_nearest(const TileCase& c, std::mt19937& random) {
        const Context context(options());
        const Vectors v = make_vectors(c, random);
        Stream stream;
        const Blas blas(stream);
        const Buffer<float> rows = upload(context, v.rows), others = upload(context, v.others);
        Buffer<uint32_t> nearest(context.memory, c.rows);
        const CentroidMatrix matrix(context, stream, others.data(), static_cast<uint32_t>(c.others),
                                    c.dims, Origin::centroids, Wanted::nearest);
        ProductTile tile;
        matrix.find_nearest(blas, stream, {rows.data(), c.rows, c.dims, c.dims}, tile,
                            nearest.data());
        stream.synchronize();
        const std::vector<uint32_t> found = download(nearest);
        for (size_t r = 0; r < c.rows; ++r) {
            const float* row = v.rows.data() + r * c.dims;
            const auto distance = [&](size_t o) {
                double sum = 0;
                for (uint32_t d = 0; d < c.dims; ++d) {
                    const double off = static_cast<double>(row[d]) - v.others[o * c.dims + d];
                    sum += off * off;
                }
                return sum;
            };
            double least = std::numeric_limits<double>::infinity();
            size_t first = 0;
            for (size_t o = 0; o < c.others; ++o)
                if (const double d = distance(o); d < least) least = d, first = o;
            ASSERT_LT(found[r], c.others) << c << ", row " << r;
            // What is off is a share of the lengths from amidst the others, a few units of scale.
            const double length = c.scale * std::sqrt(static_cast<double>(c.dims)) + c.scale;
            const double tolerance = 1e-5 * length * length;
            ASSERT_LE(distance(found[r]), least + tolerance) << c << ", row " << r;
            // Of those that are the same, the first.
            for (size_t o = 0; o < found[r]; ++o)
                ASSERT_FALSE(
                    std::equal(v.others.begin() + static_cast<ptrdiff_t>(o * c.dims),
                               v.others.begin() + static_cast<ptrdiff_t>((o + 1) * c.dims),
                               v.others.begin() + static_cast<ptrdiff_t>(found[r] * c.dims)))
                    << c << ", row " << r << ": " << found[r] << " for " << o << ", best " << first;
        }
    }

    // Lists with parents: of those whose parents are nearest to the row's parent, the nearest.
    void check_lists_of_parents(const TileCase& c, uint32_t parents, std::mt19937& random) {
        const Context context(options());
        Vectors v = make_vectors(c, random);
        const auto squared = [&](const float* a, const float* b) {
            double sum = 0;
            for (uint32_t d = 0; d < c.dims; ++d) {
                const double off = static_cast<double>(a[d]) - b[d];
                sum += off * off;
            }
            return sum;
        };
        const auto row = [&](size_t r) { return v.rows.data() + r * c.dims; };
        const auto other = [&](size_t o) { return v.others.data() + o * c.dims; };
        // Some lists are parents, too. Each has at least itself.
        std::vector<float> centroids(v.others.begin(), v.others.begin() + parents * c.dims);
        const auto parent = [&](uint32_t p) { return centroids.data() + size_t{p} * c.dims; };
        const auto nearest_parent = [&](const float* x) {
            uint32_t best = 0;
            for (uint32_t p = 1; p < parents; ++p)
                if (squared(x, parent(p)) < squared(x, parent(best))) best = p;
            return best;
        };
        std::vector<std::vector<float>> lists(parents);
        for (size_t o = 0; o < c.others; ++o) {
            const uint32_t p = o < parents ? static_cast<uint32_t>(o) : nearest_parent(other(o));
            lists[p].insert(lists[p].end(), other(o), other(o) + c.dims);
        }
        std::vector<uint32_t> first(1, 0);
        v.others.clear();
        for (const std::vector<float>& own : lists) {
            v.others.insert(v.others.end(), own.begin(), own.end());
            first.push_back(static_cast<uint32_t>(v.others.size() / c.dims));
        }

        Stream stream;
        const Blas blas(stream);
        const Buffer<float> rows = upload(context, v.rows), others = upload(context, v.others);
        Quantizer quantizer{
            {c.dims, static_cast<uint32_t>(c.others), 1, Metric::l2}, nullptr, nullptr};
        quantizer.parents = {parents, centroids.data(), first.data()};
        ParentTiles tiles(context, blas, stream, others.data(), quantizer);
        ProductTile tile;
        // In parts of different sizes: memory is used again.
        for (const size_t count : {c.rows, c.rows / 3, c.rows}) {
            Buffer<uint32_t> nearest(context.memory, count);
            tiles.find_nearest(blas, stream, {rows.data(), count, c.dims, c.dims}, tile,
                               nearest.data());
            stream.synchronize();
            const std::vector<uint32_t> found = download(nearest);
            const double length = c.scale * std::sqrt(static_cast<double>(c.dims)) + c.scale;
            const double tolerance = 1e-5 * length * length;
            for (size_t r = 0; r < count; ++r) {
                ASSERT_LT(found[r], c.others) << c << ", row " << r;
                const uint32_t own = nearest_parent(row(r));
                std::vector<std::pair<double, uint32_t>> near;
                for (uint32_t p = 0; p < parents; ++p)
                    near.emplace_back(squared(parent(own), parent(p)), p);
                std::sort(near.begin(), near.end());
                near.resize(std::min<size_t>(near.size(), assigned_parents));
                double least = std::numeric_limits<double>::infinity();
                for (const auto& [distance, p] : near)
                    for (uint32_t o = first[p]; o < first[p + 1]; ++o)
                        least = std::min(least, squared(row(r), other(o)));
                // Parents as far as each other may be taken for each other.
                ASSERT_LE(squared(row(r), other(found[r])), least * 1.3 + tolerance)
                    << c << ", row " << r;
                exact_ += squared(row(r), other(found[r])) <= least + tolerance;
                ++seen_;
            }
        }
    }
    size_t exact_ = 0, seen_ = 0;

    void check_products(const TileCase& c, Scales scales, std::mt19937& random) {
        const Context context(options());
        const Vectors v = make_vectors(c, random);
        Stream stream;
        const Buffer<float> rows = upload(context, v.rows), others = upload(context, v.others);
        const size_t stride = padded_rows(c.others) + 8;
        std::vector<float> before((c.rows + 1) * stride, -12345.0f);
        Buffer<float> products = upload(context, before);
        PairMatrix row_pairs, pairs;
        row_pairs.grow(context.memory, c.rows, c.dims);
        row_pairs.split({rows.data(), c.rows, c.dims, c.dims}, Scales::own, stream);
        pairs.grow(context.memory, c.others + 3, c.dims);
        pairs.split({others.data(), c.others, c.dims, c.dims}, scales, stream);
        multiply_by_tiles(context, row_pairs.view(), pairs.view(), -2.0f, products.data(), stride,
                          stream);
        stream.synchronize();
        const std::vector<float> made = download(products);
        std::vector<float> norms(pair_rows(c.others));
        check(cudaMemcpy(norms.data(), pairs.view().norms, norms.size() * sizeof(float),
                         cudaMemcpyDeviceToHost),
              "cudaMemcpy");
        for (size_t r = 0; r < c.rows; ++r)
            for (size_t o = 0; o < c.others; ++o) {
                const float* row = v.rows.data() + r * c.dims;
                const float* other = v.others.data() + o * c.dims;
                const double lengths = std::sqrt(dot(row, row, c.dims) * dot(other, other, c.dims));
                ASSERT_NEAR(made[r * stride + o], -2 * dot(row, other, c.dims),
                            4e-6 * lengths + 1e-9 * c.scale * c.scale)
                    << c << ", " << r << " by " << o;
            }
        for (size_t o = 0; o < c.others; ++o) {
            const float* other = v.others.data() + o * c.dims;
            const double norm = dot(other, other, c.dims);
            ASSERT_NEAR(norms[o], norm, 1e-5 * norm) << c;
        }
        for (size_t o = c.others; o < pair_rows(c.others); ++o)
            ASSERT_EQ(norms[o], std::numeric_limits<float>::infinity()) << c;
        // Behind the last row nothing is written.
        for (size_t i = c.rows * stride; i < made.size(); ++i) ASSERT_EQ(made[i], -12345.0f) << c;
    }
};

TEST_F(CudaTileProducts, FindsListsByTheirParents) {
    std::mt19937 random(test_seed());
    for (const TileCase& c : {TileCase{24, 3000, 900}, TileCase{96, 1000, 2000, 10, 50},
                              TileCase{100, 7, 400}, TileCase{128, 700, 300}})
        for (const uint32_t parents : {1u, 5u, 60u}) check_lists_of_parents(c, parents, random);
    EXPECT_GE(exact_, seen_ * 99 / 100);
}

TEST_F(CudaTileProducts, ProductsAreRight) {
    std::mt19937 random(test_seed());
    const TileCase cases[] = {{1, 1, 1},
                              {2, 3, 5},
                              {15, 127, 129},
                              {16, 128, 128},
                              {17, 129, 127},
                              {63, 40, 300},
                              {64, 300, 40},
                              {96, 513, 1030},
                              {100, 200, 700, 1e4f},
                              {127, 70, 257, 1e-5f},
                              {128, 260, 511}};
    for (const TileCase& c : cases)
        for (const Scales scales : {Scales::common, Scales::own}) check_products(c, scales, random);
}

TEST_F(CudaTileProducts, NearestAreRight) {
    std::mt19937 random(test_seed());
    const TileCase cases[] = {{1, 5, 1},
                              {3, 1, 700},
                              {16, 1000, 128},
                              {33, 129, 257, 1, 100},
                              {96, 700, 5534},
                              {96, 3000, 1031, 1e-4f},
                              {100, 500, 1007, 1, 1000},
                              {128, 1500, 1750},
                              // Too long for tiles, with an odd number of others.
                              {129, 300, 1007},
                              {200, 300, 130, 1, 100},
                              {768, 100, 333}};
    for (const TileCase& c : cases) check_nearest(c, random);
}

// Numbers that no product can tell apart, or that there are no squares of: an other all the same.
TEST_F(CudaTileProducts, ExtremeNumbers) {
    const Context context(options());
    Stream stream;
    const Blas blas(stream);
    const uint32_t dims = 24, others = 300;
    const size_t rows = 140;
    for (const float size : {0.0f, 1e-44f, 1e-38f, 1e18f, 3e37f}) {
        std::mt19937 random(test_seed());
        const Buffer<float> row_buffer =
            upload(context, normal_floats(random, rows * dims, size > 0 ? size : 1e-30f));
        const Buffer<float> other_buffer =
            upload(context, std::vector<float>(size_t{others} * dims, size));
        Buffer<uint32_t> nearest(context.memory, rows);
        const CentroidMatrix matrix(context, stream, other_buffer.data(), others, dims,
                                    Origin::centroids, Wanted::nearest);
        ProductTile tile;
        matrix.find_nearest(blas, stream, {row_buffer.data(), rows, dims, dims}, tile,
                            nearest.data());
        stream.synchronize();
        for (const uint32_t found : download(nearest)) EXPECT_LT(found, others) << size;
    }
}

TEST_F(CudaTileProducts, EveryKernelOnce) {
    std::mt19937 random(test_seed());
    check_products({20, 130, 140}, Scales::own, random);
    check_nearest({20, 130, 270}, random);
    check_lists_of_parents({20, 300, 200}, 5, random);
}

}  // namespace
}  // namespace pgwarp::gpu
