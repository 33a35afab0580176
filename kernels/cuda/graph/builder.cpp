#include "kernels/cuda/graph/builder.h"

#include "kernels/cuda/graph/descent.h"
#include "kernels/cuda/graph/exact.h"
#include "kernels/cuda/graph/filter.h"
#include "kernels/cuda/graph/pairs.h"
#include "kernels/cuda/graph/proposals.h"
#include "kernels/cuda/base/stream.h"
#include "kernels/device.h"

#include <algorithm>

namespace pgwarp::gpu {

namespace {

// Up to this many rows, comparing all pairs is faster than starting a descent.
constexpr size_t min_descent_rows = 4096;
// From this many rows on, find_limits() saves more time than it takes.
constexpr size_t min_limited_rows = 100000;

class CudaGraphBuilder final : public GraphBuilder {
  public:
    explicit CudaGraphBuilder(const Context& context) : context_(context), blas_(stream_) {}

    const char* name() const noexcept override { return context_.name; }

    // More trees and samples than on the CPU: they cost a device little, and raise recall.
    DescentOptions default_options(uint32_t k) const noexcept override {
        DescentOptions options = DescentOptions::for_neighbors(k);
        options.samples = 24;
        options.trees = 8;
        return options;
    }
    size_t most_rows(uint32_t dims, const DescentOptions& options) const noexcept override;

    void exact(const GraphRows& rows, uint32_t degree, Edge* lists) override {
        compare_all(rows, degree, lists, false);
    }
    void exact_merge(const GraphRows& rows, size_t first, uint32_t degree, Edge* lists) override {
        compare_across(rows, first, degree, lists);
    }
    void exact_part(const GraphRows& rows, size_t first, const RowSpan& part, uint32_t degree,
                    Edge* lists) override {
        if (first == 0)
            compare_part(rows, part, degree, lists, false);
        else
            merge_part(rows, first, part, degree, lists);
    }
    DescentReport descend(const GraphRows& rows, const DescentOptions& options,
                          Edge* lists) override {
        if (is_small(rows, options)) return compare_all(rows, options.degree, lists, false);
        return descend(rows, options, KnownPairs::nothing, 0, lists);
    }
    DescentReport merge(const GraphRows& rows, size_t first, const DescentOptions& options,
                        Edge* lists) override {
        if (is_small(rows, options)) return compare_across(rows, first, options.degree, lists);
        return descend(rows, options, KnownPairs::both_sets, first, lists);
    }
    DescentReport append(const GraphRows& rows, size_t first, const DescentOptions& options,
                         Edge* lists) override {
        if (is_small(rows, options)) return compare_all(rows, options.degree, lists, true);
        if (are_few(rows.count - first, rows.count))
            return compare_added(rows, first, options.degree, lists);
        return descend(rows, options, KnownPairs::first_set, first, lists);
    }
    std::unique_ptr<PairFinder> find_pairs(const GraphRows& rows,
                                           const PairSearch& search) override {
        return make_pair_finder(context_, blas_, uploader_, stream_, rows, search.bound);
    }

  private:
    // Lists longer than the caller's raise recall, and cost a device little. A merge has only half
    // of the edges to find: it uses 3/8 of the trees and 2/3 of the samples.
    static DescentOptions options_here(const DescentOptions& options, KnownPairs known) {
        DescentOptions own = options;
        own.degree = std::max({options.degree, std::min(options.neighbors + 38, 64u),
                               std::min(2 * options.samples, 64u)});
        if (known == KnownPairs::both_sets) {
            own.trees = (3 * options.trees + 7) / 8;
            own.samples = (2 * options.samples + 2) / 3;
        }
        own.samples = std::max(own.samples, 1u);
        return own;
    }
    // Few rows, also compared to the length of a list: compare all pairs.
    static bool is_small(const GraphRows& rows, const DescentOptions& options) {
        return rows.count <= std::max<size_t>(min_descent_rows, 4 * size_t{options.degree});
    }
    // Whether comparing the added rows with all others is faster than a descent.
    static bool are_few(size_t added, size_t count) {
        return added <= count / 50 &&
               static_cast<double>(added) * static_cast<double>(count) < 2e10;
    }
    static void check_degree(uint32_t degree, uint32_t most) {
        if (degree > most)
            throw DeviceFailure(
                "a device keeps at most " + std::to_string(most) + " neighbors of a row", false);
    }
    static RowRange range_of(const RowSpan& span) {
        return {static_cast<uint32_t>(span.begin), static_cast<uint32_t>(span.end)};
    }
    void compare_part(const GraphRows& rows, const RowSpan& part, uint32_t degree, Edge* lists,
                      bool were_read);
    void merge_part(const GraphRows& rows, size_t first, const RowSpan& part, uint32_t degree,
                    Edge* lists);
    DescentReport compare_all(const GraphRows& rows, uint32_t degree, Edge* lists, bool were_read);
    DescentReport compare_across(const GraphRows& rows, size_t first, uint32_t degree, Edge* lists);
    DescentReport compare_added(const GraphRows& rows, size_t first, uint32_t degree, Edge* lists);
    DescentReport descend(const GraphRows& rows, const DescentOptions& options, KnownPairs known,
                          size_t border, Edge* lists);
    Buffer<float> find_limits(const GraphView& view, uint32_t degree);
    // Fills the lists of work.queries. For progress reports: `done` of `total` rows are complete
    // before this call.
    void search(ExactWork work, size_t done, size_t total);
    void report_begin(size_t total);
    void report_end(size_t total);
    void download(uint64_t* keys, size_t count, Edge* lists, bool were_read);

    const Context& context_;
    Stream stream_;
    Blas blas_;
    Uploader uploader_;
};

size_t CudaGraphBuilder::most_rows(uint32_t dims, const DescentOptions& options) const noexcept {
    const uint32_t degree =
        std::min(options_here(options, KnownPairs::nothing).degree, max_graph_degree);
    const size_t lists = GraphLists::row_bytes(degree);
    const size_t bytes = DeviceGraphRows::row_bytes(dims) + lists + descent_row_bytes(options);
    // A tenth is left for the allocator's fragmentation and for tiles of the exact graph.
    return std::min(most_graph_rows, context_.memory.available() / 10 * 9 / bytes);
}

void CudaGraphBuilder::search(ExactWork work, size_t done, size_t total) {
    work.progress = [&](uint64_t now) {
        if (progress && done + now > 0) progress(GraphPhase::exact, done + now, total);
    };
    if (work.queries.size() == 0) return;
    // The filter is faster for rows of few dimensions with short lists.
    if (filter_fits(context_, work))
        filter_lists(context_, blas_, stream_, work);
    else
        exact_lists_of(context_, blas_, stream_, work, nullptr, work.queries.size());
}

// Upper bounds on the distance of each row's last neighbor, from a short descent: the true
// degree-th neighbor is no farther than the one that the descent finds. Empty where the descent
// would take longer than it saves, or does not fit into memory.
Buffer<float> CudaGraphBuilder::find_limits(const GraphView& view, uint32_t degree) {
    DescentOptions options = DescentOptions::for_neighbors(degree);
    options.degree = std::max(options.degree, 2 * degree);
    options.samples = 16;
    options.iterations = 1;
    options.seed = 1;
    const size_t bytes = GraphLists::row_bytes(options.degree) + descent_row_bytes(options);
    if (view.count < min_limited_rows || bytes * view.count > context_.memory.available() / 2)
        return {};
    Buffer<float> limits(context_.memory, view.count);
    GraphLists lists(context_, uploader_, stream_, view.count, options.degree, nullptr, 0);
    const FinishStream finish(stream_);
    gpu::descend(context_, stream_, {view, options, KnownPairs::nothing, 0, lists, {}});
    place_distances(lists.keys(), options.degree, degree - 1, view.count, limits.data(), stream_);
    return limits;
}

void CudaGraphBuilder::report_begin(size_t total) {
    if (progress) progress(GraphPhase::exact, 0, total);
}

void CudaGraphBuilder::report_end(size_t total) {
    if (progress) progress(GraphPhase::exact, total, total);
}

// Compares the rows of a part with all rows.
void CudaGraphBuilder::compare_part(const GraphRows& rows, const RowSpan& part, uint32_t degree,
                                    Edge* lists, bool were_read) {
    if (part.size() == 0) return;
    check_degree(degree, max_exact_degree);
    context_.use();
    context_.check_interrupt();
    const DeviceGraphRows device(context_, uploader_, stream_, rows);
    Buffer<uint64_t> keys(context_.memory, rows.count * degree);
    const FinishStream finish(stream_);
    ExactWork work{device.view(),
                   range_of(part),
                   range_of({0, rows.count}),
                   degree,
                   keys.data(),
                   false,
                   nullptr,
                   {}};
    report_begin(part.size());
    const Buffer<float> limits =
        filter_fits(context_, work) ? find_limits(device.view(), degree) : Buffer<float>();
    work.limits = limits.data();
    search(work, 0, part.size());
    report_end(part.size());
    download(keys + part.begin * degree, part.size() * degree, lists, were_read);
}

DescentReport CudaGraphBuilder::compare_all(const GraphRows& rows, uint32_t degree, Edge* lists,
                                            bool were_read) {
    DescentReport report;
    if (rows.count == 0) return report;
    compare_part(rows, {0, rows.count}, degree, lists, were_read);
    report.compared = uint64_t{rows.count} * (rows.count - 1) / 2;
    return report;
}

// Compares the rows of a part with those on the other side of `first`.
void CudaGraphBuilder::merge_part(const GraphRows& rows, size_t first, const RowSpan& part,
                                  uint32_t degree, Edge* lists) {
    if (part.size() == 0) return;
    check_degree(degree, max_exact_degree);
    context_.use();
    context_.check_interrupt();
    const DeviceGraphRows device(context_, uploader_, stream_, rows);
    Buffer<uint64_t> keys(context_.memory, rows.count * degree);
    Buffer<float> limits(context_.memory, rows.count);
    const FinishStream finish(stream_);
    uint64_t* part_keys = keys + part.begin * degree;
    uploader_.upload(part_keys, reinterpret_cast<const uint64_t*>(lists), part.size() * degree,
                     stream_);
    edges_to_keys(part_keys, part.size() * degree, stream_);
    report_begin(part.size());
    // Infinite for a list that is not full.
    place_distances(part_keys, degree, degree - 1, part.size(), limits + part.begin, stream_);
    const RowSpan before{std::min(part.begin, first), std::min(part.end, first)};
    const RowSpan behind{std::max(part.begin, first), std::max(part.end, first)};
    search({device.view(),
            range_of(before),
            range_of({first, rows.count}),
            degree,
            keys.data(),
            true,
            limits.data(),
            {}},
           0, part.size());
    search({device.view(),
            range_of(behind),
            range_of({0, first}),
            degree,
            keys.data(),
            true,
            limits.data(),
            {}},
           before.size(), part.size());
    report_end(part.size());
    download(part_keys, part.size() * degree, lists, true);
}

DescentReport CudaGraphBuilder::compare_across(const GraphRows& rows, size_t first, uint32_t degree,
                                               Edge* lists) {
    DescentReport report;
    if (rows.count == 0) return report;
    merge_part(rows, first, {0, rows.count}, degree, lists);
    report.compared = uint64_t{first} * (rows.count - first);
    return report;
}

DescentReport CudaGraphBuilder::compare_added(const GraphRows& rows, size_t first, uint32_t degree,
                                              Edge* lists) {
    check_degree(degree, max_exact_degree);
    context_.use();
    context_.check_interrupt();
    if (first == rows.count) return {};
    const DeviceGraphRows device(context_, uploader_, stream_, rows);
    Buffer<uint64_t> keys(context_.memory, rows.count * degree);
    const FinishStream finish(stream_);
    uploader_.upload(keys.data(), reinterpret_cast<const uint64_t*>(lists), keys.size(), stream_);
    edges_to_keys(keys.data(), keys.size(), stream_);
    const auto count = static_cast<uint32_t>(rows.count), border = static_cast<uint32_t>(first);
    report_begin(rows.count);
    Buffer<float> limits(context_.memory, rows.count);
    place_distances(keys.data(), degree, degree - 1, rows.count, limits.data(), stream_);
    search(
        {device.view(), {0, border}, {border, count}, degree, keys.data(), true, limits.data(), {}},
        0, rows.count);
    search({device.view(), {border, count}, {0, count}, degree, keys.data(), false, nullptr, {}},
           first, rows.count);
    report_end(rows.count);
    download(keys.data(), keys.size(), lists, true);
    DescentReport report;
    report.compared = uint64_t{rows.count - first} * rows.count;
    return report;
}

DescentReport CudaGraphBuilder::descend(const GraphRows& rows, const DescentOptions& options,
                                        KnownPairs known, size_t border, Edge* lists) {
    check_degree(options.degree, max_graph_degree);
    context_.use();
    context_.check_interrupt();
    const DeviceGraphRows device(context_, uploader_, stream_, rows);
    const bool reads = known != KnownPairs::nothing;
    const DescentOptions own = options_here(options, known);
    GraphLists device_lists(context_, uploader_, stream_, rows.count, own.degree,
                            reads ? lists : nullptr, options.degree);
    const FinishStream finish(stream_);
    const DescentReport report = gpu::descend(
        context_, stream_,
        {device.view(), own, known, static_cast<uint32_t>(border), device_lists, progress});
    if (progress) progress(GraphPhase::distances, rows.count, rows.count);
    download(device_lists.cut(options.degree, stream_), rows.count * options.degree, lists, reads);
    return report;
}

// A DeviceFailure makes the caller start again on the CPU, from its lists. If the lists were the
// input (`were_read`) and the copy fails half-way, they are damaged: then the error is a
// runtime_error, which does not cause another attempt.
void CudaGraphBuilder::download(uint64_t* keys, size_t count, Edge* lists, bool were_read) {
    keys_to_edges(keys, count, stream_);
    stream_.synchronize();
    context_.check_interrupt();
    try {
        copy_async(reinterpret_cast<uint64_t*>(lists), static_cast<const uint64_t*>(keys), count,
                   stream_);
        stream_.synchronize();
    } catch (const DeviceFailure& failure) {
        if (!were_read) throw;
        throw std::runtime_error(std::string("a graph was lost on its way from the device: ") +
                                 failure.what());
    }
}

}  // namespace

std::unique_ptr<GraphBuilder> make_graph_builder(const Context& context) {
    context.use();
    return std::make_unique<CudaGraphBuilder>(context);
}

}  // namespace pgwarp::gpu
