#include "kernels/forwarding_graph_builder.h"

#include "kernels/host/following_pair_finder.h"

namespace pgwarp {

ForwardingGraphBuilder::ForwardingGraphBuilder(std::unique_ptr<GraphBuilder> builder)
    : builder_(std::move(builder)) {}

DescentReport ForwardingGraphBuilder::run(const Lists& lists, const Work& work) {
    return forward(work, lists.edges);
}

void ForwardingGraphBuilder::exact(const GraphRows& rows, uint32_t degree, Edge* lists) {
    run({rows, degree, lists}, [&](GraphBuilder& builder, Edge* edges) {
        builder.exact(rows, degree, edges);
        return DescentReport();
    });
}

void ForwardingGraphBuilder::exact_merge(const GraphRows& rows, size_t first, uint32_t degree,
                                         Edge* lists) {
    run({rows, degree, lists}, [&](GraphBuilder& builder, Edge* edges) {
        builder.exact_merge(rows, first, degree, edges);
        return DescentReport();
    });
}

void ForwardingGraphBuilder::exact_part(const GraphRows& rows, size_t first, const RowSpan& part,
                                        uint32_t degree, Edge* lists) {
    run({rows, degree, lists, part.size()}, [&](GraphBuilder& builder, Edge* edges) {
        builder.exact_part(rows, first, part, degree, edges);
        return DescentReport();
    });
}

DescentReport ForwardingGraphBuilder::descend(const GraphRows& rows, const DescentOptions& options,
                                              Edge* lists) {
    return run({rows, options.degree, lists}, [&](GraphBuilder& builder, Edge* edges) {
        return builder.descend(rows, options, edges);
    });
}

DescentReport ForwardingGraphBuilder::merge(const GraphRows& rows, size_t first,
                                            const DescentOptions& options, Edge* lists) {
    return run({rows, options.degree, lists}, [&](GraphBuilder& builder, Edge* edges) {
        return builder.merge(rows, first, options, edges);
    });
}

DescentReport ForwardingGraphBuilder::append(const GraphRows& rows, size_t first,
                                             const DescentOptions& options, Edge* lists) {
    return run({rows, options.degree, lists}, [&](GraphBuilder& builder, Edge* edges) {
        return builder.append(rows, first, options, edges);
    });
}

std::unique_ptr<PairFinder> ForwardingGraphBuilder::find_pairs(const GraphRows& rows,
                                                               const PairSearch& search) {
    return std::make_unique<FollowingPairFinder>(
        rows, search, [this, rows](const FollowingPairFinder::Work& work) {
            run({rows, 0, nullptr, 0}, [&](GraphBuilder& builder, Edge*) {
                work(builder);
                return DescentReport();
            });
        });
}

}  // namespace pgwarp
