// A graph builder that forwards all work to another. Builders that wrap one derive from it and
// override what they do differently.
#pragma once

#include "kernels/knn_graph.h"

#include <functional>
#include <memory>

namespace pgwarp {

class ForwardingGraphBuilder : public GraphBuilder {
  public:
    explicit ForwardingGraphBuilder(std::unique_ptr<GraphBuilder> builder);

    const char* name() const noexcept override { return builder_->name(); }
    DescentOptions default_options(uint32_t k) const noexcept override {
        return builder_->default_options(k);
    }
    size_t most_rows(uint32_t dims, const DescentOptions& options) const noexcept override {
        return builder_->most_rows(dims, options);
    }
    void exact(const GraphRows& rows, uint32_t degree, Edge* lists) override;
    void exact_merge(const GraphRows& rows, size_t first, uint32_t degree, Edge* lists) override;
    void exact_part(const GraphRows& rows, size_t first, const RowSpan& part, uint32_t degree,
                    Edge* lists) override;
    DescentReport descend(const GraphRows& rows, const DescentOptions& options,
                          Edge* lists) override;
    DescentReport merge(const GraphRows& rows, size_t first, const DescentOptions& options,
                        Edge* lists) override;
    DescentReport append(const GraphRows& rows, size_t first, const DescentOptions& options,
                         Edge* lists) override;
    std::unique_ptr<PairFinder> find_pairs(const GraphRows& rows,
                                           const PairSearch& search) override;

  protected:
    // The caller's lists, (count)(degree): those of all rows, or of a part.
    struct Lists {
        const GraphRows& rows;
        uint32_t degree;
        Edge* edges;
        size_t count = rows.count;

        size_t size() const { return count * degree; }
    };
    // The work on `edges`, which has the shape of the caller's lists.
    using Work = std::function<DescentReport(GraphBuilder& builder, Edge* edges)>;
    // Every operation calls it once. An override may run `work` on a copy of the lists, or repeat
    // it on another builder, which then gets this builder's `progress` first.
    virtual DescentReport run(const Lists& lists, const Work& work);
    DescentReport forward(const Work& work, Edge* edges) {
        builder_->progress = progress;
        return work(*builder_, edges);
    }

    std::unique_ptr<GraphBuilder> builder_;
};

}  // namespace pgwarp
