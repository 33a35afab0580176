#include <algorithm>

#include "extension/graph/parts.h"
#include "extension/graph/progress.h"

extern "C" {
#include "miscadmin.h"
#include "utils/memutils.h"
}

namespace pgwarp {

namespace {

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

namespace {

// --- one part, or two, in the buffers of a lane

void keep_built(const Parts& parts, const PartLane& lane) {
    const Size part = lane.first, count = parts.size(part);
    const uint32 k = parts.job->k;
    write_lists(parts.own, parts.begin(part), count, parts.degree, lane.lists);
    for (Size row = 0; row < count; ++row)
        for (uint32 i = 0; i < k; ++i) {
            Edge edge = lane.lists[row * parts.degree + i];
            if (edge.row != no_row) edge.row += static_cast<uint32>(parts.begin(part));
            parts.results[row * k + i] = edge;
        }
    write_found(parts, part);
}

// Adds the edges between the two parts to their found lists, in both directions. In the lane's
// lists the rows of the second part are numbered behind those of the first.
void keep_found(const Parts& parts, const PartLane& lane) {
    const uint32 k = parts.job->k;
    const Size border = parts.size(lane.first);
    for (const bool of_second : {false, true}) {
        const Size part = of_second ? lane.second : lane.first;
        const Size other = of_second ? lane.first : lane.second;
        const Size count = parts.size(part);
        read_found(parts, part);
        for (Size row = 0; row < count; ++row) {
            const Edge* list = lane.lists + ((of_second ? border : 0) + row) * parts.degree;
            for (uint32 i = 0; i < parts.degree && list[i].row != no_row; ++i) {
                if ((list[i].row < border) != of_second) continue;
                const Edge edge{list[i].distance,
                                static_cast<uint32>(list[i].row - (of_second ? 0 : border) +
                                                    parts.begin(other))};
                add_edges(parts.results + row * k, k, &edge, 1);
            }
        }
        write_found(parts, part);
    }
}

// --- lanes

void keep_lane(Parts* parts, PartLane* lane) {
    lane->busy = false;
    if (lane->first == lane->second) {
        keep_built(*parts, *lane);
        parts->built[lane->first] = true;
    } else {
        keep_found(*parts, *lane);
    }
    report_graph_parts(++parts->done, parts->total);
}

// Waits for one of the lanes that are busy.
void finish_lane(Parts* parts) {
    Size number = 0;
    report_graph_stage(GraphStage::descent, 0, 0);
    run_graph_kernel([&] { number = parts->tasks->object->finish(); });
    keep_lane(parts, &parts->lanes[number]);
}

void alloc_lane(const Parts& parts, PartLane* lane) {
    const MemoryContext before = MemoryContextSwitchTo(parts.context);
    lane->rows = static_cast<float*>(MemoryContextAllocHuge(
        parts.context, std::max<Size>(2 * parts.most_rows * parts.set->dims, 1) * sizeof(float)));
    lane->lists = alloc_lists(2 * parts.most_rows, parts.degree);
    MemoryContextSwitchTo(before);
}

// A lane that is not busy. Waits for one where all are.
PartLane* take_lane(Parts* parts) {
    while (true) {
        for (Size i = 0; i < parts->lane_count; ++i) {
            PartLane* lane = &parts->lanes[i];
            if (lane->busy) continue;
            if (!lane->rows) alloc_lane(*parts, lane);
            return lane;
        }
        finish_lane(parts);
    }
}

// Makes the graph of `count` rows in a lane; the first `border` of them are the first part.
void run_lane(Parts* parts, PartLane* lane, Size count, Size border) {
    const GraphJob& job = *parts->job;
    GraphTask task{{lane->rows, count, parts->set->dims, job.metric},
                   border,
                   parts->exact || count <= most_exact_part,
                   job.options,
                   lane->lists};
    task.options.degree = parts->degree;
    if (parts->lane_count == 1) {
        run_graph_kernel([&] { run_graph_task(*job.maker.builder, task); });
        return keep_lane(parts, lane);
    }
    // Ends before the memory of its tasks, which is of the same context.
    if (!parts->tasks) parts->tasks = owned_by<GraphTasks>(parts->context);
    guarded([&] {
        // After an error of this session, tasks end as they do when the query is cancelled.
        if (!parts->tasks->object)
            parts->tasks->object = new GraphTasks(*job.maker.group, &QueryCancelPending);
        parts->tasks->object->start(static_cast<size_t>(lane - parts->lanes), task);
    });
    lane->busy = true;
}

}  // namespace

void expect_parts(Parts* parts, Size total) {
    parts->done = 0;
    parts->total = static_cast<int64>(total);
    report_graph_parts(0, parts->total);
}

void build_part(Parts* parts, Size part) {
    PartLane* lane = take_lane(parts);
    lane->first = lane->second = part;
    read_spilled(*parts->set, parts->begin(part), parts->size(part), lane->rows);
    run_lane(parts, lane, parts->size(part), 0);
}

void merge_parts(Parts* parts, Size first, Size second) {
    while (!parts->built[first] || !parts->built[second]) finish_lane(parts);
    PartLane* lane = take_lane(parts);
    lane->first = first;
    lane->second = second;
    const Size border = parts->size(first), count = border + parts->size(second);
    read_spilled(*parts->set, parts->begin(first), border, lane->rows);
    read_spilled(*parts->set, parts->begin(second), count - border,
                 lane->rows + border * parts->set->dims);
    read_lists(parts->own, parts->begin(first), border, parts->degree, lane->lists);
    Edge* second_lists = lane->lists + border * parts->degree;
    read_lists(parts->own, parts->begin(second), count - border, parts->degree, second_lists);
    for (Size i = 0; i < (count - border) * parts->degree; ++i)
        if (second_lists[i].row != no_row) second_lists[i].row += static_cast<uint32>(border);
    run_lane(parts, lane, count, border);
}

void finish_parts(Parts* parts) {
    for (Size i = 0; i < parts->lane_count; ++i)
        while (parts->lanes[i].busy) finish_lane(parts);
}

void put_found(const Parts& parts, const EdgeSink& sink) {
    const GraphJob& job = *parts.job;
    report_graph_stage(GraphStage::writing, 0, 0);
    sink.expect(sink.state, parts.set->count * job.k);
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
    sink.expect(sink.state, 0);
}

Size rows_on_device(const GraphJob& job, uint32 dims) {
    return rows_on_device(*job.maker.builder, dims, job.options);
}

namespace {

// How a set is cut into parts.
struct Cut {
    Size lanes;
    Size first, second;  // parts before the border, and behind it
};

Cut cut_for(const GraphJob& job, const GraphSet& set, Size border, Size lanes) {
    const Size room =
        std::min(rows_in_memory({job.options.degree, job.k, job.threads, lanes}, set.dims),
                 rows_on_device(job, set.dims));
    return {lanes, (border + room / 2 - 1) / (room / 2),
            (set.count - border + room / 2 - 1) / (room / 2)};
}

// How long parts and merges take, relative to one descent over all rows. The merge of two parts
// takes half of a descent over both: as long as the graph of one part. Meanwhile this process
// reads and writes files, for one lane at a time: on devices that may well take longer.
double time_of(const Cut& cut) {
    // Reading and writing a part, relative to making its graph.
    constexpr double files = 0.25;
    const Size count = std::max<Size>(cut.first + cut.second, 1);
    const Size merges = count * (count - 1) / 2;
    const auto turns = [&cut](Size tasks) { return (tasks + cut.lanes - 1) / cut.lanes; };
    return (static_cast<double>(turns(count) + turns(merges)) +
            files * static_cast<double>(count + merges)) /
           static_cast<double>(count);
}

// Each lane has two parts in memory. Where that makes parts smaller, there are more merges.
Cut choose_cut(const GraphJob& job, const GraphSet& set, bool exact, Size border) {
    // More lanes must be this much faster by an estimate that is rough.
    constexpr double worth_it = 0.85;
    Cut best = cut_for(job, set, border, 1);
    // All devices work together on an exact graph.
    if (exact || !job.maker.group) return best;
    const Size most = std::min<Size>(job.maker.group->devices(), Parts::most_lanes);
    for (Size lanes = 2; lanes <= most; ++lanes) {
        const Cut cut = cut_for(job, set, border, lanes);
        if (time_of(cut) < worth_it * time_of(best)) best = cut;
    }
    return best;
}

}  // namespace

Parts open_parts(const GraphJob& job, const GraphSet& set, bool exact, Size border) {
    Parts parts = {};
    parts.job = &job;
    parts.set = &set;
    parts.exact = exact;
    parts.degree = exact ? job.k : job.options.degree;
    parts.context = CurrentMemoryContext;
    const Cut cut = choose_cut(job, set, exact, border);
    parts.lane_count = cut.lanes;
    parts.count = cut.first + cut.second;
    parts.begins = static_cast<Size*>(palloc((parts.count + 1) * sizeof(Size)));
    parts.built = static_cast<bool*>(palloc0(std::max<Size>(parts.count, 1)));
    Size* to = parts.begins;
    for (Size i = 0; i < cut.first; ++i) *to++ = border * i / cut.first;
    for (Size i = 0; i < cut.second; ++i) *to++ = border + (set.count - border) * i / cut.second;
    *to = set.count;
    for (Size part = 0; part < parts.count; ++part)
        parts.most_rows = std::max(parts.most_rows, parts.size(part));
    parts.own = BufFileCreateTemp(false);
    parts.found = BufFileCreateTemp(false);
    alloc_lane(parts, &parts.lanes[0]);
    parts.rows = parts.lanes[0].rows;
    parts.lists = parts.lanes[0].lists;
    parts.results = alloc_lists(parts.most_rows, job.k);
    ereport(DEBUG1,
            (errmsg_internal("graph in %zu parts, %zu at a time", parts.count, parts.lane_count)));
    return parts;
}

void close_parts(Parts* parts) {
    if (parts->tasks) {
        delete parts->tasks->object;
        parts->tasks->object = nullptr;
    }
    BufFileClose(parts->own);
    BufFileClose(parts->found);
    pfree(parts->begins);
    pfree(parts->built);
    for (Size i = 0; i < parts->lane_count; ++i) {
        if (!parts->lanes[i].rows) continue;
        pfree(parts->lanes[i].rows);
        pfree(parts->lanes[i].lists);
    }
    pfree(parts->results);
}

namespace {

// In memory, if several devices work at once there; null: it has no room for that.
bool cut_in_memory(const GraphJob& job, const GraphSet& set, PartedGraph* graph) {
    if (!job.maker.group) return false;
    const Size memory = static_cast<Size>(maintenance_work_mem) * 1024;
    const Size each =
        set.dims * sizeof(float) + (job.options.degree + job.k) * sizeof(Edge) + sizeof(int64);
    const Cut cut = cut_for(job, set, 0, 1);
    *graph = {
        {set.rows, set.count, set.dims, job.metric}, job.options, cut.second, 0, nullptr, nullptr};
    graph->options.neighbors = job.k;
    // The CPU may have to make one at a time.
    const Size cpu =
        descent_memory(2 * (set.count / cut.second + 1), set.dims, job.options, job.threads);
    for (Size lanes = std::min<Size>(job.maker.group->devices(), Parts::most_lanes); lanes > 1;
         --lanes) {
        graph->lanes = lanes;
        if (set.count * each + parted_graph_memory(*graph) + cpu <= memory) return true;
    }
    return false;
}

}  // namespace

bool build_parts_in_memory(const GraphJob& job, const GraphSet& set, const EdgeSink& sink) {
    PartedGraph graph;
    if (!cut_in_memory(job, set, &graph)) return false;
    ereport(DEBUG1, (errmsg_internal("graph in %zu parts, %zu at a time, in memory", graph.parts,
                                     graph.lanes)));
    graph.own = alloc_lists(set.count, job.options.degree);
    graph.found = alloc_lists(set.count, job.k);
    report_graph_stage(GraphStage::descent, 0, 0);
    run_graph_kernel([&] {
        make_parted_graph(*job.maker.group, graph, [](size_t done, size_t total) {
            report_graph_parts(static_cast<int64>(done), static_cast<int64>(total));
        });
    });
    pfree(graph.own);
    put_lists(job, graph.found, set.count, job.k, sink);
    pfree(graph.found);
    return true;
}

void build_by_parts(const GraphJob& job, const GraphSet& set, bool exact, const EdgeSink& sink) {
    Parts parts = open_parts(job, set, exact, 0);
    expect_parts(&parts, parts.count * (parts.count + 1) / 2);
    for (Size part = 0; part < parts.count; ++part) build_part(&parts, part);
    for (Size second = 1; second < parts.count; ++second)
        for (Size first = 0; first < second; ++first) merge_parts(&parts, first, second);
    finish_parts(&parts);
    put_found(parts, sink);
    close_parts(&parts);
}

}  // namespace pgwarp
