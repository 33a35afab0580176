// Graphs of rows in memory, part by part. Threads of the devices copy the rows and lists of a merge
// to buffers of their lane, and take from there what was found.

#include "kernels/graph_builder_group.h"

#include <algorithm>
#include <limits>
#include <mutex>
#include <vector>

namespace pgwarp {

namespace {

class Making {
  public:
    explicit Making(const PartedGraph& graph)
        : graph_(graph), lanes_(graph.lanes), locks_(graph.parts) {
        for (size_t part = 0; part < graph.parts; ++part)
            most_rows_ = std::max(most_rows_, size(part));
        for (Lane& lane : lanes_) lane.making = this;
    }

    void run(GraphBuilderGroup& group, const std::function<void(size_t, size_t)>& progress) {
        const size_t parts = graph_.parts, total = parts * (parts + 1) / 2;
        // Declared last of what its threads use, so that it ends first.
        GraphTasks tasks(group);
        std::vector<size_t> idle(lanes_.size());
        for (size_t i = 0; i < idle.size(); ++i) idle[i] = i;
        size_t done = 0;
        const auto finish = [&] {
            idle.push_back(tasks.finish());
            if (progress) progress(++done, total);
        };
        const auto finish_all = [&] {
            while (idle.size() < lanes_.size()) finish();
        };
        const auto start = [&](size_t first, size_t second) {
            if (idle.empty()) finish();
            const size_t lane = idle.back();
            idle.pop_back();
            tasks.start(lane, task_of(lanes_[lane], first, second));
        };
        for (size_t part = 0; part < parts; ++part) start(part, part);
        finish_all();
        for (size_t second = 1; second < parts; ++second)
            for (size_t first = 0; first < second; ++first) start(first, second);
        finish_all();
    }

  private:
    struct Lane {
        Making* making;
        size_t first, second;
        // For two parts, once the lane merges:
        std::vector<float> rows;
        std::vector<Edge> lists;
    };

    size_t begin(size_t part) const { return graph_.rows.count * part / graph_.parts; }
    size_t size(size_t part) const { return begin(part + 1) - begin(part); }
    uint32_t degree() const { return graph_.options.degree; }
    Edge* own(size_t part) const { return graph_.own + begin(part) * degree(); }

    GraphTask task_of(Lane& lane, size_t first, size_t second) {
        lane.first = first;
        lane.second = second;
        GraphRows rows = graph_.rows;
        if (first == second) {
            // In place.
            rows.rows = graph_.rows.row(begin(first));
            rows.count = size(first);
            return {rows,
                    0,
                    is_small(rows.count),
                    graph_.options,
                    own(first),
                    nullptr,
                    [](void* state) {
                        const auto* built = static_cast<const Lane*>(state);
                        built->making->keep_built(built->first);
                    },
                    &lane};
        }
        if (lane.rows.empty()) {
            lane.rows.resize(2 * most_rows_ * rows.dims);
            lane.lists.resize(2 * most_rows_ * degree());
        }
        rows.rows = lane.rows.data();
        rows.count = size(first) + size(second);
        return {rows,
                size(first),
                is_small(rows.count),
                graph_.options,
                lane.lists.data(),
                [](void* state) {
                    auto* merging = static_cast<Lane*>(state);
                    merging->making->fill(*merging);
                },
                [](void* state) {
                    const auto* merged = static_cast<const Lane*>(state);
                    merged->making->keep_merged(*merged);
                },
                &lane};
    }
    static bool is_small(size_t count) { return count <= most_exact_part; }

    void keep_built(size_t part) const {
        const uint32_t k = graph_.options.neighbors;
        for (size_t row = 0; row < size(part); ++row)
            for (uint32_t i = 0; i < k; ++i) {
                Edge edge = own(part)[row * degree() + i];
                if (edge.row != no_row) edge.row += static_cast<uint32_t>(begin(part));
                graph_.found[(begin(part) + row) * k + i] = edge;
            }
    }

    // Rows and lists of both parts; rows of the second are numbered behind those of the first.
    void fill(Lane& lane) const {
        const uint32_t dims = graph_.rows.dims;
        const size_t border = size(lane.first);
        const auto copy = [&](size_t part, size_t to) {
            std::copy_n(graph_.rows.row(begin(part)), size(part) * dims,
                        lane.rows.data() + to * dims);
            std::transform(own(part), own(part) + size(part) * degree(),
                           lane.lists.data() + to * degree(), [to](Edge edge) {
                               if (edge.row != no_row) edge.row += static_cast<uint32_t>(to);
                               return edge;
                           });
        };
        copy(lane.first, 0);
        copy(lane.second, border);
    }

    // The neighbors across, in both directions. Others may merge the same parts with further ones.
    void keep_merged(const Lane& lane) {
        const uint32_t k = graph_.options.neighbors;
        const size_t border = size(lane.first);
        for (const bool of_second : {false, true}) {
            const size_t part = of_second ? lane.second : lane.first;
            const size_t other = of_second ? lane.first : lane.second;
            const std::lock_guard lock(locks_[part]);
            for (size_t row = 0; row < size(part); ++row) {
                const Edge* list = lane.lists.data() + ((of_second ? border : 0) + row) * degree();
                for (uint32_t i = 0; i < degree() && list[i].row != no_row; ++i) {
                    if ((list[i].row < border) != of_second) continue;
                    const Edge edge{list[i].distance,
                                    static_cast<uint32_t>(list[i].row - (of_second ? 0 : border) +
                                                          begin(other))};
                    add_edges(graph_.found + (begin(part) + row) * k, k, &edge, 1);
                }
            }
        }
    }

    const PartedGraph graph_;
    std::vector<Lane> lanes_;
    std::vector<std::mutex> locks_;  // of the found lists of each part
    size_t most_rows_ = 0;
};

}  // namespace

size_t parted_graph_memory(const PartedGraph& graph) {
    const size_t rows = 2 * (graph.rows.count / graph.parts + 1);
    return graph.lanes * rows *
           (graph.rows.dims * sizeof(float) + graph.options.degree * sizeof(Edge));
}

void make_parted_graph(GraphBuilderGroup& group, const PartedGraph& graph,
                       const std::function<void(size_t done, size_t total)>& progress) {
    Making(graph).run(group, progress);
}

}  // namespace pgwarp
