#include "kernels/cuda/graph/descent.h"

#include "kernels/cuda/graph/hash.h"
#include "kernels/cuda/graph/trees.h"
#include "kernels/cuda/base/stream.h"

#include <algorithm>

namespace pgwarp::gpu {

namespace {

// It ends when fewer than this share of all edges was replaced in an iteration. Of a merge about
// half of the edges were there before.
constexpr double least_updates = 0.001;
constexpr double least_merge_updates = 0.02;
// Rows that one launch may have, of samples and dimensions as they usually are: whoever interrupts
// waits for no more.
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
    // Trees sort keys and rows, from one buffer to another.
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

    // Two at least: rows of one leaf know each other already.
    const uint32_t starts = std::max(options.trees, 2u);
    const bool merging = work.known == KnownPairs::both_sets;
    const double least = merging ? least_merge_updates : least_updates;
    // A small set has little to give and to take: it is not measured by a large one.
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
        // What is new to a row in a merge comes from the other side, and is compared with its own.
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
