// NN-Descent on the CPU (the paper's Algorithm 1, and with a border between two sets Algorithm 3).
//
// The samples of a row, or a leaf of a tree, form a tile: a matrix product of a few dozen rows with
// each other. A pair nearer than the last neighbor in one of the two lists becomes a proposal.
// Proposals are applied after some thousand tiles, by tasks that each own a range of lists: no
// locks, and the same graph from any number of threads.
#pragma once

#include "kernels/cpu/graph_samples.h"
#include "kernels/cpu/graph_trees.h"
#include "kernels/knn_graph.h"
#include "kernels/workers.h"

#include <vector>

namespace pgwarp {

// Pairs that are not compared.
enum class Known : uint8_t {
    nothing,
    first_set,  // pairs of the rows below the border: they have a graph, the others were added
    both_sets,  // pairs on the same side of the border: two graphs that are merged
};

class GraphDescent {
  public:
    GraphDescent(Workers& workers, const GraphRows& rows, const DescentOptions& options,
                 Known known, size_t border, Edge* lists);

    static size_t memory(size_t count, uint32_t dims, const DescentOptions& options, int threads);

    // The lists start as they are; their edges count as old.
    DescentReport run(const GraphProgress& progress);

  private:
    struct Proposal {
        uint32_t target;
        Edge edge;
    };
    // Proposals of a task, ordered by range: those of range r are [begins[r], begins[r + 1]).
    struct Found {
        std::vector<Proposal> proposals;
        std::vector<Proposal> ordered;
        std::vector<uint32_t> begins;
        uint64_t compared;
    };
    // A thread's scratch for one tile.
    struct Scratch {
        std::vector<uint32_t> numbers;
        std::vector<float> data, terms, bounds, reach, values;
    };
    // Part of a tile's rows, [begin, end).
    struct Part {
        size_t begin, end;
        size_t size() const { return end - begin; }
    };

    static size_t most_rows(const DescentOptions& options);
    static size_t leaf_rows(const DescentOptions& options);
    static size_t batch_leaves(const DescentOptions& options);

    void start(const GraphProgress& progress, Leaves& leaves);
    uint64_t match_leaves(const Leaves& leaves);
    uint64_t match_samples(const std::vector<uint32_t>& order, const GraphProgress& progress,
                           uint32_t iteration);
    void match(Scratch& scratch, size_t fresh_count, size_t old_count, const float* centre,
               Found& found);
    void match_parts(Scratch& scratch, Part a, Part b, bool triangle, Found& found);
    void propose(Scratch& scratch, Part a, Part b, bool triangle, Found& found);
    void order_by_range(Found& found) const;
    void prefetch_list(uint32_t row) const;
    uint64_t apply(size_t tasks);
    void finish(const std::vector<uint32_t>& order);
    size_t range_of(uint32_t row) const { return size_t{row} * ranges_ / rows_.count; }

    Workers& workers_;
    const GraphRows& rows_;
    const DescentOptions& options_;
    const Known known_;
    const size_t border_;
    Edge* lists_;
    size_t ranges_;
    size_t value_stride_;
    std::vector<float> bounds_;  // (count): the last distance of each list
    GraphSamples samples_;
    std::vector<Scratch> scratch_;
    std::vector<Found> found_;
    uint64_t compared_ = 0;
};

}  // namespace pgwarp
