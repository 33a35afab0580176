// The descent of a layout (section 3.2 and algorithm 5 of the paper): a link pulls its two nodes
// together as often as its weight says, and pushes them away from nodes drawn at random.
//
// The paper moves both nodes of a link at once, link by link. Here each node goes through its own
// links and moves itself only, against the positions that all others had before the epoch. No
// thread writes what another reads, and no order of threads shows in the result.

#include "kernels/cpu/layout_forces.h"
#include "kernels/graph_layout.h"
#include "kernels/random.h"

#include <algorithm>
#include <array>

namespace pgwarp {

namespace {

constexpr size_t nodes_a_task = 1024;

struct Descent {
    const FuzzyGraph& graph;
    LayoutCurve curve;
    float share;  // of a weight of 1: the greatest weight pulls in every epoch
    uint64_t seed;
    uint32_t epoch;
    float rate;
    const LayoutPoint* from;  // (nodes): before the epoch

    // Every link is due in its share of the epochs, evenly.
    bool is_due(float weight) const {
        const float often = weight * share;
        return static_cast<int32_t>(often * static_cast<float>(epoch + 1)) !=
               static_cast<int32_t>(often * static_cast<float>(epoch));
    }
};

// An epoch of a task's nodes. Those of about as many due links move side by side. One for each
// thread.
class TaskDescent {
  public:
    void move(const Descent& descent, size_t begin, size_t end, LayoutPoint* to) {
        collect(descent, begin, end);
        sort_nodes(end - begin);
        Random random(Random(descent.seed ^ (uint64_t{descent.epoch} << 32 | begin)).next());
        pool_.fill([&] { return descent.from[random.below(descent.graph.count())]; });
        for (size_t first = 0; first < end - begin; first += layout_lanes)
            move_some(descent, begin, first, std::min(end - begin, first + layout_lanes), to);
    }

  private:
    size_t steps_of(size_t i) const { return begins_[i + 1] - begins_[i]; }

    void collect(const Descent& descent, size_t begin, size_t end) {
        due_.resize(static_cast<size_t>(descent.graph.end(end - 1) - descent.graph.begin(begin)));
        size_t count = 0;
        const FuzzyLink* link = descent.graph.begin(begin);
        for (size_t node = begin; node < end; ++node) {
            begins_[node - begin] = count;
            // Without branches: which way they go is chance.
            for (; link < descent.graph.end(node); ++link) {
                due_[count] = link->to;
                count += descent.is_due(link->weight);
            }
        }
        begins_[end - begin] = count;
    }

    void sort_nodes(size_t count) {
        constexpr size_t kinds = 256;  // the last: that many steps, or more
        const auto kind_of = [&](size_t i) { return std::min(steps_of(i), kinds - 1); };
        std::array<uint32_t, kinds + 1> next = {};
        for (size_t i = 0; i < count; ++i) ++next[kind_of(i) + 1];
        for (size_t kind = 0; kind < kinds; ++kind) next[kind + 1] += next[kind];
        for (size_t i = 0; i < count; ++i) order_[next[kind_of(i)]++] = static_cast<uint32_t>(i);
    }

    // Nodes order_[first] to order_[last] of the task.
    void move_some(const Descent& descent, size_t begin, size_t first, size_t last,
                   LayoutPoint* to) {
        LayoutGroup group = {};
        size_t most = 0;
        for (size_t i = first; i < last; ++i) most = std::max(most, steps_of(order_[i]));
        if (pulls_.size() < most + 1) pulls_.resize(most + 1);
        group.pulls = pulls_.data();
        for (size_t i = first; i < last; ++i) {
            const size_t lane = i - first, steps = steps_of(order_[i]);
            const auto set = [lane](LanePoints& points, const LayoutPoint& point) {
                points.x[lane] = point.x;
                points.y[lane] = point.y;
            };
            set(group.points, descent.from[begin + order_[i]]);
            group.steps[lane] = static_cast<int32_t>(steps);
            const uint32_t* due = due_.data() + begins_[order_[i]];
            for (size_t step = 0; step < steps; ++step) set(pulls_[step], descent.from[due[step]]);
            if (steps > 0) set(pulls_[steps], descent.from[due[0]]);
        }
        move_group(descent.curve, descent.rate, pool_, group);
        for (size_t i = first; i < last; ++i)
            to[begin + order_[i]] = {group.points.x[i - first], group.points.y[i - first]};
    }

    std::vector<uint32_t> due_;  // ends of due links, node by node
    std::array<size_t, nodes_a_task + 1> begins_;
    std::array<uint32_t, nodes_a_task> order_;  // of nodes, by their steps
    std::vector<LanePoints> pulls_;
    PushPool pool_;
};

float greatest_weight(const FuzzyGraph& graph) {
    float greatest = 0;
    for (size_t node = 0; node < graph.count(); ++node)
        for (const FuzzyLink* link = graph.begin(node); link < graph.end(node); ++link)
            greatest = std::max(greatest, link->weight);
    return greatest;
}

}  // namespace

void optimize_layout(Workers& workers, const FuzzyGraph& graph, const LayoutOptions& options,
                     std::vector<LayoutPoint>& points, const Interrupts& interrupts) {
    const size_t count = graph.count();
    const float greatest = greatest_weight(graph);
    if (greatest == 0) return;
    const LayoutCurve curve = fit_layout_curve(options.min_dist, options.spread);
    const uint32_t epochs = options.epochs ? options.epochs : LayoutOptions::default_epochs(count);
    std::vector<LayoutPoint> next(count);
    std::vector<TaskDescent> descents(static_cast<size_t>(workers.threads()));
    for (uint32_t epoch = 0; epoch < epochs; ++epoch) {
        interrupts.check();
        const float rate = 1 - static_cast<float>(epoch) / static_cast<float>(epochs);
        const Descent descent = {graph, curve, 1 / greatest, options.seed,
                                 epoch, rate,  points.data()};
        workers.run((count + nodes_a_task - 1) / nodes_a_task, [&](size_t task, int thread) {
            descents[static_cast<size_t>(thread)].move(descent, task * nodes_a_task,
                                                       std::min(count, (task + 1) * nodes_a_task),
                                                       next.data());
        });
        points.swap(next);
    }
}

std::vector<LayoutPoint> layout(Workers& workers, const FuzzyGraph& graph,
                                const LayoutOptions& options, const Interrupts& interrupts) {
    std::vector<LayoutPoint> points = spectral_layout(workers, graph, options.seed, interrupts);
    optimize_layout(workers, graph, options, points, interrupts);
    return points;
}

}  // namespace pgwarp
