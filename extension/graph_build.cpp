#include <algorithm>
#include <limits>

#include "extension/graph_build.h"
#include "extension/graph_metric.h"
#include "extension/graph_parts.h"
#include "extension/graph_progress.h"

extern "C" {
#include "utils/memutils.h"
}

namespace pgwarp {

int graph_threads() {
    return 1 + max_parallel_maintenance_workers;
}

void start_builder(GraphJob* job, Size count, uint32 dims, bool exact) {
    // Pairs of a descent: those that a row's samples make, in a few iterations.
    constexpr double descent_pairs = 1000;
    report_graph_stage(GraphStage::opening, 0, 0);
    const auto rows = static_cast<double>(count);
    const double pairs = rows * (exact ? rows / 2 : std::min(rows / 2, descent_pairs));
    job->maker = open_graph_maker(pairs * dims, job->threads);
    guarded([&] { job->maker.builder->progress = graph_progress(); });
    // What nobody has asked for is as is good for who does it; but for the degree, which the memory
    // of this process was reckoned with.
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
    for (Size row = 0; row < count; ++row) {
        if (row % 1024 == 0) {
            CHECK_FOR_INTERRUPTS();
            report_graph_stage(GraphStage::writing, static_cast<int64>(row),
                               static_cast<int64>(count));
        }
        const Edge* list = lists + row * degree;
        uint32 there = 0;
        while (there < std::min(job.k, degree) && list[there].row != no_row) ++there;
        sink.put(sink.state, row, list, there);
    }
}

void build_graph(const GraphJob& job, GraphSet* whole, bool exact, const EdgeSink& sink) {
    if (!whole->file && whole->count > rows_on_device(job, std::max(whole->dims, 1u)))
        spill_graph_set(whole);
    const GraphSet& set = *whole;
    if (set.file) return build_by_parts(job, set, exact, sink);
    const uint32 degree = exact ? job.k : job.options.degree;
    Edge* lists = alloc_lists(set.count, degree);
    const GraphRows rows{set.rows, set.count, set.dims, job.metric};
    report_graph_parts(0, 1);
    run_graph_kernel([&] {
        if (exact)
            job.maker.builder->exact(rows, degree, lists);
        else
            job.maker.builder->descend(rows, job.options, lists);
    });
    report_graph_parts(1, 1);
    put_lists(job, lists, set.count, degree, sink);
    pfree(lists);
}

EdgeSink rows_sink(EdgeRows* rows) {
    return {[](void* state, Size row, const Edge* edges, uint32 count) {
                const EdgeRows* to = static_cast<EdgeRows*>(state);
                for (uint32 i = 0; i < count; ++i)
                    write_edge(to->writer, to->set->keys[row], static_cast<int32>(i) + 1,
                               to->set->keys[edges[i].row],
                               shown_distance(to->set->metric, edges[i].distance));
            },
            rows};
}

}  // namespace pgwarp
