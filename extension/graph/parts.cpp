#include <algorithm>

#include "extension/graph/parts.h"
#include "extension/graph/progress.h"

extern "C" {
#include "utils/memutils.h"
}

namespace pgwarp {

namespace {

// Up to this many rows, comparing all pairs takes no longer than NN-Descent. The lists of a small
// part also hold few edges for a descent to follow, so that it would miss neighbors.
constexpr Size rows_for_exact = 8192;

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

}  // namespace

void read_found(const Parts& parts, Size part) {
    read_lists(parts.found, parts.begin(part), parts.size(part), parts.job->k, parts.results);
}

void write_found(const Parts& parts, Size part) {
    write_lists(parts.found, parts.begin(part), parts.size(part), parts.job->k, parts.results);
}

void build_part(const Parts& parts, Size part) {
    const GraphJob& job = *parts.job;
    const Size count = parts.size(part);
    read_spilled(*parts.set, parts.begin(part), count, parts.rows);
    const GraphRows rows{parts.rows, count, parts.set->dims, job.metric};
    run_graph_kernel([&] {
        if (parts.exact || count <= rows_for_exact)
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
    write_found(parts, part);
}

namespace {

// Adds the edges between the two parts to their found lists, in both directions. In parts.lists the
// rows of the second part are numbered behind those of the first.
void keep_found(const Parts& parts, Size first, Size second) {
    const GraphJob& job = *parts.job;
    const Size border = parts.size(first);
    for (const bool of_second : {false, true}) {
        const Size part = of_second ? second : first, other = of_second ? first : second;
        const Size count = parts.size(part);
        read_found(parts, part);
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
        write_found(parts, part);
    }
}

}  // namespace

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
        if (parts.exact || count <= rows_for_exact)
            job.maker.builder->exact_merge(rows, border, parts.degree, parts.lists);
        else
            job.maker.builder->merge(rows, border, job.options, parts.lists);
    });
    keep_found(parts, first, second);
}

void put_found(const Parts& parts, const EdgeSink& sink) {
    const GraphJob& job = *parts.job;
    report_graph_stage(GraphStage::writing, 0, 0);
    for (Size part = 0; part < parts.count; ++part) {
        const Size count = parts.size(part);
        read_found(parts, part);
        for (Size row = 0; row < count; ++row) {
            if (row % 1024 == 0) CHECK_FOR_INTERRUPTS();
            const Edge* list = parts.results + row * job.k;
            uint32 there = 0;
            while (there < job.k && list[there].row != no_row) ++there;
            sink.put(sink.state, parts.begin(part) + row, list, there);
        }
    }
}

Size rows_on_device(const GraphJob& job, uint32 dims) {
    return std::max(job.maker.builder->most_rows(dims, job.options),
                    2 * std::max<Size>(512, 4 * Size{job.options.degree}));
}

Parts open_parts(const GraphJob& job, const GraphSet& set, bool exact, Size border) {
    Parts parts = {};
    parts.job = &job;
    parts.set = &set;
    parts.exact = exact;
    parts.degree = exact ? job.k : job.options.degree;
    const Size room = std::min(rows_in_memory({job.options.degree, job.k, job.threads}, set.dims),
                               rows_on_device(job, set.dims));
    const Size counts[] = {(border + room / 2 - 1) / (room / 2),
                           (set.count - border + room / 2 - 1) / (room / 2)};
    parts.count = counts[0] + counts[1];
    parts.begins = static_cast<Size*>(palloc((parts.count + 1) * sizeof(Size)));
    Size* to = parts.begins;
    for (Size i = 0; i < counts[0]; ++i) *to++ = border * i / counts[0];
    for (Size i = 0; i < counts[1]; ++i) *to++ = border + (set.count - border) * i / counts[1];
    *to = set.count;
    for (Size part = 0; part < parts.count; ++part)
        parts.most_rows = std::max(parts.most_rows, parts.size(part));
    parts.own = BufFileCreateTemp(false);
    parts.found = BufFileCreateTemp(false);
    parts.rows = static_cast<float*>(MemoryContextAllocHuge(
        CurrentMemoryContext, std::max<Size>(2 * parts.most_rows * set.dims, 1) * sizeof(float)));
    parts.lists = alloc_lists(2 * parts.most_rows, parts.degree);
    parts.results = alloc_lists(parts.most_rows, job.k);
    return parts;
}

void close_parts(Parts* parts) {
    BufFileClose(parts->own);
    BufFileClose(parts->found);
    pfree(parts->begins);
    pfree(parts->rows);
    pfree(parts->lists);
    pfree(parts->results);
}

void build_by_parts(const GraphJob& job, const GraphSet& set, bool exact, const EdgeSink& sink) {
    Parts parts = open_parts(job, set, exact, 0);
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
    close_parts(&parts);
}

}  // namespace pgwarp
