#include "kernels/knn_graph.h"

#include "kernels/cpu/graph_descent.h"
#include "kernels/cpu/graph_exact.h"
#include "kernels/cpu/graph_lists.h"
#include "kernels/similar_pairs.h"
#include "kernels/workers.h"

#include <algorithm>

namespace pgwarp {

namespace {

class CpuGraphBuilder final : public GraphBuilder {
  public:
    CpuGraphBuilder(int threads, const Interrupts& interrupts) : workers_(threads, interrupts) {}

    const char* name() const noexcept override { return "cpu"; }

    void exact(const GraphRows& rows, uint32_t degree, Edge* lists) override {
        exact_part(rows, no_border, {0, rows.count}, degree, lists);
    }

    void exact_merge(const GraphRows& rows, size_t first, uint32_t degree, Edge* lists) override {
        if (first == 0 || first == rows.count) return;
        exact_part(rows, first, {0, rows.count}, degree, lists);
    }

    void exact_part(const GraphRows& rows, size_t first, const RowSpan& part, uint32_t degree,
                    Edge* lists) override {
        if (first == no_border)
            for (size_t i = 0; i < part.size(); ++i) clear_list(lists + i * degree, degree);
        exact_graph(workers_, rows, first, part, degree, lists, progress);
    }

    DescentReport descend(const GraphRows& rows, const DescentOptions& options,
                          Edge* lists) override {
        for (size_t row = 0; row < rows.count; ++row)
            clear_list(lists + row * options.degree, options.degree);
        return run(rows, options, Known::nothing, 0, lists);
    }

    DescentReport merge(const GraphRows& rows, size_t first, const DescentOptions& options,
                        Edge* lists) override {
        return run(rows, options, Known::both_sets, first, lists);
    }

    DescentReport append(const GraphRows& rows, size_t first, const DescentOptions& options,
                         Edge* lists) override {
        return run(rows, options, Known::first_set, first, lists);
    }

    std::unique_ptr<PairFinder> find_pairs(const GraphRows& rows,
                                           const PairSearch& search) override {
        return make_cpu_pair_finder(workers_, rows, search);
    }

  private:
    DescentReport run(const GraphRows& rows, const DescentOptions& options, Known known,
                      size_t border, Edge* lists) {
        if (rows.count == 0) return {};
        return GraphDescent(workers_, rows, options, known, border, lists).run(progress);
    }

    Workers workers_;
};

}  // namespace

void add_edges(Edge* list, uint32_t degree, const Edge* others, uint32_t count) noexcept {
    for (uint32_t i = 0; i < count && others[i].row != no_row; ++i)
        insert_edge(list, degree, others[i]);
}

size_t descent_memory(size_t count, uint32_t dims, const DescentOptions& options, int threads) {
    return GraphDescent::memory(count, dims, options, threads);
}

std::unique_ptr<GraphBuilder> make_cpu_graph_builder(int threads, const Interrupts& interrupts) {
    return std::make_unique<CpuGraphBuilder>(threads, interrupts);
}

}  // namespace pgwarp
