// k-NN graphs: wall-clock seconds of each phase, and recall of some rows against exact search in
// float32. "Kernels" is the time between the upload of the rows and the download of the lists.

#include "bench/cuda/bench.h"
#include "kernels/cuda/products/exact_search.h"
#include "kernels/cuda/graph/builder.h"
#include "kernels/cuda/graph/match.h"
#include "kernels/cuda/graph/trees.h"
#include "kernels/draw_rows.h"
#include "kernels/random.h"
#include "kernels/workers.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

namespace pgwarp::gpu {

namespace {

constexpr uint32_t k = 10;
constexpr size_t checked_rows = 1000;

using Clock = std::chrono::steady_clock;

double since(Clock::time_point begin) {
    return std::chrono::duration<double>(Clock::now() - begin).count();
}

struct Phases {
    double upload = 0, trees = 0, descent = 0, distances = 0, exact = 0, download = 0;
    double kernels() const { return trees + descent + distances + exact; }
};

class Watch {
  public:
    explicit Watch(GraphBuilder& builder) : builder_(builder) {
        builder.progress = [this](GraphPhase phase, uint64_t done, uint64_t total) {
            step();
            next_ = phase == GraphPhase::start       ? &phases_.trees
                    : phase == GraphPhase::descent   ? &phases_.descent
                    : phase == GraphPhase::distances ? &phases_.distances
                                                     : &phases_.exact;
            const bool last = phase == GraphPhase::distances || phase == GraphPhase::exact;
            if (last && done == total) next_ = &phases_.download;
        };
    }
    ~Watch() { builder_.progress = nullptr; }
    Phases end() {
        step();
        return phases_;
    }

  private:
    void step() {
        const auto now = Clock::now();
        *next_ += std::chrono::duration<double>(now - last_).count();
        last_ = now;
    }
    GraphBuilder& builder_;
    Clock::time_point last_ = Clock::now();
    Phases phases_;
    double* next_ = &phases_.upload;
};

// The k-th distances of some rows.
struct Truth {
    std::vector<uint32_t> rows;
    std::vector<float> last;

    Truth(const Context& context, const GraphRows& all)
        : rows(draw_rows(all.count, checked_rows, 7)) {
        Stream stream;
        const Blas blas(stream);
        Buffer<float> base(context.memory, all.count * all.dims);
        Buffer<float> queries(context.memory, rows.size() * all.dims);
        Buffer<Neighbor> nearest(context.memory, rows.size() * (k + 1));
        const FinishStream finish(stream);
        copy_async(base.data(), all.rows, all.count * all.dims, stream);
        for (size_t q = 0; q < rows.size(); ++q)
            copy_async(queries + q * all.dims, all.row(rows[q]), all.dims, stream);
        DeviceExactSearch search;
        search.queries = queries.data();
        search.query_count = rows.size();
        search.rows = base.data();
        search.row_count = all.count;
        search.dims = all.dims;
        search.k = k + 1;
        search.nearest = nearest.data();
        exact_search(context, blas, stream, search);
        std::vector<Neighbor> found(nearest.size());
        copy_async(found.data(), static_cast<const Neighbor*>(nearest.data()), found.size(),
                   stream);
        stream.synchronize();
        for (size_t q = 0; q < rows.size(); ++q) {
            // The row itself is among the k + 1 found, or all are at distance zero: either way
            // list[k] has the distance of the k-th other row.
            const Neighbor* list = found.data() + q * (k + 1);
            last.push_back(list[k].distance);
        }
    }
    // The fraction of the first k neighbors that are as near as the k-th true one.
    double recall(const std::vector<Edge>& lists, uint32_t degree) const {
        size_t hits = 0;
        for (size_t q = 0; q < rows.size(); ++q)
            for (uint32_t i = 0; i < k; ++i)
                hits += lists[size_t{rows[q]} * degree + i].distance <= last[q] * 1.000001f;
        return static_cast<double>(hits) / static_cast<double>(rows.size() * k);
    }
};

void print(const char* what, const Phases& p, const DescentReport& report, double recall) {
    std::printf(
        "| %-46s | kernels %7.3f s | recall@10 %.4f | upload %.3f trees %.3f descent %.3f "
        "(%u) distances %.3f exact %.3f download %.3f | %.0f M pairs |\n",
        what, p.kernels(), recall, p.upload, p.trees, p.descent, report.iterations, p.distances,
        p.exact, p.download, static_cast<double>(report.compared) * 1e-6);
    std::fflush(stdout);
}

struct Variant {
    uint32_t degree, samples, trees, iterations;
};

DescentOptions options_of(const Variant& variant) {
    DescentOptions options = DescentOptions::for_neighbors(k);
    options.degree = variant.degree;
    options.samples = variant.samples;
    options.trees = variant.trees;
    options.iterations = variant.iterations;
    options.seed = 1;
    return options;
}

std::string name_of(const char* work, const Variant& v) {
    char text[96];
    std::snprintf(text, sizeof text, "%s, degree %u, p %u, %u trees, <= %u", work, v.degree,
                  v.samples, v.trees, v.iterations);
    return text;
}

void bench_descent(GraphBuilder& builder, const GraphRows& rows, const Truth& truth,
                   const Variant& variant) {
    const DescentOptions options = options_of(variant);
    std::vector<Edge> lists(rows.count * options.degree);
    Watch watch(builder);
    const DescentReport report = builder.descend(rows, options, lists.data());
    const Phases phases = watch.end();
    print(name_of("descent", variant).c_str(), phases, report, truth.recall(lists, options.degree));
}

void bench_merge(GraphBuilder& builder, const GraphRows& rows, const Truth& truth,
                 const Variant& variant) {
    const DescentOptions options = options_of(variant);
    std::vector<Edge> lists(rows.count * options.degree);
    const size_t first = rows.count / 2;
    builder.descend({rows.rows, first, rows.dims, rows.metric}, options, lists.data());
    Edge* second = lists.data() + first * options.degree;
    builder.descend({rows.row(first), rows.count - first, rows.dims, rows.metric}, options, second);
    for (Edge* edge = second; edge != lists.data() + lists.size(); ++edge)
        if (edge->row != no_row) edge->row += static_cast<uint32_t>(first);
    Watch watch(builder);
    const DescentReport report = builder.merge(rows, first, options, lists.data());
    const Phases phases = watch.end();
    print(name_of("merge of two halves", variant).c_str(), phases, report,
          truth.recall(lists, options.degree));
}

void bench_append(GraphBuilder& builder, const GraphRows& rows, const Truth& truth,
                  const Variant& variant, size_t added) {
    const DescentOptions options = options_of(variant);
    std::vector<Edge> lists(rows.count * options.degree,
                            {std::numeric_limits<float>::infinity(), no_row});
    const size_t first = rows.count - added;
    builder.descend({rows.rows, first, rows.dims, rows.metric}, options, lists.data());
    Watch watch(builder);
    const DescentReport report = builder.append(rows, first, options, lists.data());
    const Phases phases = watch.end();
    const std::string work = "append of " + std::to_string(added);
    print(name_of(work.c_str(), variant).c_str(), phases, report,
          truth.recall(lists, options.degree));
}

// Times every step of a descent by itself, with a synchronization after each.
void bench_steps(const Context& context, const GraphRows& rows, const Variant& variant) {
    const DescentOptions options = options_of(variant);
    Stream stream;
    Uploader uploader;
    const DeviceGraphRows device(context, uploader, stream, rows);
    GraphLists lists(context, uploader, stream, rows.count, options.degree, nullptr, 0);
    GraphTrees trees(context, device.view(), std::max<size_t>(128, 2 * options.degree));
    GraphSamples samples(context, rows.count, options.samples);
    Buffer<unsigned long long> compared(context.memory, 1);
    const FinishStream finish(stream);
    clear_async(compared.data(), 1, stream);
    stream.synchronize();
    const auto timed = [&](auto&& step) {
        const auto begin = Clock::now();
        step();
        stream.synchronize();
        return since(begin) * 1e3;
    };
    const auto matching = [&](uint32_t salt) {
        return Matching{device.view(), lists.view(salt), KnownPairs::nothing, 0, compared.data()};
    };
    uint32_t round = 1;
    for (uint32_t tree = 0; tree < 3; ++tree, ++round) {
        const double grow = timed([&] { trees.grow(tree, true, stream); });
        const double match = timed([&] {
            match_leaves(matching(round), trees.order(), trees.levels(), 0, trees.leaves(), stream);
        });
        uint64_t updates = 0;
        const double merge = timed([&] { updates = lists.merge_proposals(stream); });
        std::printf("| tree %u: grow %.1f ms, match %.1f ms, merge %.1f ms, %.1f M edges new |\n",
                    tree, grow, match, merge, static_cast<double>(updates) * 1e-6);
    }
    for (uint32_t iteration = 0; iteration < 6; ++iteration, ++round) {
        const double draw =
            timed([&] { samples.draw(lists.keys(), options.degree, 0, round, stream); });
        const double match = timed([&] {
            match_samples(matching(round), samples.view(), trees.order(), 0,
                          static_cast<uint32_t>(rows.count), stream);
        });
        uint64_t updates = 0;
        const double merge = timed([&] { updates = lists.merge_proposals(stream); });
        std::printf(
            "| iteration %u: draw %.1f ms, match %.1f ms, merge %.1f ms, %.1f M edges new |\n",
            iteration, draw, match, merge, static_cast<double>(updates) * 1e-6);
    }
    std::fflush(stdout);
}

// Clusters of different shapes, each on a manifold of few dimensions, with some noise.
std::vector<float> clumps(size_t count, uint32_t dims) {
    constexpr size_t clump_count = 2000, inner = 12, task_rows = 65536;
    const auto normal = [](Random& random) {
        const double u = 1 - random.uniform(), v = random.uniform();
        return static_cast<float>(std::sqrt(-2 * std::log(u)) * std::cos(6.283185307179586 * v));
    };
    std::vector<float> shapes(clump_count * (inner + 1) * dims);
    Random shape(1);
    for (size_t i = 0; i < shapes.size(); ++i)
        shapes[i] = normal(shape) * (i / dims % (inner + 1) == 0 ? 3.0f : 1.0f);
    std::vector<float> rows(count * dims);
    Workers workers(16);
    workers.run((count + task_rows - 1) / task_rows, [&](size_t task, int) {
        Random random(1000 + task);
        for (size_t row = task * task_rows; row < std::min(count, (task + 1) * task_rows); ++row) {
            const float* clump = shapes.data() + random.below(clump_count) * (inner + 1) * dims;
            float* to = rows.data() + row * dims;
            for (uint32_t d = 0; d < dims; ++d)
                to[d] = clump[d] + 0.2f * static_cast<float>(random.uniform() - 0.5);
            for (size_t i = 1; i <= inner; ++i) {
                const float place = normal(random);
                for (uint32_t d = 0; d < dims; ++d) to[d] += place * clump[i * dims + d];
            }
        }
    });
    return rows;
}

}  // namespace

void bench_graphs(const Context& context, const VectorSet& vectors) {
    const GraphRows rows{vectors.base.data(), vectors.base_count(), vectors.dims, Metric::l2};
    const auto builder = make_graph_builder(context);
    const Truth truth(context, rows);
    // The first calls load the kernels.
    {
        const GraphRows few{rows.rows, std::min<size_t>(rows.count, 20000), rows.dims, rows.metric};
        std::vector<Edge> lists(few.count * 48);
        builder->exact(few, k, lists.data());
        builder->descend(few, DescentOptions::for_neighbors(k), lists.data());
    }
    for (int repeat = 0; repeat < 2; ++repeat) {
        std::vector<Edge> lists(rows.count * k);
        Watch watch(*builder);
        builder->exact(rows, k, lists.data());
        const Phases phases = watch.end();
        print("exact (bar 3.0 s, 0.9999)", phases, {}, truth.recall(lists, k));
    }
    constexpr Variant variants[] = {{28, 14, 4, 12}, {28, 24, 8, 12}, {64, 32, 8, 12}};
    for (const Variant& variant : variants) bench_descent(*builder, rows, truth, variant);
    // A merge uses 3/8 of the trees, and 2/3 of the samples.
    constexpr Variant merges[] = {variants[1],     {28, 24, 8, 12}, {28, 24, 10, 12},
                                  {28, 24, 4, 12}, {28, 18, 8, 12}, {28, 24, 8, 2}};
    for (const Variant& variant : merges) bench_merge(*builder, rows, truth, variant);
    for (size_t added : {10000u, 100000u}) bench_append(*builder, rows, truth, variants[1], added);
    bench_steps(context, rows, {48, 24, 3, 6});
}

void bench_large_graph(const Context& context) {
    constexpr uint32_t dims = 96;
    const auto begin = Clock::now();
    const std::vector<float> values = clumps(10000000, dims);
    const GraphRows rows{values.data(), values.size() / dims, dims, Metric::l2};
    const Truth truth(context, rows);
    std::printf("| 10 million x 96 in clumps, made in %.1f s |\n", since(begin));
    const auto builder = make_graph_builder(context);
    for (const Variant& variant : {Variant{28, 14, 4, 12}, Variant{28, 24, 8, 12}})
        bench_descent(*builder, rows, truth, variant);
}

}  // namespace pgwarp::gpu
