// A set beyond maintenance_work_mem is cut into parts of which two fit. Each part gets a graph of
// its own, then every two are merged (section 5 of the GNND paper). Merging needs the lists that a
// part has among itself, while what is found elsewhere goes into the result: two files of lists.

#include <algorithm>
#include <limits>

#include "extension/graph_build.h"
#include "extension/graph_metric.h"
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

namespace {

// Up to here all pairs of a merge take no longer than those that a descent tries. Small parts have
// few neighbors among themselves that lead to others, so that it would miss some.
constexpr Size rows_for_exact_merge = 8192;

struct Parts {
    const GraphJob* job;
    const GraphSet* set;
    bool exact;
    Size count;      // of parts
    Size most_rows;  // of a part
    uint32 degree;   // of the lists a merge works on
    BufFile* own;    // (rows)(degree): lists among a part, numbers in the part
    BufFile* found;  // (rows)(k): what is nearest so far, numbers in the set

    // Room for two parts.
    float* rows;
    Edge* lists;
    Edge* results;

    Size begin(Size part) const { return set->count * part / count; }
    Size size(Size part) const { return begin(part + 1) - begin(part); }
};

void read_lists(BufFile* file, Size first, Size count, uint32 degree, Edge* lists) {
    const Size bytes = sizeof(Edge) * degree;
    if (BufFileSeek(file, 0, static_cast<off_t>(first * bytes), SEEK_SET) != 0)
        ereport(ERROR, (errcode_for_file_access(), errmsg("could not read temporary file")));
    compat_read_temporary(file, lists, count * bytes);
}

void write_lists(BufFile* file, Size first, Size count, uint32 degree, const Edge* lists) {
    const Size bytes = sizeof(Edge) * degree;
    if (BufFileSeek(file, 0, static_cast<off_t>(first * bytes), SEEK_SET) != 0)
        ereport(ERROR, (errcode_for_file_access(), errmsg("could not write temporary file")));
    compat_write_temporary(file, lists, count * bytes);
}

void build_part(const Parts& parts, Size part) {
    const GraphJob& job = *parts.job;
    const Size count = parts.size(part);
    read_spilled(*parts.set, parts.begin(part), count, parts.rows);
    const GraphRows rows{parts.rows, count, parts.set->dims, job.metric};
    run_graph_kernel([&] {
        if (parts.exact)
            job.maker.builder->exact(rows, parts.degree, parts.lists);
        else
            job.maker.builder->descend(rows, job.options, parts.lists);
    });
    write_lists(parts.own, parts.begin(part), count, parts.degree, parts.lists);
    for (Size row = 0; row < count; ++row)
        for (uint32 i = 0; i < job.k; ++i) {
            Edge edge = parts.lists[row * parts.degree + i];
            if (edge.row != no_row) edge.row += static_cast<uint32>(parts.begin(part));
            parts.results[row * job.k + i] = edge;
        }
    write_lists(parts.found, parts.begin(part), count, job.k, parts.results);
}

// Of the first part's rows what was found in the second, and the other way round. Rows of the
// merge are numbered from the first part on, without a gap.
void keep_found(const Parts& parts, Size first, Size second) {
    const GraphJob& job = *parts.job;
    const Size border = parts.size(first);
    for (const bool of_second : {false, true}) {
        const Size part = of_second ? second : first, other = of_second ? first : second;
        const Size count = parts.size(part);
        read_lists(parts.found, parts.begin(part), count, job.k, parts.results);
        for (Size row = 0; row < count; ++row) {
            const Edge* list = parts.lists + ((of_second ? border : 0) + row) * parts.degree;
            for (uint32 i = 0; i < parts.degree && list[i].row != no_row; ++i) {
                if ((list[i].row < border) != of_second) continue;
                const Edge edge{list[i].distance,
                                static_cast<uint32>(list[i].row - (of_second ? 0 : border) +
                                                    parts.begin(other))};
                add_edges(parts.results + row * job.k, job.k, &edge, 1);
            }
        }
        write_lists(parts.found, parts.begin(part), count, job.k, parts.results);
    }
}

void merge_parts(const Parts& parts, Size first, Size second) {
    const GraphJob& job = *parts.job;
    const Size border = parts.size(first), count = border + parts.size(second);
    read_spilled(*parts.set, parts.begin(first), border, parts.rows);
    read_spilled(*parts.set, parts.begin(second), count - border,
                 parts.rows + border * parts.set->dims);
    read_lists(parts.own, parts.begin(first), border, parts.degree, parts.lists);
    Edge* second_lists = parts.lists + border * parts.degree;
    read_lists(parts.own, parts.begin(second), count - border, parts.degree, second_lists);
    for (Size i = 0; i < (count - border) * parts.degree; ++i)
        if (second_lists[i].row != no_row) second_lists[i].row += static_cast<uint32>(border);
    const GraphRows rows{parts.rows, count, parts.set->dims, job.metric};
    run_graph_kernel([&] {
        if (parts.exact || count <= rows_for_exact_merge)
            job.maker.builder->exact_merge(rows, border, parts.degree, parts.lists);
        else
            job.maker.builder->merge(rows, border, job.options, parts.lists);
    });
    keep_found(parts, first, second);
}

void put_found(const Parts& parts, const EdgeSink& sink) {
    const GraphJob& job = *parts.job;
    for (Size part = 0; part < parts.count; ++part) {
        const Size count = parts.size(part);
        read_lists(parts.found, parts.begin(part), count, job.k, parts.results);
        for (Size row = 0; row < count; ++row) {
            if (row % 1024 == 0) CHECK_FOR_INTERRUPTS();
            const Edge* list = parts.results + row * job.k;
            uint32 there = 0;
            while (there < job.k && list[there].row != no_row) ++there;
            sink.put(sink.state, parts.begin(part) + row, list, there);
        }
    }
}

// Two parts of a size that a graph is worth making of, at least.
Size rows_on_device(const GraphJob& job, uint32 dims) {
    return std::max(job.maker.builder->most_rows(dims, job.options),
                    2 * std::max<Size>(512, 4 * Size{job.options.degree}));
}

void build_by_parts(const GraphJob& job, const GraphSet& set, bool exact, const EdgeSink& sink) {
    Parts parts = {};
    parts.job = &job;
    parts.set = &set;
    parts.exact = exact;
    parts.degree = exact ? job.k : job.options.degree;
    const Size room = std::min(rows_in_memory({job.options.degree, job.k, job.threads}, set.dims),
                               rows_on_device(job, set.dims));
    parts.count = (set.count + room / 2 - 1) / (room / 2);
    for (Size part = 0; part < parts.count; ++part)
        parts.most_rows = std::max(parts.most_rows, parts.size(part));
    parts.own = BufFileCreateTemp(false);
    parts.found = BufFileCreateTemp(false);
    parts.rows = static_cast<float*>(MemoryContextAllocHuge(
        CurrentMemoryContext, 2 * parts.most_rows * set.dims * sizeof(float)));
    parts.lists = alloc_lists(2 * parts.most_rows, parts.degree);
    parts.results = alloc_lists(parts.most_rows, job.k);

    const auto total = static_cast<int64>(parts.count * (parts.count + 1) / 2);
    int64 done = 0;
    report_graph_parts(0, total);
    for (Size part = 0; part < parts.count; ++part) {
        build_part(parts, part);
        report_graph_parts(++done, total);
    }
    for (Size first = 0; first < parts.count; ++first)
        for (Size second = first + 1; second < parts.count; ++second) {
            merge_parts(parts, first, second);
            report_graph_parts(++done, total);
        }
    put_found(parts, sink);
    BufFileClose(parts.own);
    BufFileClose(parts.found);
    pfree(parts.rows);
    pfree(parts.lists);
    pfree(parts.results);
}

}  // namespace

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
