#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <mutex>
#include <utility>
#include <vector>

#include "kernels/distance.h"
#include "kernels/workers.h"
#include "extension/graph/edge_scan.h"
#include "extension/graph/given.h"
#include "extension/graph/given_lists.h"
#include "extension/graph/metric.h"
#include "extension/graph/table.h"
#include "extension/util/prefetch.h"

extern "C" {
#include "utils/lsyscache.h"
#include "utils/memutils.h"
}

namespace pgwarp {

namespace {

template <typename T>
T* alloc_huge(Size count) {
    return static_cast<T*>(
        MemoryContextAllocHuge(CurrentMemoryContext, std::max<Size>(count, 1) * sizeof(T)));
}

// The inverse of edge_operator_distance(), to the bit: a square's root is the number itself.
float list_distance(Metric metric, float shown) {
    if (metric == Metric::l2) shown *= shown;
    return std::isinf(shown) && shown > 0 ? std::numeric_limits<float>::max() : shown;
}

// Puts edges into the lists, by threads, while the next ones are read.
class EdgePlacer {
  public:
    EdgePlacer(GivenLists* given, const GraphSet& set, const KeyedRow* sorted, TableEdges room,
               int threads)
        : given_(given),
          set_(set),
          sorted_(sorted),
          edges_(room),
          workers_(threads, query_interrupts()) {
        number_keys();
    }

    // Between two calls threads work on a copy of the edges.
    void place(const TableEdges& some) {
        end();
        std::copy_n(some.src, some.count, edges_.src);
        std::copy_n(some.rank, some.count, edges_.rank);
        std::copy_n(some.dst, some.count, edges_.dst);
        std::copy_n(some.distance, some.count, edges_.distance);
        edges_.count = some.count;
        begun_ = true;
        workers_.begin((edges_.count + task_edges - 1) / task_edges, [this](size_t task, int) {
            place_some(task * task_edges, std::min(edges_.count, (task + 1) * task_edges));
        });
    }

    void end() {
        if (begun_) workers_.end();
        begun_ = false;
    }

    int32 most_rank() const { return most_rank_; }
    bool gone_fit() const { return gone_fit_; }

  private:
    static constexpr Size task_edges = 1024;

    // A search for each edge's neighbor would take longer than reading the edge. Keys that a
    // sequence gave out are looked up by their distance from the first one.
    void number_keys() {
        if (set_.count == 0) return;
        first_key_ = static_cast<uint64>(sorted_[0].key);
        const uint64 range = static_cast<uint64>(sorted_[set_.count - 1].key) - first_key_;
        if (range >= 4 * set_.count) return;
        numbers_.assign(range + 1, no_row);
        for (Size i = 0; i < set_.count; ++i)
            numbers_[static_cast<uint64>(sorted_[i].key) - first_key_] = sorted_[i].row;
    }

    uint32 find(int64 key) const {
        if (numbers_.empty()) return find_key(sorted_, set_.count, key);
        const uint64 place = static_cast<uint64>(key) - first_key_;
        return place < numbers_.size() ? numbers_[place] : no_row;
    }

    void place_some(Size begin, Size end) {
        const uint32 k = given_->k;
        uint32 src = no_row;
        int32 most = 0;
        for (Size i = begin; i < end; ++i) {
            // The edges of a source follow each other, for the most part.
            if (i == begin || edges_.src[i] != edges_.src[i - 1]) {
                src = find(edges_.src[i]);
                if (src == no_row) remember_gone(edges_.src[i]);
            }
            const int32 rank = edges_.rank[i];
            most = std::max(most, rank);
            if (src == no_row) continue;
            std::atomic_ref(given_->lengths[src]).fetch_add(1, std::memory_order_relaxed);
            if (rank < 1 || static_cast<uint32>(rank) > k) continue;
            const uint32 dst = find(edges_.dst[i]);
            if (dst == no_row || dst == src) continue;
            given_->lists[Size{src} * k + static_cast<Size>(rank - 1)] = {
                list_distance(set_.metric, edges_.distance[i]), dst};
        }
        const std::lock_guard lock(mutex_);
        most_rank_ = std::max(most_rank_, most);
    }

    void remember_gone(int64 key) {
        const std::lock_guard lock(mutex_);
        gone_fit_ = gone_fit_ && given_->gone->object->add(key);
    }

    GivenLists* given_;
    const GraphSet& set_;
    const KeyedRow* sorted_;
    TableEdges edges_;
    uint64 first_key_ = 0;
    std::vector<uint32> numbers_;  // (keys of the range): rows, or no_row; empty: keys are sparse
    std::mutex mutex_;
    int32 most_rank_ = 0;
    bool gone_fit_ = true;
    bool begun_ = false;
    Workers workers_;  // last: its threads end first
};

void read_lists(const GraphJob& job, Oid graph, const GraphSet& set, const KeyedRow* sorted,
                GivenLists* given) {
    const TableEdges room = new_growing_edges(edges_of_scan).edges;
    Owned<EdgePlacer>* placer = owned_by<EdgePlacer>(CurrentMemoryContext);
    guarded([&] { placer->object = new EdgePlacer(given, set, sorted, room, job.threads); });
    const EdgeUse use = {[](void* state, const TableEdges& some) {
                             auto* to = static_cast<EdgePlacer*>(state);
                             run_graph_kernel([&] { to->place(some); });
                         },
                         placer->object};
    scan_graph_table(graph, set.names, use);
    run_graph_kernel([&] { placer->object->end(); });
    given->neighbors = static_cast<uint32>(placer->object->most_rank());
    finish_gone(given->gone, placer->object->gone_fit(), graph);
    guarded([&] { delete std::exchange(placer->object, nullptr); });
}

// Which lists are whole. A vector that has changed shows in the distances to the row's first and
// last neighbor; where it has, all edges to this row are looked at.
class ListCheck {
  public:
    ListCheck(const GivenLists& given, const GraphSet& set, Size least)
        : given_(given), set_(set), least_(least) {}

    void check_ends(Size begin, Size end, DistanceCheck* looked) const {
        for (Size row = begin; row < end; ++row) {
            if (row + ahead < end) prefetch_ends(row + ahead);
            const uint32 length = length_of(row);
            given_.whole[row] = in_order(row) && length > 0 && length >= least_;
            for (const uint32 i : {uint32{0}, length - 1}) {
                if (length == 0 || list(row)[i].row == no_row) continue;
                ++looked->edges;
                const Found found = look_at(row, i);
                if (found != Found::exact) given_.lengths[row] = given_.k + 1;
                if (found != Found::other) continue;
                ++looked->others;
                given_.whole[row] = false;
            }
        }
    }

    // Of rows whose ends are right: edges to rows that are not whole, by check_ends().
    bool check_between(Size row) const {
        for (uint32 i = 1; i + 1 < length_of(row); ++i)
            if (!given_.whole[list(row)[i].row] && look_at(row, i) == Found::other) return false;
        return true;
    }

  private:
    static constexpr Size ahead = 4;

    const Edge* list(Size row) const { return given_.lists + row * given_.k; }
    uint32 length_of(Size row) const { return std::min(given_.lengths[row], given_.k); }

    bool in_order(Size row) const {
        const Edge* edges = list(row);
        for (uint32 i = 0; i < length_of(row); ++i) {
            if (edges[i].row == no_row) return false;
            if (i > 0 &&
                (!(edges[i - 1].distance <= edges[i].distance) || edges[i - 1].row == edges[i].row))
                return false;
        }
        return true;
    }

    // What an edge's distance is by the vectors: the same, about the same, or that of others.
    enum class Found { exact, about, other };
    Found look_at(Size row, uint32 i) const {
        const Edge& edge = list(row)[i];
        const float is = edge_operator_distance(
            set_.metric, vector_distance(set_, static_cast<uint32>(row), edge.row));
        const float was = edge_operator_distance(set_.metric, edge.distance);
        if (!about_equal(is, was)) return Found::other;
        const float norms = set_.metric == Metric::inner_product ? norm(row) * norm(edge.row) : 0;
        return std::fabs(is - was) <= rounding_of(set_, is, norms) ? Found::exact : Found::about;
    }
    float norm(Size row) const {
        return static_cast<float>(std::sqrt(squared_norm(set_.rows + row * set_.dims, set_.dims)));
    }

    void prefetch_ends(Size row) const {
        const uint32 length = length_of(row);
        if (length == 0) return;
        for (const uint32 i : {uint32{0}, length - 1}) {
            const uint32 dst = list(row)[i].row;
            if (dst == no_row) continue;
            prefetch_lines(set_.rows + Size{dst} * set_.dims, set_.dims * sizeof(float));
        }
    }

    const GivenLists& given_;
    const GraphSet& set_;
    const Size least_;
};

void check_lists(const GraphJob& job, const GraphSet& set, Oid graph, GivenLists* given) {
    constexpr Size task_rows = 4096;
    const auto sources = static_cast<Size>(std::count_if(given->lengths, given->lengths + set.count,
                                                         [](uint32 length) { return length > 0; }));
    const ListCheck check(*given, set, std::min<Size>(given->k, std::max<Size>(sources, 1) - 1));
    const Size tasks = (set.count + task_rows - 1) / task_rows;
    auto* looked = alloc_huge<DistanceCheck>(tasks);
    bool* whole = alloc_huge<bool>(set.count);
    run_graph_kernel([&] {
        Workers workers(job.threads, query_interrupts());
        const auto for_rows = [&](const auto& use) {
            workers.run(tasks, [&](size_t task, int) {
                use(task, task * task_rows, std::min(set.count, (task + 1) * task_rows));
            });
        };
        for_rows([&](size_t task, Size begin, Size end) {
            looked[task] = {};
            check.check_ends(begin, end, &looked[task]);
        });
        for_rows([&](size_t, Size begin, Size end) {
            for (Size row = begin; row < end; ++row)
                whole[row] = given->whole[row] && check.check_between(row);
        });
    });
    pfree(given->whole);
    given->whole = whole;
    DistanceCheck all = {};
    for (Size task = 0; task < tasks; ++task) {
        all.edges += looked[task].edges;
        all.others += looked[task].others;
    }
    pfree(looked);
    check_distances(graph, all);
}

}  // namespace

float vector_distance(const GraphSet& set, uint32 a, uint32 b) {
    return finite_distance(set.metric, set.rows + Size{a} * set.dims, set.rows + Size{b} * set.dims,
                           set.dims);
}

float rounding_of(const GraphSet& set, float distance, float norms) {
    const float part = static_cast<float>(8 + set.dims) * 0x1p-23f;
    return part * (set.metric == Metric::inner_product ? norms : std::fabs(distance));
}

GivenLists read_given_lists(const GraphJob& job, Oid graph, const GraphSet& set,
                            const KeyedRow* sorted) {
    GivenLists given = {job.k,
                        alloc_lists(set.count, job.k),
                        alloc_huge<uint32>(set.count),
                        alloc_huge<bool>(set.count),
                        0,
                        new_gone()};
    std::fill_n(given.lengths, set.count, 0);
    read_lists(job, graph, set, sorted, &given);
    check_lists(job, set, graph, &given);
    return given;
}

void free_given_lists(GivenLists* given) {
    pfree(given->lists);
    pfree(given->lengths);
    pfree(given->whole);
    guarded([&] { delete std::exchange(given->gone->object, nullptr); });
    *given = {};
}

Size order_by_whole(GivenLists* given, GraphSet* set, KeyedRow* sorted) {
    uint32* moved = alloc_huge<uint32>(set->count);
    for (Size row = 0; row < set->count; ++row) moved[row] = static_cast<uint32>(row);
    Size border = 0, end = set->count;
    bool any = false;
    while (true) {
        while (border < end && given->whole[border]) ++border;
        while (border < end && !given->whole[end - 1]) --end;
        if (border == end) break;
        any = true;
        const Size last = end - 1;
        std::swap(given->whole[border], given->whole[last]);
        std::swap(given->lengths[border], given->lengths[last]);
        std::swap_ranges(given->lists + border * given->k, given->lists + (border + 1) * given->k,
                         given->lists + last * given->k);
        std::swap(set->keys[border], set->keys[last]);
        std::swap_ranges(set->rows + border * set->dims, set->rows + (border + 1) * set->dims,
                         set->rows + last * set->dims);
        moved[border] = static_cast<uint32>(last);
        moved[last] = static_cast<uint32>(border);
    }
    for (Size i = 0; any && i < set->count; ++i) sorted[i].row = moved[sorted[i].row];
    for (Size i = 0; any && i < set->count * given->k; ++i)
        if (given->lists[i].row != no_row) given->lists[i].row = moved[given->lists[i].row];
    pfree(moved);
    return border;
}

Owned<NodeNumbers>* new_gone() {
    const Size most = graph_memory() / NodeNumbers::node_bytes;
    Owned<NodeNumbers>* gone = owned_by<NodeNumbers>(CurrentMemoryContext);
    guarded([&] { gone->object = new NodeNumbers(most); });
    return gone;
}

void finish_gone(Owned<NodeNumbers>* gone, bool fits, Oid graph) {
    guarded([&] { fits = fits && gone->object->finish(); });
    if (fits) return;
    ereport(ERROR, (errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
                    errmsg("graph \"%s\" has more than %zu nodes that are no rows of the table",
                           get_rel_name(graph), graph_memory() / NodeNumbers::node_bytes),
                    errhint("Increase maintenance_work_mem, or make the graph anew.")));
}

}  // namespace pgwarp
