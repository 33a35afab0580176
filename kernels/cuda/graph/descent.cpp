#include "kernels/cuda/graph/descent.h"

#include "kernels/cuda/graph/hash.h"
#include "kernels/cuda/graph/trees.h"
#include "kernels/cuda/base/stream.h"

#include <algorithm>

namespace pgwarp::gpu {

namespace {

// A descent ends after an iteration that replaced less than this fraction of all edges. In a merge
// about half of the edges were known before.
constexpr double min_updates = 0.001;
constexpr double min_merge_updates = 0.02;
// The most rows of one launch, for 14 samples and 128 dimensions: bounds how long an interrupt
// waits.
constexpr double usual_rows = 1 << 21;
uint32_t launch_rows(const DescentOptions& options, uint32_t dims) {
    const double work = static_cast<double>(options.samples) * options.samples * dims;
    return static_cast<uint32_t>(std::clamp(usual_rows * 14 * 14 * 128 / work, 1024.0, usual_rows));
}

size_t leaf_rows(const DescentOptions& options) {
    return std::max<size_t>(128, 2 * size_t{options.degree});
}

}  // namespace

size_t descent_row_bytes(const DescentOptions& options) {
    // Trees sort keys and row numbers between two buffers each.
    return GraphSamples::row_bytes(options.samples) + 2 * (sizeof(uint64_t) + sizeof(uint32_t)) + 1;
}

DescentReport descend(const Context& context, cudaStream_t stream, const DescentWork& work) {
    const GraphView& view = work.view;
    const DescentOptions& options = work.options;
    DescentReport report;
    GraphTrees trees(context, view, leaf_rows(options));
    GraphSamples samples(context, view.count, options.samples);
    Buffer<unsigned long long> compared(context.memory, 1);
    const FinishStream finish(stream);
    clear_async(compared.data(), 1, stream);
    uint32_t round = 0;
    const uint32_t most_rows = launch_rows(options, view.dims);
    const auto matching = [&](uint32_t salt) {
        return Matching{view, work.lists.view(salt), work.known, work.border, compared.data()};
    };
    const auto salt_of = [&](uint32_t number) {
        return static_cast<uint32_t>(hash64(options.seed * 0x9e3779b97f4a7c15ULL + number));
    };

    // At least two trees: after one, all neighbors of a row are in its leaf, whose pairs have all
    // been compared.
    const uint32_t starts = std::max(options.trees, 2u);
    const bool merging = work.known == KnownPairs::both_sets;
    const double least = merging ? min_merge_updates : min_updates;
    // A merge with a small set changes few edges: the threshold counts twice the smaller set's
    // edges, not all of them.
    const uint32_t rows =
        merging ? 2 * std::min(work.border, view.count - work.border) : view.count;
    const double edges = static_cast<double>(rows) * options.degree;
    for (uint32_t tree = 0; tree < starts; ++tree) {
        context.check_interrupt();
        if (work.progress) work.progress(GraphPhase::start, tree, starts);
        const uint32_t salt = salt_of(round++);
        trees.grow(hash64(options.seed ^ hash64(tree + 1)), options.trees > 0, stream);
        const Matching match = matching(salt);
        const uint32_t most = std::max(1u, most_rows / trees.largest_leaf());
        for (uint32_t first = 0; first < trees.leaves(); first += most) {
            context.check_interrupt();
            match_leaves(match, trees.order(), trees.levels(), first,
                         std::min(most, trees.leaves() - first), stream);
            check(cudaStreamSynchronize(stream), "match_leaves");
        }
        work.lists.merge_proposals(stream);
    }
    while (report.iterations < options.iterations) {
        const uint32_t iteration = report.iterations++;
        const uint32_t salt = salt_of(round++);
        // In a merge a row's new neighbors come from the other set. They are compared with old
        // neighbors on the row's own side of the border.
        samples.draw(work.lists.keys(), options.degree, merging ? work.border : 0, salt, stream);
        const Matching match = matching(salt);
        for (uint32_t first = 0; first < view.count; first += most_rows) {
            context.check_interrupt();
            if (work.progress)
                work.progress(GraphPhase::descent, iteration * uint64_t{view.count} + first,
                              options.iterations * uint64_t{view.count});
            match_samples(match, samples.view(), trees.order(), first,
                          std::min(most_rows, view.count - first), stream);
            check(cudaStreamSynchronize(stream), "match_samples");
        }
        const uint64_t updates = work.lists.merge_proposals(stream);
        if (static_cast<double>(updates) < least * edges) break;
    }
    if (work.progress) work.progress(GraphPhase::distances, 0, view.count);
    work.lists.finish(view, stream);
    unsigned long long pairs = 0;
    copy_async(&pairs, static_cast<const unsigned long long*>(compared.data()), 1, stream);
    check(cudaStreamSynchronize(stream), "descend");
    report.compared = pairs;
    return report;
}

}  // namespace pgwarp::gpu
