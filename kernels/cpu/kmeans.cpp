#include "kernels/kmeans.h"

#include "kernels/clusters.h"
#include "kernels/cpu/argmin.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

#include <cblas.h>

namespace pgwarp {

namespace {

// A task's tile of inner products, (rows)(centroids), stays in the second-level cache.
constexpr size_t tile_rows = 128;
constexpr uint32_t tile_centroids = 512;

std::vector<float> squared_norms(const float* rows, size_t count, uint32_t dims) {
    std::vector<float> norms(count);
    for (size_t i = 0; i < count; ++i)
        norms[i] = cblas_sdot(static_cast<int>(dims), rows + i * dims, 1, rows + i * dims, 1);
    return norms;
}

// A row's squared distance to centroid c is |x|^2 + (|c|^2 - 2 <x, c>): the bracket decides.
void assign_tile(const Assignment& a, const float* centroid_norms, size_t begin, size_t end,
                 float* products) {
    const int rows = static_cast<int>(end - begin);
    const int dims = static_cast<int>(a.dims);
    Nearest nearest[tile_rows];
    for (uint32_t first = 0; first < a.clusters; first += tile_centroids) {
        const int centroids = static_cast<int>(std::min(tile_centroids, a.clusters - first));
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, rows, centroids, dims, -2.0f,
                    a.rows + begin * a.dims, dims, a.centroids + size_t{first} * a.dims, dims, 0.0f,
                    products, centroids);
        for (int i = 0; i < rows; ++i) {
            Nearest here = argmin_sum(products + size_t(i) * centroids, centroid_norms + first,
                                      static_cast<uint32_t>(centroids));
            here.index += first;
            if (first == 0 || here.value < nearest[i].value) nearest[i] = here;
        }
    }
    for (int i = 0; i < rows; ++i) {
        a.nearest[begin + i] = nearest[i].index;
        if (a.distances) {
            const float* row = a.rows + (begin + i) * a.dims;
            const float norm = cblas_sdot(dims, row, 1, row, 1);
            a.distances[begin + i] = std::max(0.0f, norm + nearest[i].value);
        }
    }
}

// Row numbers grouped by cluster: group c is members[begin[c] .. begin[c + 1]).
struct Groups {
    std::vector<size_t> begin;
    std::vector<uint32_t> members;

    Groups(const std::vector<uint32_t>& nearest, uint32_t clusters)
        : begin(size_t{clusters} + 1), members(nearest.size()) {
        for (uint32_t c : nearest) ++begin[c + 1];
        std::partial_sum(begin.begin(), begin.end(), begin.begin());
        std::vector<size_t> at(begin.begin(), begin.end() - 1);
        for (size_t i = 0; i < nearest.size(); ++i)
            members[at[nearest[i]]++] = static_cast<uint32_t>(i);
    }
    size_t size(uint32_t c) const { return begin[c + 1] - begin[c]; }
};

}  // namespace

void assign_nearest(Workers& workers, const Assignment& a) {
    const std::vector<float> norms = squared_norms(a.centroids, a.clusters, a.dims);
    const size_t tiles = (a.count + tile_rows - 1) / tile_rows;
    auto products = workers.scratch(tile_rows * size_t{tile_centroids});
    workers.run(tiles, [&](size_t tile, int thread) {
        const size_t begin = tile * tile_rows;
        assign_tile(a, norms.data(), begin, std::min(a.count, begin + tile_rows),
                    products[thread].data());
    });
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
    std::vector<float> moved(size_t{clusters} * dims);
    workers.run(clusters, [&](size_t c, int) {
        float* to = moved.data() + c * dims;
        const size_t size = groups.size(static_cast<uint32_t>(c));
        if (size == 0) {
            std::memcpy(to, centroids + c * dims, dims * sizeof(float));
            return;
        }
        std::vector<double> sum(dims);
        for (size_t i = groups.begin[c]; i < groups.begin[c + 1]; ++i) {
            const float* row = rows + size_t{groups.members[i]} * dims;
            for (uint32_t d = 0; d < dims; ++d) sum[d] += row[d];
        }
        for (uint32_t d = 0; d < dims; ++d)
            to[d] = static_cast<float>(sum[d] / static_cast<double>(size));
    });
    std::vector<size_t> sizes(clusters);
    for (uint32_t c = 0; c < clusters; ++c) sizes[c] = groups.size(c);
    split_into_empty(sizes, [&](size_t from, size_t to) {
        for (uint32_t d = 0; d < dims; ++d)
            split_coordinate(d, moved[from * dims + d], moved[to * dims + d]);
    });
    std::memcpy(centroids, moved.data(), moved.size() * sizeof(float));
    return std::accumulate(distances.begin(), distances.end(), 0.0) / static_cast<double>(count);
}

}  // namespace pgwarp
