// Measures the CPU kernels, each beside the limit it should be compared with.
//
//     cmake --build build/kernels --target kernels_bench
//     build/kernels/kernels_bench --benchmark_filter=scan_codes
//
// All run on one thread: rates are per core. Kernels based on a matrix product count a multiply-add
// as two operations, and are listed beside a plain product of the same shape.

#include "kernels/candidates.h"
#include "kernels/distance.h"
#include "kernels/executor.h"
#include "kernels/kmeans.h"
#include "kernels/list_scan.h"
#include "kernels/nibble_scan.h"
#include "kernels/product_quantizer.h"
#include "kernels/random.h"
#include "kernels/workers.h"

#include <cstring>
#include <limits>
#include <vector>

#include <benchmark/benchmark.h>
#include <cblas.h>

namespace pgwarp {
namespace {

using benchmark::Counter;
using benchmark::State;

// A rate per second, printed with a k, M or G.
void set_rate(State& state, const char* name, double per_iteration) {
    state.counters[name] = Counter(per_iteration, Counter::kIsIterationInvariantRate);
}

size_t argument(const State& state, size_t i) {
    return static_cast<size_t>(state.range(i));
}

std::vector<float> random_floats(size_t count) {
    Random random(count);
    std::vector<float> values(count);
    for (float& value : values) value = static_cast<float>(2 * random.uniform() - 1);
    return values;
}

std::vector<uint8_t> random_bytes(size_t count) {
    Random random(count);
    std::vector<uint8_t> values(count);
    for (uint8_t& value : values) value = static_cast<uint8_t>(random.below(256));
    return values;
}

// The plain matrix product (rows)(dims) x (dims)(columns): what the hardware and OpenBLAS give.
void sgemm(State& state) {
    const size_t rows = argument(state, 0), columns = argument(state, 1), dims = argument(state, 2);
    const auto a = random_floats(rows * dims), b = random_floats(columns * dims);
    std::vector<float> product(rows * columns);
    for (auto _ : state) {
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, static_cast<int>(rows),
                    static_cast<int>(columns), static_cast<int>(dims), 1.0f, a.data(),
                    static_cast<int>(dims), b.data(), static_cast<int>(dims), 0.0f, product.data(),
                    static_cast<int>(columns));
        benchmark::DoNotOptimize(product.data());
    }
    set_rate(state, "flops", 2.0 * static_cast<double>(rows * columns * dims));
}

// --- distances: beside copying, which reads the same memory

constexpr size_t distance_rows = 1024;

void copy_rows(State& state) {
    const size_t floats = distance_rows * argument(state, 0);
    const auto from = random_floats(floats);
    std::vector<float> to(floats);
    for (auto _ : state) {
        std::memcpy(to.data(), from.data(), floats * sizeof(float));
        benchmark::DoNotOptimize(to.data());
        benchmark::ClobberMemory();
    }
    set_rate(state, "elements", static_cast<double>(floats));
}

void one_by_one(State& state, float (*distance)(const float*, const float*, size_t)) {
    const size_t dims = argument(state, 0);
    const auto rows = random_floats(distance_rows * dims), query = random_floats(dims);
    for (auto _ : state)
        for (size_t i = 0; i < distance_rows; ++i)
            benchmark::DoNotOptimize(distance(query.data(), rows.data() + i * dims, dims));
    set_rate(state, "elements", static_cast<double>(distance_rows * dims));
}

void many_at_once(State& state, void (*distances)(const float*, Rows, size_t, float*)) {
    const size_t dims = argument(state, 0);
    const auto rows = random_floats(distance_rows * dims), query = random_floats(dims);
    std::vector<float> out(distance_rows);
    for (auto _ : state) {
        distances(query.data(), {rows.data(), dims, distance_rows}, dims, out.data());
        benchmark::DoNotOptimize(out.data());
        benchmark::ClobberMemory();
    }
    set_rate(state, "elements", static_cast<double>(distance_rows * dims));
}

void dimensions(benchmark::internal::Benchmark* bench) {
    bench->ArgName("dims")->Arg(25)->Arg(100)->Arg(784)->Arg(1536);
}
BENCHMARK(copy_rows)->Apply(dimensions);
BENCHMARK_CAPTURE(one_by_one, squared_l2_distance, squared_l2_distance)->Apply(dimensions);
BENCHMARK_CAPTURE(one_by_one, dot_product, dot_product)->Apply(dimensions);
BENCHMARK_CAPTURE(one_by_one, l1_distance, l1_distance)->Apply(dimensions);
BENCHMARK_CAPTURE(many_at_once, squared_l2_distances, squared_l2_distances)->Apply(dimensions);
BENCHMARK_CAPTURE(many_at_once, dot_products, dot_products)->Apply(dimensions);

// --- k-means: beside the product of rows and centroids

void assign(State& state) {
    const size_t count = argument(state, 0), clusters = argument(state, 1);
    const size_t dims = argument(state, 2);
    const auto rows = random_floats(count * dims), centroids = random_floats(clusters * dims);
    std::vector<uint32_t> nearest(count);
    Workers workers(1);
    for (auto _ : state)
        assign_nearest(workers, {rows.data(), count, static_cast<uint32_t>(dims), centroids.data(),
                                 static_cast<uint32_t>(clusters), nearest.data(), nullptr});
    set_rate(state, "flops", 2.0 * static_cast<double>(count * clusters * dims));
}

void kmeans(State& state) {
    const size_t count = argument(state, 0), clusters = argument(state, 1);
    const size_t dims = argument(state, 2);
    const auto rows = random_floats(count * dims), start = random_floats(clusters * dims);
    Workers workers(1);
    for (auto _ : state) {
        state.PauseTiming();
        auto centroids = start;
        state.ResumeTiming();
        kmeans_step(workers, rows.data(), count, static_cast<uint32_t>(dims),
                    static_cast<uint32_t>(clusters), centroids.data());
    }
    set_rate(state, "flops", 2.0 * static_cast<double>(count * clusters * dims));
}

void cluster_shapes(benchmark::internal::Benchmark* bench) {
    bench->ArgNames({"rows", "clusters", "dims"})
        ->Args({16384, 256, 100})
        ->Args({16384, 1024, 100})
        ->Args({8192, 256, 784})
        ->Args({8192, 1000, 784})
        ->Unit(benchmark::kMillisecond);
}
BENCHMARK(sgemm)->Apply(cluster_shapes);
BENCHMARK(assign)->Apply(cluster_shapes);
BENCHMARK(kmeans)->Apply(cluster_shapes)->Args({331479, 1024, 100});

// --- the product quantizer: beside the same product

struct Model {
    QuantizerShape shape;
    std::vector<float> centroids;
    std::vector<float> codebook;

    Model(size_t dims, size_t lists, size_t m)
        : shape{static_cast<uint32_t>(dims), static_cast<uint32_t>(lists), static_cast<uint32_t>(m),
                Metric::l2},
          centroids(random_floats(lists * dims)),
          codebook(random_floats(dims * codewords)) {}
    Quantizer quantizer() const { return {shape, centroids.data(), codebook.data()}; }
};

void train_codebook(State& state) {
    const size_t count = argument(state, 0), dims = argument(state, 1);
    const Model model(dims, 1, argument(state, 2));
    const auto residuals = random_floats(count * dims);
    Workers workers(1);
    for (auto _ : state) {
        state.PauseTiming();
        auto codebook = model.codebook;
        state.ResumeTiming();
        codebook_step(workers, model.shape, residuals.data(), count, codebook.data());
    }
    set_rate(state, "flops", 2.0 * static_cast<double>(count * dims * codewords));
}

// Encodes rows whose list is known; `assign` measures the choice of the list.
void encode_rows(State& state) {
    const size_t count = argument(state, 0), dims = argument(state, 1);
    const Model model(dims, 1, argument(state, 2));
    const auto rows = random_floats(count * dims);
    std::vector<uint32_t> lists(count);
    std::vector<uint8_t> codes(count * model.shape.m);
    std::vector<float> offsets(count);
    Workers workers(1);
    for (auto _ : state)
        encode_assigned(workers, model.quantizer(),
                        {rows.data(), count, lists.data(), codes.data(), offsets.data()});
    set_rate(state, "flops", 2.0 * static_cast<double>(count * dims * codewords));
}

void encode_one_row(State& state) {
    const size_t dims = argument(state, 0);
    const Model model(dims, 1, argument(state, 1));
    const auto row = random_floats(dims);
    for (auto _ : state)
        for (uint32_t j = 0; j < model.shape.m; ++j) {
            PieceEncoder encoder;
            for (uint32_t d = model.shape.piece_begin(j); d < model.shape.piece_begin(j + 1); ++d)
                encoder.add(row[d], model.centroids[d],
                            model.codebook.data() + size_t{d} * codewords);
            benchmark::DoNotOptimize(encoder.finish());
        }
    set_rate(state, "rows", 1);
}

void piece_shapes(benchmark::internal::Benchmark* bench) {
    bench->ArgNames({"rows", "dims", "m"})
        ->Args({4096, 100, 25})
        ->Args({4096, 100, 50})
        ->Args({4096, 784, 98})
        ->Args({4096, 784, 196})
        ->Args({4096, 1536, 16})
        ->Unit(benchmark::kMillisecond);
}
BENCHMARK(sgemm)
    ->ArgNames({"rows", "codewords", "piece"})
    ->Args({4096, 256, 2})
    ->Args({4096, 256, 4})
    ->Args({4096, 256, 8})
    ->Args({4096, 256, 96})
    ->Unit(benchmark::kMillisecond);
BENCHMARK(train_codebook)->Apply(piece_shapes);
BENCHMARK(encode_rows)->Apply(piece_shapes);
BENCHMARK(encode_one_row)->ArgNames({"dims", "m"})->Args({100, 25})->Args({784, 98});

// --- the list scan

void table_of_query(State& state) {
    const Model model(argument(state, 0), 1, argument(state, 1));
    const auto query = random_floats(model.shape.dims);
    std::vector<float> table(size_t{model.shape.m} * codewords);
    for (auto _ : state) {
        build_table(model.quantizer(), query.data(), table.data());
        benchmark::DoNotOptimize(table.data());
        benchmark::ClobberMemory();
    }
    set_rate(state, "tables", 1);
    set_rate(state, "flops", 2.0 * model.shape.dims * codewords);
}
BENCHMARK(table_of_query)->ArgNames({"dims", "m"})->Args({100, 25})->Args({784, 98});

// Pages of 8 kB as in an index, two megabytes in all: codes come from beyond the L2 cache, as in a
// search, and the lookup table stays in cache.
void scan_pages(State& state) {
    constexpr size_t page_bytes = 8192, page_room = 8152, pages = 256;
    const auto m = static_cast<uint32_t>(state.range(0));
    const auto capacity = static_cast<uint32_t>(page_room / (m + 10) / 8 * 8);
    const auto codes = random_bytes(pages * page_bytes);
    const auto table = random_floats(size_t{m} * codewords), offsets = random_floats(capacity);
    std::vector<float> distances(capacity);
    for (auto _ : state)
        for (size_t page = 0; page < pages; ++page) {
            scan_codes(table.data(), m,
                       {codes.data() + page * page_bytes, capacity, capacity, offsets.data()}, 1.0f,
                       distances.data());
            benchmark::DoNotOptimize(distances.data());
            benchmark::ClobberMemory();
        }
    const double entries = static_cast<double>(pages * capacity);
    set_rate(state, "entries", entries);
    set_rate(state, "lookups", entries * m);
}
BENCHMARK(scan_pages)
    ->ArgName("m")
    ->Arg(16)
    ->Arg(25)
    ->Arg(32)
    ->Arg(50)
    ->Arg(98)
    ->Arg(196)
    ->Unit(benchmark::kMicrosecond);

// The same pages with 4-bit codes: as many bytes, twice as many lookups, and a bound that few
// entries pass.
void scan_nibble_pages(State& state) {
    constexpr size_t page_bytes = 8192, page_room = 8152;
    const size_t pages = argument(state, 1);
    const auto m = static_cast<uint32_t>(argument(state, 0));
    const auto capacity = static_cast<uint32_t>(page_room / (m + 10) / 8 * 8);
    const auto codes = random_bytes(pages * page_bytes);
    const auto exact = random_floats(size_t{m} * 2 * nibble_words);
    const std::vector<float> offsets(capacity);
    std::vector<uint8_t> low(exact.size());
    const NibbleTable table = make_nibble_table(exact.data(), m, low.data());
    std::vector<NibbleHit> hits(capacity);
    for (auto _ : state)
        for (size_t page = 0; page < pages; ++page)
            benchmark::DoNotOptimize(scan_nibbles(
                table, {codes.data() + page * page_bytes, capacity, capacity, offsets.data()}, 0,
                table.base + 0.4 * m, hits.data()));
    const double entries = static_cast<double>(pages * capacity);
    set_rate(state, "entries", entries);
    set_rate(state, "bytes", entries * m);
}
BENCHMARK(scan_nibble_pages)
    ->ArgNames({"m", "pages"})
    ->ArgsProduct({{25, 50, 98}, {4, 64, 3000}})
    ->Unit(benchmark::kMicrosecond);

// A scan's stream of distances; after a while most are beyond the bound.
void select(State& state) {
    constexpr size_t stream = 1 << 16;
    const size_t wanted = argument(state, 0);
    const auto distances = random_floats(stream);
    std::vector<Candidate> room(CandidateSelection::room_for(wanted));
    for (auto _ : state) {
        CandidateSelection selection(room.data(), wanted, no_floor);
        for (size_t i = 0; i < stream; ++i)
            if (!(distances[i] > selection.bound())) selection.offer(distances[i], i);
        benchmark::DoNotOptimize(selection.finish());
    }
    set_rate(state, "candidates", stream);
}
BENCHMARK(select)->ArgName("wanted")->Arg(10)->Arg(100)->Arg(1000)->Arg(10000);

// --- exact search: beside the product of queries and rows

void search(State& state) {
    const size_t queries = argument(state, 0), count = argument(state, 1);
    const size_t dims = argument(state, 2);
    const auto rows = random_floats(count * dims), query_rows = random_floats(queries * dims);
    std::vector<uint64_t> ids(count);
    for (size_t i = 0; i < count; ++i) ids[i] = i;
    constexpr uint32_t k = 10;
    const Neighbor none{std::numeric_limits<float>::infinity(), 0};
    std::vector<Neighbor> nearest(queries * k);
    const auto executor = make_cpu_executor(1, {});
    for (auto _ : state) {
        std::fill(nearest.begin(), nearest.end(), none);
        executor->exact_search({query_rows.data(), queries, rows.data(), count, ids.data(),
                                static_cast<uint32_t>(dims), Metric::l2, k, nearest.data()});
    }
    set_rate(state, "flops", 2.0 * static_cast<double>(queries * count * dims));
}

void search_shapes(benchmark::internal::Benchmark* bench) {
    bench->ArgNames({"queries", "rows", "dims"})
        ->Args({64, 8192, 100})
        ->Args({1000, 8192, 100})
        ->Args({256, 1024, 784})
        ->Args({1000, 8192, 784})
        ->Unit(benchmark::kMillisecond);
}
BENCHMARK(sgemm)->Apply(search_shapes);
BENCHMARK(search)->Apply(search_shapes);

}  // namespace
}  // namespace pgwarp

BENCHMARK_MAIN();
