// Vectors for the benchmarks: a bvecs file, enlarged to the requested number of rows by a seeded
// generator. A new row lies between a row and one of its near neighbors, with noise of the size of
// the rounding step of coordinates. A new query lies between a query and one of its neighbors among
// the queries, nearer to the first. Without a file: synthetic clusters.

#include "bench/cuda/bench.h"
#include "kernels/cuda/products/exact_search.h"
#include "kernels/random.h"

#include <cmath>
#include <cstring>
#include <fstream>
#include <numeric>
#include <stdexcept>

namespace pgwarp::gpu {

namespace {

std::vector<float> read_bvecs(const std::string& name, uint32_t* dims) {
    std::ifstream file(name, std::ios::binary | std::ios::ate);
    if (!file) throw std::runtime_error("cannot open " + name);
    std::vector<char> bytes(static_cast<size_t>(file.tellg()));
    file.seekg(0);
    file.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    int32_t read_dims = 0;
    std::memcpy(&read_dims, bytes.data(), sizeof read_dims);
    *dims = static_cast<uint32_t>(read_dims);
    const size_t row_bytes = sizeof(int32_t) + *dims, rows = bytes.size() / row_bytes;
    std::vector<float> values(rows * *dims);
    for (size_t r = 0; r < rows; ++r)
        for (uint32_t d = 0; d < *dims; ++d)
            values[r * *dims + d] =
                static_cast<uint8_t>(bytes[r * row_bytes + sizeof(int32_t) + d]);
    return values;
}

// (count)(k): each row's nearest among the others.
std::vector<uint32_t> neighbors_of(const Context& context, const std::vector<float>& rows,
                                   uint32_t dims, uint32_t k) {
    const size_t count = rows.size() / dims;
    Stream stream;
    const Blas blas(stream);
    Buffer<float> device(context.memory, rows.size());
    Buffer<Neighbor> nearest(context.memory, count * (k + 1));
    copy_async(device.data(), rows.data(), rows.size(), stream);
    DeviceExactSearch search;
    search.queries = search.rows = device.data();
    search.query_count = search.row_count = count;
    search.dims = dims;
    search.k = k + 1;
    search.nearest = nearest.data();
    exact_search(context, blas, stream, search);
    std::vector<Neighbor> found(nearest.size());
    copy_async(found.data(), nearest.data(), found.size(), stream);
    stream.synchronize();
    std::vector<uint32_t> neighbors(count * k);
    for (size_t r = 0; r < count; ++r)
        for (uint32_t i = 0; i < k; ++i)
            neighbors[r * k + i] = static_cast<uint32_t>(found[r * (k + 1) + i + 1].id);
    return neighbors;
}

// Appends rows until there are `wanted`. `reach`: the largest fraction of the way to the neighbor.
void enlarge(const Context& context, std::vector<float>& rows, uint32_t dims, size_t wanted,
             double reach, uint64_t seed) {
    const size_t count = rows.size() / dims;
    if (wanted <= count) {
        rows.resize(wanted * dims);
        return;
    }
    constexpr uint32_t k = 8;
    const std::vector<uint32_t> neighbors = neighbors_of(context, rows, dims, k);
    Random random(seed);
    rows.resize(wanted * dims);
    for (size_t r = count; r < wanted; ++r) {
        const size_t from = r % count;
        const size_t to = neighbors[from * k + random.below(k)];
        const double share = reach * random.uniform();
        for (uint32_t d = 0; d < dims; ++d) {
            const double a = rows[from * dims + d], b = rows[to * dims + d];
            const double x = a + share * (b - a) + random.uniform() - 0.5;
            rows[r * dims + d] = static_cast<float>(std::clamp(std::round(x), 0.0, 255.0));
        }
    }
}

// Clusters of clusters, so that lists of an index reflect structure.
std::vector<float> made_up(size_t count, uint32_t dims, uint64_t seed, uint64_t row_seed) {
    const auto normal = [](Random& random) {
        double sum = -6;
        for (int i = 0; i < 12; ++i) sum += random.uniform();
        return sum;
    };
    Random shape(seed), random(row_seed);
    const size_t centres = 4096;
    std::vector<float> centre(centres * dims);
    for (float& x : centre) x = static_cast<float>(60 + 30 * normal(shape));
    std::vector<float> rows(count * dims);
    for (size_t r = 0; r < count; ++r) {
        const size_t c = random.below(centres);
        for (uint32_t d = 0; d < dims; ++d)
            rows[r * dims + d] = static_cast<float>(
                std::clamp(std::round(centre[c * dims + d] + 20 * normal(random)), 0.0, 255.0));
    }
    return rows;
}

}  // namespace

VectorSet load_vectors(const Context& context, const Settings& settings) {
    VectorSet set;
    char text[200];
    if (settings.base_file.empty()) {
        set.dims = 128;
        set.base = made_up(settings.rows, set.dims, 1, 2);
        set.queries = made_up(settings.queries, set.dims, 1, 3);
        set.real_queries = settings.queries;
        set.description = "made-up clusters";
        return set;
    }
    set.base = read_bvecs(settings.base_file, &set.dims);
    set.queries = read_bvecs(settings.query_file, &set.dims);
    const size_t real_rows = set.base_count();
    set.real_queries = std::min(set.query_count(), settings.queries);
    enlarge(context, set.base, set.dims, settings.rows, 1.0, 11);
    enlarge(context, set.queries, set.dims, settings.queries, 0.3, 12);
    std::snprintf(text, sizeof text,
                  "%zu rows and %zu queries of files, enlarged to %zu and %zu between neighbors",
                  real_rows, set.real_queries, set.base_count(), set.query_count());
    set.description = text;
    return set;
}

}  // namespace pgwarp::gpu
