#include <algorithm>
#include <limits>

#include "extension/graph/job.h"
#include "extension/graph/metric.h"
#include "extension/graph/progress.h"

extern "C" {
#include "utils/memutils.h"
}

namespace pgwarp {

void start_builder(GraphJob* job, Size count, uint32 dims, bool exact) {
    // Pairs that NN-Descent compares for a row: those of its samples, over a few iterations.
    constexpr double descent_pairs = 1000;
    const auto rows = static_cast<double>(count);
    const double pairs = rows * (exact ? rows / 2 : std::min(rows / 2, descent_pairs));
    start_builder_for(job, pairs * dims);
}

void start_builder_for(GraphJob* job, double values) {
    report_graph_stage(GraphStage::opening, 0, 0);
    job->maker = open_graph_maker(values, job->threads);
    guarded([&] { job->maker.builder->progress = graph_progress(); });
    // Unset options take the builder's defaults, except degree: our memory estimate used it.
    const DescentOptions good = job->maker.builder->default_options(job->k);
    if (!job->own_samples) job->options.samples = good.samples;
    if (!job->own_iterations) job->options.iterations = good.iterations;
    job->options.trees = good.trees;
}

void end_builder(GraphJob* job) {
    close_graph_maker(&job->maker);
}

Edge* alloc_lists(Size count, uint32 degree) {
    const Size edges = std::max<Size>(count * degree, 1);
    Edge* lists =
        static_cast<Edge*>(MemoryContextAllocHuge(CurrentMemoryContext, edges * sizeof(Edge)));
    std::fill_n(lists, edges, Edge{std::numeric_limits<float>::infinity(), no_row});
    return lists;
}

void put_lists(const GraphJob& job, const Edge* lists, Size count, uint32 degree,
               const EdgeSink& sink) {
    sink.expect(sink.state, count * std::min(job.k, degree));
    for (Size i = 0; i < count; ++i) {
        if (i % 1024 == 0) {
            CHECK_FOR_INTERRUPTS();
            report_graph_stage(GraphStage::writing, static_cast<int64>(i),
                               static_cast<int64>(count));
        }
        const Size row = sink.order ? sink.order[i] : i;
        const Edge* list = lists + row * degree;
        uint32 there = 0;
        while (there < std::min(job.k, degree) && list[there].row != no_row) ++there;
        sink.put(sink.state, row, list, there);
    }
    sink.expect(sink.state, 0);
}

EdgeSink rows_sink(EdgeRows* rows) {
    return {[](void* state, Size row, const Edge* edges, uint32 count) {
                const EdgeRows* to = static_cast<EdgeRows*>(state);
                for (uint32 i = 0; i < count; ++i)
                    write_edge(to->writer, to->set->keys[row], static_cast<int32>(i) + 1,
                               to->set->keys[edges[i].row],
                               edge_operator_distance(to->set->metric, edges[i].distance));
            },
            [](void* state, Size edges) {
                EdgeWriter* writer = static_cast<EdgeRows*>(state)->writer;
                if (writer->expect) writer->expect(writer, edges);
            },
            rows};
}

}  // namespace pgwarp
