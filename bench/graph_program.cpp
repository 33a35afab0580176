// pgwarp_graph_bench: measures build time and recall of k-NN graphs, without PostgreSQL.
//
//     cmake --build build/kernels --target pgwarp_graph_bench
//     build/kernels/bench/pgwarp_graph_bench --data fashion-mnist --k 10 --threads 2 exact descent
//
// Tasks: exact, descent, merge (of two halves that are built first), append (of the last --added
// rows), pairs (within --distance, as lists have it: squared for L2). An option applies to the
// tasks after it. --merge-samples and --merge-trees apply to the merge, not to its halves. Recall
// is measured on --checked rows against exact search; a neighbor as near as the k-th true one
// counts. Seconds are wall-clock time; those in brackets are CPU time, which is steadier on a busy
// machine.
//
// --library build/kernels/pgwarp_cuda.so: runs on a device. (cuda_bench --only graphs needs no data
// sets, and times each phase.)

#include "bench/clock.h"
#include "bench/dataset.h"
#include "kernels/device.h"
#include "kernels/distance.h"
#include "kernels/draw_rows.h"
#include "kernels/executor.h"
#include "kernels/knn_graph.h"
#include "kernels/similar_pairs.h"

#include <dlfcn.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace pgwarp::bench {
namespace {

struct Setting {
    std::string data = "fashion-mnist", directory = "build/data", metric;  // "": the data's own
    size_t rows = 0, checked = 1000, added = 0;
    uint32_t k = 10;
    int threads = 2;
    std::string library;  // device library; empty: the CPU
    uint32_t degree = 0, samples = 0, iterations = 0;
    int trees = -1;
    uint32_t merge_samples = 0;
    int merge_trees = -1;
    uint64_t seed = 1;
    float distance = 0;

    DescentOptions options() const {
        DescentOptions options = DescentOptions::for_neighbors(k);
        if (samples) options.samples = samples;
        options.degree = degree ? degree : std::max(options.degree, 2 * options.samples);
        if (iterations) options.iterations = iterations;
        if (trees >= 0) options.trees = static_cast<uint32_t>(trees);
        options.seed = seed;
        return options;
    }
    // A merge may use fewer samples and trees than the graphs of its parts.
    DescentOptions merge_options() const {
        DescentOptions of_merge = options();
        if (merge_samples) of_merge.samples = merge_samples;
        if (merge_trees >= 0) of_merge.trees = static_cast<uint32_t>(merge_trees);
        return of_merge;
    }
};

Metric metric_called(const std::string& name) {
    std::string names;
    for (size_t i = 0; i < std::size(all_metrics); ++i) {
        const Metric metric = all_metrics[i];
        if (name == short_name(metric)) return metric;
        names += i == 0 ? "" : i + 1 < std::size(all_metrics) ? ", " : " and ";
        names += short_name(metric);
    }
    throw std::runtime_error("metrics are " + names);
}

double processor_seconds() {
    timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

double clock_seconds() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// CPU seconds of each phase, from the builder's progress reports.
class PhaseClock {
  public:
    explicit PhaseClock(GraphBuilder& builder) : builder_(builder), last_(processor_seconds()) {
        builder.progress = [this](GraphPhase phase, uint64_t, uint64_t) {
            lap();
            phase_ = phase;
        };
    }
    ~PhaseClock() { builder_.progress = {}; }
    std::string text() {
        lap();
        char text[100];
        std::snprintf(text, sizeof(text), "trees %.2f, iterations %.2f, distances %.2f s",
                      seconds_[static_cast<size_t>(GraphPhase::start)],
                      seconds_[static_cast<size_t>(GraphPhase::descent)],
                      seconds_[static_cast<size_t>(GraphPhase::distances)]);
        return text;
    }

  private:
    void lap() {
        const double now = processor_seconds();
        seconds_[static_cast<size_t>(phase_)] += now - last_;
        last_ = now;
    }

    GraphBuilder& builder_;
    GraphPhase phase_ = GraphPhase::start;
    double last_;
    double seconds_[4] = {};
};

class GraphBench {
  public:
    void run(const std::string& work, const Setting& setting) {
        load(setting);
        const DescentOptions options = setting.options();
        const auto builder = make_builder(setting);
        if (work == "pairs") return find_pairs(*builder, setting.distance);
        const size_t added =
            setting.added ? setting.added : (work == "merge" ? rows_.count / 2 : rows_.count / 100);
        const size_t first = rows_.count - added;
        uint32_t degree = options.degree;
        DescentReport report;
        std::vector<Edge> lists;
        double parts = 0;
        if (work == "merge" || work == "append") {
            lists.assign(rows_.count * degree, {std::numeric_limits<float>::infinity(), no_row});
            const double begin = clock_seconds();
            const GraphRows whole = rows_;
            builder->descend({whole.rows, first, whole.dims, whole.metric}, options, lists.data());
            if (work == "merge") {
                builder->descend({whole.row(first), added, whole.dims, whole.metric}, options,
                                 lists.data() + first * degree);
                for (size_t i = first * degree; i < lists.size(); ++i)
                    if (lists[i].row != no_row) lists[i].row += static_cast<uint32_t>(first);
            }
            parts = clock_seconds() - begin;
        }
        PhaseClock phases(*builder);
        const double begin = clock_seconds(), processor = processor_seconds();
        if (work == "exact") {
            degree = setting.k;
            lists.resize(rows_.count * degree);
            builder->exact(rows_, degree, lists.data());
        } else if (work == "descent") {
            lists.resize(rows_.count * degree);
            report = builder->descend(rows_, options, lists.data());
        } else if (work == "merge") {
            report = builder->merge(rows_, first, setting.merge_options(), lists.data());
        } else if (work == "append") {
            report = builder->append(rows_, first, options, lists.data());
        } else {
            throw std::runtime_error("no such work: " + work);
        }
        const double seconds = clock_seconds() - begin;
        const double spent = processor_seconds() - processor;
        const std::string shares = phases.text();
        const DescentOptions shown = work == "merge" ? setting.merge_options() : options;
        const double pairs = work == "exact" ? 0.5 * static_cast<double>(rows_.count) *
                                                   static_cast<double>(rows_.count)
                                             : static_cast<double>(report.compared);
        std::printf("%-8s %8.3f s (%.3f s)  recall@%u %.4f", work.c_str(), seconds, spent,
                    setting.k, recall(lists, degree, setting));
        std::printf("  %.1f M pairs, %.1f Gflop/s", pairs * 1e-6,
                    2e-9 * pairs * rows_.dims / seconds);
        if (work != "exact")
            std::printf("  %s  degree %u, p %u, %u iterations, %u trees, seed %llu", shares.c_str(),
                        shown.degree, shown.samples, report.iterations, shown.trees,
                        static_cast<unsigned long long>(shown.seed));
        if (parts > 0) std::printf("  (what it starts from: %.3f s)", parts);
        std::printf("\n");
        std::fflush(stdout);
    }

  private:
    void find_pairs(GraphBuilder& builder, float distance) {
        const double begin = clock_seconds(), processor = processor_seconds();
        const auto finder = builder.find_pairs(rows_, distance);
        const double prepared = processor_seconds() - processor;
        const size_t count = rows_.count, side = finder->best_side();
        std::vector<RowPair> found;
        size_t total = 0, halved = 0;
        std::vector<PairRectangle> left;
        for (size_t a = 0; a < count; a += side)
            for (size_t b = a; b < count; b += side)
                left.push_back({{a, std::min(count, a + side)}, {b, std::min(count, b + side)}});
        while (!left.empty()) {
            const PairRectangle next = left.back();
            left.pop_back();
            if (finder->find(next, size_t{1} << 22, &found)) {
                total += found.size();
                continue;
            }
            ++halved;
            const size_t a = (next.a.begin + next.a.end) / 2, b = (next.b.begin + next.b.end) / 2;
            left.push_back({{next.a.begin, a}, {next.b.begin, b}});
            left.push_back({{a, next.a.end}, {b, next.b.end}});
            left.push_back({{next.a.begin, a}, {b, next.b.end}});
            if (!next.is_square()) left.push_back({{a, next.a.end}, {next.b.begin, b}});
        }
        const double seconds = clock_seconds() - begin, spent = processor_seconds() - processor;
        const double compared = 0.5 * static_cast<double>(count) * static_cast<double>(count);
        std::printf(
            "pairs    %8.3f s (%.3f s, %.3f of them before the first)  within %g: %zu  "
            "%.1f M pairs, %.3f ns each (CPU), %.1f Gflop/s of whole rows (CPU)  "
            "%zu rectangles cut\n",
            seconds, spent, prepared, static_cast<double>(distance), total, compared * 1e-6,
            1e9 * spent / compared, 2e-9 * compared * rows_.dims / spent, halved);
        std::fflush(stdout);
    }

    std::unique_ptr<GraphBuilder> make_builder(const Setting& setting) {
        if (setting.library.empty()) return make_cpu_graph_builder(setting.threads, {});
        if (!device_) {
            // Never closed: the device's objects run code of this library.
            void* library = dlopen(setting.library.c_str(), RTLD_NOW | RTLD_LOCAL);
            void* open = library ? dlsym(library, open_device_symbol) : nullptr;
            if (!open) throw std::runtime_error(dlerror());
            OpenError error;
            const DeviceOptions options;
            device_.reset(reinterpret_cast<OpenDevice*>(open)(&options, &error));
            if (!device_) throw std::runtime_error(error.message);
        }
        return device_->make_graph_builder();
    }

    void load(const Setting& setting) {
        if (loaded_ == setting.data + setting.metric) return;
        const DatasetRequest request{setting.data, setting.directory, setting.rows, 0};
        set_ = read_dataset(request);
        loaded_ = setting.data + setting.metric;
        rows_ = {set_.base.values.data(), set_.base.rows, static_cast<uint32_t>(set_.base.dims),
                 setting.metric.empty() ? metric_of(request) : metric_called(setting.metric)};
        if (rows_.metric == Metric::cosine)
            for (size_t i = 0; i < rows_.count; ++i) {
                float* row = set_.base.values.data() + i * rows_.dims;
                const double norm = std::sqrt(squared_norm(row, rows_.dims));
                for (uint32_t d = 0; norm > 0 && d < rows_.dims; ++d)
                    row[d] = static_cast<float>(row[d] / norm);
            }
        truth_.clear();
    }

    void find_truth(const Setting& setting) {
        checked_ = draw_rows(rows_.count, setting.checked, 77);
        const uint32_t k = setting.k + 1;
        std::vector<float> queries(checked_.size() * rows_.dims);
        for (size_t q = 0; q < checked_.size(); ++q)
            std::memcpy(queries.data() + q * rows_.dims, rows_.row(checked_[q]),
                        rows_.dims * sizeof(float));
        truth_.assign(checked_.size(), 0);
        for (size_t q = 0; q < checked_.size(); ++q) {
            std::vector<float> distances(rows_.count);
            for (size_t i = 0; i < rows_.count; ++i)
                distances[i] = i == checked_[q]
                                   ? std::numeric_limits<float>::infinity()
                                   : graph_distance(rows_.metric, queries.data() + q * rows_.dims,
                                                    rows_.row(i), rows_.dims);
            std::nth_element(distances.begin(), distances.begin() + (k - 2), distances.end());
            truth_[q] = distances[k - 2];
        }
    }

    double recall(const std::vector<Edge>& lists, uint32_t degree, const Setting& setting) {
        if (truth_.empty()) find_truth(setting);
        size_t hits = 0;
        for (size_t q = 0; q < checked_.size(); ++q)
            for (uint32_t i = 0; i < setting.k; ++i)
                hits += lists[size_t{checked_[q]} * degree + i].distance <= truth_[q];
        return static_cast<double>(hits) / static_cast<double>(checked_.size() * setting.k);
    }

    std::unique_ptr<Device> device_;
    Dataset set_;
    std::string loaded_;
    GraphRows rows_{};
    std::vector<uint32_t> checked_;
    std::vector<float> truth_;  // (checked): the k-th distance
};

int main(int count, char** arguments) {
    Setting setting;
    GraphBench bench;
    for (int i = 1; i < count; ++i) {
        const std::string word = arguments[i];
        if (word.rfind("--", 0) != 0) {
            bench.run(word, setting);
            continue;
        }
        if (++i == count) throw std::runtime_error(word + " wants a value");
        const std::string value = arguments[i];
        const auto number = [&] { return static_cast<uint32_t>(std::stoul(value)); };
        if (word == "--data")
            setting.data = value;
        else if (word == "--directory")
            setting.directory = value;
        else if (word == "--metric")
            setting.metric = value;
        else if (word == "--rows")
            setting.rows = number();
        else if (word == "--checked")
            setting.checked = number();
        else if (word == "--added")
            setting.added = number();
        else if (word == "--k")
            setting.k = number();
        else if (word == "--threads")
            setting.threads = static_cast<int>(number());
        else if (word == "--library")
            setting.library = value;
        else if (word == "--degree")
            setting.degree = number();
        else if (word == "--samples")
            setting.samples = number();
        else if (word == "--iterations")
            setting.iterations = number();
        else if (word == "--trees")
            setting.trees = static_cast<int>(number());
        else if (word == "--merge-samples")
            setting.merge_samples = number();
        else if (word == "--merge-trees")
            setting.merge_trees = static_cast<int>(number());
        else if (word == "--distance")
            setting.distance = std::stof(value);
        else if (word == "--seed")
            setting.seed = number();
        else
            throw std::runtime_error("no such option: " + word);
    }
    return 0;
}

}  // namespace
}  // namespace pgwarp::bench

int main(int count, char** arguments) {
    try {
        return pgwarp::bench::main(count, arguments);
    } catch (const std::exception& error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
}
