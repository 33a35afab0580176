#include "kernels/kmeans.h"

#include "kernels/cpu/argmin.h"
#include "kernels/common/groups.h"
#include "kernels/cpu/products.h"
#include "kernels/distance.h"
#include "kernels/draw_rows.h"
#include "kernels/executor.h"
#include "kernels/list_levels.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

namespace pgwarp {

namespace {

// A task's tile of inner products, (rows)(centroids), stays in the L2 cache.
constexpr size_t tile_rows = 128;
constexpr uint32_t tile_centroids = 512;

float squared_norm_of(const float* row, uint32_t dims) {
    return dot_product(row, row, dims);
}

std::vector<float> squared_norms(const float* rows, size_t count, uint32_t dims) {
    std::vector<float> norms(count);
    for (size_t i = 0; i < count; ++i) norms[i] = squared_norm_of(rows + i * dims, dims);
    return norms;
}

// The coordinates that the matrix product uses. A squared distance is the difference of float32
// terms as large as the squared norms. So centroids and rows are shifted and scaled first where the
// centroids are far from the origin compared with their distances from each other, or where squares
// leave the range of a float32. Most data is used unchanged.
class Frame {
  public:
    explicit Frame(const Assignment& a)
        : dims_(a.dims),
          centroids_(a.centroids),
          norms_(squared_norms(a.centroids, a.clusters, a.dims)) {
        const float largest = *std::max_element(norms_.begin(), norms_.end());
        const bool in_range = largest > 0x1p-80f && largest < 0x1p80f;
        std::vector<float> mean = mean_of(a);
        const double mean_norm = squared_norm_of(mean.data(), dims_);
        const double spread =
            std::accumulate(norms_.begin(), norms_.end(), 0.0) / a.clusters - mean_norm;
        if (in_range && mean_norm < 64 * spread) return;

        origin_ = std::move(mean);
        double farthest = 0;
        for (uint32_t c = 0; c < a.clusters; ++c)
            for (uint32_t d = 0; d < dims_; ++d)
                farthest = std::max(
                    farthest, std::fabs(double{a.centroids[size_t{c} * dims_ + d]} - origin_[d]));
        // Powers of two cause no rounding.
        const int exponent = farthest > 0 ? std::clamp(-std::ilogb(farthest), -126, 126) : 0;
        smaller_ = std::ldexp(1.0f, std::min(exponent, 0));
        larger_ = std::ldexp(1.0f, std::max(exponent, 0));
        moved_.resize(size_t{a.clusters} * dims_);
        move(a.centroids, a.clusters, moved_.data());
        centroids_ = moved_.data();
        norms_ = squared_norms(centroids_, a.clusters, dims_);
    }

    const float* centroids() const { return centroids_; }
    const float* norms() const { return norms_.data(); }
    size_t floats_for(size_t rows) const { return origin_.empty() ? 0 : rows * dims_; }

    // The rows in the frame: the rows themselves, or a copy in `room`.
    const float* rows(const float* rows, size_t count, float* room) const {
        if (origin_.empty()) return rows;
        move(rows, count, room);
        return room;
    }
    // Converts a squared distance from the frame to the original coordinates.
    float outside(float squared_distance) const {
        const double scale = double{smaller_} * larger_;
        return static_cast<float>(squared_distance / (scale * scale));
    }

  private:
    static std::vector<float> mean_of(const Assignment& a) {
        std::vector<double> sums(a.dims);
        for (uint32_t c = 0; c < a.clusters; ++c)
            for (uint32_t d = 0; d < a.dims; ++d) sums[d] += a.centroids[size_t{c} * a.dims + d];
        std::vector<float> mean(a.dims);
        for (uint32_t d = 0; d < a.dims; ++d) mean[d] = static_cast<float>(sums[d] / a.clusters);
        return mean;
    }
    void move(const float* from, size_t count, float* to) const {
        for (size_t i = 0; i < count; ++i)
            for (uint32_t d = 0; d < dims_; ++d)
                to[i * dims_ + d] =
                    (from[i * dims_ + d] * smaller_ - origin_[d] * smaller_) * larger_;
    }

    uint32_t dims_;
    const float* centroids_;          // (clusters)(dims)
    std::vector<float> norms_;        // (clusters)
    std::vector<float> origin_;       // (dims); empty: rows are used unchanged
    float smaller_ = 1, larger_ = 1;  // factors before and after the subtraction, to avoid overflow
    std::vector<float> moved_;
};

// A row's squared distance to centroid c is |x|^2 + (|c|^2 - 2 <x, c>): compare the bracket only.
void assign_tile(const Assignment& a, const Frame& frame, size_t begin, size_t end,
                 float* scratch) {
    const int count = static_cast<int>(end - begin);
    float* products = scratch;
    float* panels = products + tile_rows * tile_centroids;
    const float* rows =
        frame.rows(a.rows + begin * a.dims, end - begin, panels + products_scratch(tile_rows));
    Nearest nearest[tile_rows];
    for (uint32_t first = 0; first < a.clusters; first += tile_centroids) {
        const int centroids = static_cast<int>(std::min(tile_centroids, a.clusters - first));
        inner_products({rows, end - begin, frame.centroids() + size_t{first} * a.dims,
                        static_cast<size_t>(centroids), a.dims, -2.0f, products},
                       panels);
        for (int i = 0; i < count; ++i) {
            Nearest here = argmin_sum(products + size_t(i) * centroids, frame.norms() + first,
                                      static_cast<uint32_t>(centroids));
            here.index += first;
            if (first == 0 || here.value < nearest[i].value) nearest[i] = here;
        }
    }
    for (int i = 0; i < count; ++i) {
        a.nearest[begin + i] = nearest[i].index;
        if (a.distances) {
            const float norm = squared_norm_of(rows + size_t(i) * a.dims, a.dims);
            const float distance = norm + nearest[i].value;
            // A NaN distance comes from an overflow and counts as infinitely far.
            a.distances[begin + i] = std::isnan(distance) ? std::numeric_limits<float>::infinity()
                                                          : frame.outside(std::max(0.0f, distance));
        }
    }
}

// The nearest parents of a row, nearest first.
struct NearParents {
    uint32_t count = 0;
    Nearest items[assigned_parents];

    void offer(uint32_t parent, float value, uint32_t most) {
        // A NaN comes from an overflow and counts as infinitely far.
        if (std::isnan(value)) value = std::numeric_limits<float>::infinity();
        if (count == most && !(value < items[count - 1].value)) return;
        uint32_t at = count < most ? count++ : count - 1;
        for (; at > 0 && value < items[at - 1].value; --at) items[at] = items[at - 1];
        items[at] = {parent, value};
    }
};

// Writes the `most` nearest parents of each row of a tile, (rows)(most).
void parents_of_tile(const Assignment& parents, const Frame& frame, uint32_t most, size_t begin,
                     size_t end, float* scratch, uint32_t* nearest) {
    float* products = scratch;
    float* panels = products + tile_rows * tile_centroids;
    const float* rows = frame.rows(parents.rows + begin * parents.dims, end - begin,
                                   panels + products_scratch(tile_rows));
    std::vector<NearParents> found(end - begin);
    for (uint32_t first = 0; first < parents.clusters; first += tile_centroids) {
        const uint32_t count = std::min(tile_centroids, parents.clusters - first);
        inner_products({rows, end - begin, frame.centroids() + size_t{first} * parents.dims, count,
                        parents.dims, -2.0f, products},
                       panels);
        for (size_t i = 0; i < end - begin; ++i)
            for (uint32_t c = 0; c < count; ++c)
                found[i].offer(first + c, products[i * count + c] + frame.norms()[first + c], most);
    }
    for (size_t i = 0; i < end - begin; ++i)
        for (uint32_t n = 0; n < most; ++n)
            nearest[(begin + i) * most + n] = found[i].items[n].index;
}

// The nearest list of one parent for each of the members, which are rows times `near`.
void assign_to_lists_of(const Assignment& a, const Parents& parents, uint32_t parent,
                        const uint32_t* members, size_t count, uint32_t near, float* scratch,
                        Nearest* found) {
    const uint32_t first = parents.first[parent];
    const uint32_t lists = parents.first[parent + 1] - first;
    float* gathered = scratch;
    uint32_t nearest[tile_rows];
    float distances[tile_rows];
    const Assignment part{gathered, tile_rows, a.dims,   a.centroids + size_t{first} * a.dims,
                          lists,    nearest,   distances};
    const Frame frame(part);
    for (size_t begin = 0; begin < count; begin += tile_rows) {
        const size_t here = std::min(tile_rows, count - begin);
        for (size_t i = 0; i < here; ++i)
            std::memcpy(gathered + i * a.dims, a.rows + size_t{members[begin + i] / near} * a.dims,
                        a.dims * sizeof(float));
        assign_tile(part, frame, 0, here, gathered + tile_rows * a.dims);
        for (size_t i = 0; i < here; ++i)
            found[members[begin + i]] = {first + nearest[i], distances[i]};
    }
}

// sums[d] += the rows' elements. Four rows at a time: each sum is loaded and stored once for four
// rows, and the loads of the next row overlap.
void add_rows(const float* rows, uint32_t dims, const uint32_t* members, size_t count,
              double* sums) {
    const auto row = [&](size_t i) { return rows + size_t{members[i]} * dims; };
    size_t i = 0;
    for (; i + 4 <= count; i += 4) {
        const float *r0 = row(i), *r1 = row(i + 1), *r2 = row(i + 2), *r3 = row(i + 3);
        for (uint32_t d = 0; d < dims; ++d)
            sums[d] += (double{r0[d]} + r1[d]) + (double{r2[d]} + r3[d]);
    }
    for (; i < count; ++i)
        for (uint32_t d = 0; d < dims; ++d) sums[d] += row(i)[d];
}

}  // namespace

void assign_nearest(Workers& workers, const Assignment& a) {
    const Frame frame(a);
    const size_t tiles = (a.count + tile_rows - 1) / tile_rows;
    auto scratch = workers.scratch(tile_rows * size_t{tile_centroids} +
                                   products_scratch(tile_rows) + frame.floats_for(tile_rows));
    workers.run(tiles, [&](size_t tile, int thread) {
        const size_t begin = tile * tile_rows;
        assign_tile(a, frame, begin, std::min(a.count, begin + tile_rows), scratch[thread].data());
    });
}

void assign_nearest(Workers& workers, const Assignment& a, const Parents& parents) {
    if (parents.count == 0) {
        assign_nearest(workers, a);
        return;
    }
    // Rows are compared in tiles with the lists of a parent, so those of a parent come together; a
    // row is in as many of these tiles as it has near parents. In blocks: members are 32 bits.
    constexpr size_t block_rows = 65536;
    const uint32_t near = std::min(assigned_parents, parents.count);
    const size_t tile_floats =
        tile_rows * size_t{tile_centroids} + products_scratch(tile_rows) + tile_rows * a.dims;
    auto scratch = workers.scratch(tile_floats + tile_rows * a.dims);
    for (size_t block = 0; block < a.count; block += block_rows) {
        Assignment here = a;
        here.rows = a.rows + block * a.dims;
        here.count = std::min(block_rows, a.count - block);
        Assignment of_parents = here;
        of_parents.centroids = parents.centroids;
        of_parents.clusters = parents.count;
        std::vector<uint32_t> nearest(here.count * near);
        const Frame frame(of_parents);
        workers.run((here.count + tile_rows - 1) / tile_rows, [&](size_t tile, int thread) {
            const size_t begin = tile * tile_rows;
            parents_of_tile(of_parents, frame, near, begin, std::min(here.count, begin + tile_rows),
                            scratch[thread].data(), nearest.data());
        });
        const Groups groups(nearest, parents.count);
        std::vector<Nearest> found(nearest.size());
        workers.run(parents.count, [&](size_t parent, int thread) {
            const auto p = static_cast<uint32_t>(parent);
            if (groups.size(p) > 0)
                assign_to_lists_of(here, parents, p, groups.members.data() + groups.begin[p],
                                   groups.size(p), near, scratch[thread].data(), found.data());
        });
        for (size_t i = 0; i < here.count; ++i) {
            const Nearest* begin = found.data() + i * near;
            const Nearest* best =
                std::min_element(begin, begin + near, [](const Nearest& x, const Nearest& y) {
                    return x.value < y.value || (x.value == y.value && x.index < y.index);
                });
            a.nearest[block + i] = best->index;
            if (a.distances) a.distances[block + i] = best->value;
        }
    }
}

void kmeans_start(const float* rows, size_t count, uint32_t dims, uint32_t clusters, uint64_t seed,
                  float* centroids) {
    const std::vector<uint32_t> drawn = draw_rows(count, clusters, seed);
    for (uint32_t c = 0; c < clusters; ++c)
        std::memcpy(centroids + size_t{c} * dims, rows + size_t{drawn[c % drawn.size()]} * dims,
                    dims * sizeof(float));
}

double kmeans_step(Workers& workers, const float* rows, size_t count, uint32_t dims,
                   uint32_t clusters, float* centroids) {
    std::vector<uint32_t> nearest(count);
    std::vector<float> distances(count);
    assign_nearest(workers,
                   {rows, count, dims, centroids, clusters, nearest.data(), distances.data()});

    const Groups groups(nearest, clusters);
    std::vector<float> moved(centroids, centroids + size_t{clusters} * dims);
    workers.run(clusters, [&](size_t c, int) {
        const size_t size = groups.size(static_cast<uint32_t>(c));
        if (size == 0) return;
        std::vector<double> sums(dims);
        add_rows(rows, dims, groups.members.data() + groups.begin[c], size, sums.data());
        for (uint32_t d = 0; d < dims; ++d)
            moved[c * dims + d] = static_cast<float>(sums[d] / static_cast<double>(size));
    });
    const auto row_of = [&](size_t member) { return rows + size_t{groups.members[member]} * dims; };
    fill_empty(groups, row_of, dims, moved.data());
    std::memcpy(centroids, moved.data(), moved.size() * sizeof(float));
    return std::accumulate(distances.begin(), distances.end(), 0.0) / static_cast<double>(count);
}

KmeansSums kmeans_sums(Workers& workers, const float* rows, size_t count, uint32_t dims,
                       uint32_t clusters, const float* centroids) {
    std::vector<uint32_t> nearest(count);
    std::vector<float> distances(count);
    assign_nearest(workers,
                   {rows, count, dims, centroids, clusters, nearest.data(), distances.data()});
    const Groups groups(nearest, clusters);
    KmeansSums result;
    result.sums.resize(size_t{clusters} * dims);
    result.sizes.resize(clusters);
    workers.run(clusters, [&](size_t c, int) {
        result.sizes[c] = groups.size(static_cast<uint32_t>(c));
        add_rows(rows, dims, groups.members.data() + groups.begin[c], result.sizes[c],
                 result.sums.data() + c * dims);
    });
    result.error = std::accumulate(distances.begin(), distances.end(), 0.0);
    return result;
}

KmeansPass::KmeansPass(uint32_t dims, uint32_t clusters, const float* centroids)
    : dims_(dims),
      clusters_(clusters),
      centroids_(centroids, centroids + size_t{clusters} * dims),
      sums_(size_t{clusters} * dims),
      kept_(size_t{clusters} * kept_rows * dims),
      sizes_(clusters) {}

size_t KmeansPass::bytes(uint32_t dims, uint32_t clusters) {
    return size_t{clusters} * (dims * (sizeof(double) + (1 + kept_rows) * sizeof(float)) + 64);
}

void KmeansPass::add(Workers& workers, const float* rows, size_t count) {
    std::vector<uint32_t> nearest(count);
    assign_nearest(workers,
                   {rows, count, dims_, centroids_.data(), clusters_, nearest.data(), nullptr});
    // Row by row, so that block boundaries do not matter, and without polling for interrupts, so
    // that an interrupt leaves no partial sums.
    for (size_t i = 0; i < count; ++i) {
        const float* row = rows + i * dims_;
        const size_t c = nearest[i];
        if (sizes_[c] < kept_rows)
            std::memcpy(kept_.data() + (c * kept_rows + sizes_[c]) * dims_, row,
                        dims_ * sizeof(float));
        ++sizes_[c];
        double* sums = sums_.data() + c * dims_;
        for (uint32_t d = 0; d < dims_; ++d) sums[d] += row[d];
    }
}

void KmeansPass::finish(float* centroids) const {
    std::vector<float> moved(centroids_);
    for (size_t c = 0; c < clusters_; ++c)
        for (uint32_t d = 0; d < dims_ && sizes_[c] > 0; ++d)
            moved[c * dims_ + d] =
                static_cast<float>(sums_[c * dims_ + d] / static_cast<double>(sizes_[c]));
    std::vector<size_t> used(clusters_);
    fill_empty(
        sizes_,
        [&](uint32_t c) {
            return used[c] < std::min(kept_rows, sizes_[c])
                       ? kept_.data() + (c * kept_rows + used[c]++) * dims_
                       : nullptr;
        },
        dims_, moved.data());
    std::memcpy(centroids, moved.data(), moved.size() * sizeof(float));
}

}  // namespace pgwarp
