// The descent of a layout (section 3.2 and algorithm 5 of the paper): a link pulls its two nodes
// together as often as its weight says, and pushes them away from nodes drawn at random.
//
// The paper moves both nodes of a link at once, link by link. Here each node goes through its own
// links and moves itself only, against the positions that all others had before the epoch. No
// thread writes what another reads, and no order of threads shows in the result.

#include "kernels/graph_layout.h"
#include "kernels/random.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace pgwarp {

namespace {

constexpr size_t nodes_a_task = 1024;
constexpr int pushes = 5;           // nodes drawn for each pull
constexpr float most_step = 4;      // of a coordinate, before the rate
constexpr float softening = 1e-3f;  // bounds the push between nodes that almost coincide

// The pulls and pushes of a step, side by side in vectors of the compiler's: one after the other,
// each would wait for the position that the one before it left.
using Floats = float __attribute__((vector_size(16)));
using Ints = int32_t __attribute__((vector_size(16)));
constexpr int lanes = 4;
constexpr int pulls = 2;  // the first two lanes; then come the pushes
static_assert(pulls + pushes < 2 * lanes, "the last lane does nothing");

inline Floats all(float value) {
    return Floats{} + value;
}
inline Floats greater(Floats a, Floats b) {
    return a > b ? a : b;
}
inline Floats lesser(Floats a, Floats b) {
    return a < b ? a : b;
}
inline float sum(Floats values) {
    return (values[0] + values[1]) + (values[2] + values[3]);
}

// x^exponent for x > 0, with a relative error of about 1e-3: a step of the descent needs no more.
inline Floats fast_power(Floats x, float exponent) {
    const auto bits = std::bit_cast<Ints>(x);
    const auto m = std::bit_cast<Floats>((bits & 0x7fffff) | 0x3f800000);
    const Floats log =
        __builtin_convertvector((bits >> 23) - 127, Floats) +
        (-2.5056147f + m * (4.0496169f + m * (-2.0994023f + m * (0.6355111f - m * 0.0800109f))));
    const Floats scaled = lesser(greater(log * exponent + 127, all(1)), all(254));
    const Ints whole = __builtin_convertvector(scaled, Ints);
    const Floats f = scaled - __builtin_convertvector(whole, Floats);
    return (0.9998967f + f * (0.6963906f + f * (0.2245163f + f * 0.0790857f))) *
           std::bit_cast<Floats>(whole << 23);
}

inline Floats bounded(Floats step) {
    return lesser(greater(step, all(-most_step)), all(most_step));
}

// With p = d^(2b), a pull is -2ab p / (d^2 (1 + a p)) times the difference, a push is
// 2b / ((softening + d^2) (1 + a p)): one formula, with constants by lane.
struct Forces {
    float a, b;
    Floats by_power[2], constant[2], soft[2];

    explicit Forces(const LayoutCurve& curve)
        : a(static_cast<float>(curve.a)),
          b(static_cast<float>(curve.b)),
          by_power{{-2 * a * b, -2 * a * b, 0, 0}, {}},
          constant{{0, 0, 2 * b, 2 * b}, {2 * b, 2 * b, 2 * b, 0}},
          soft{{0, 0, softening, softening}, {softening, softening, softening, softening}} {}

    // Moves a point by its differences from eight others. No difference: no move.
    void apply(LayoutPoint& own, const LayoutPoint (&others)[2 * lanes], float rate) const {
        Floats steps_x = {}, steps_y = {};
        for (int half = 0; half < 2; ++half) {
            const LayoutPoint* o = others + half * lanes;
            const Floats x = own.x - Floats{o[0].x, o[1].x, o[2].x, o[3].x};
            const Floats y = own.y - Floats{o[0].y, o[1].y, o[2].y, o[3].y};
            const Floats square = greater(x * x + y * y, all(1e-20f));
            const Floats power = fast_power(square, b);
            const Floats force = (by_power[half] * power + constant[half]) /
                                 ((soft[half] + square) * (1 + a * power));
            steps_x += bounded(force * x);
            steps_y += bounded(force * y);
        }
        own.x += rate * sum(steps_x);
        own.y += rate * sum(steps_y);
    }
};

struct Descent {
    const FuzzyGraph& graph;
    const Forces& forces;
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

    // Where a node goes. `due`: scratch.
    LayoutPoint moved(size_t node, std::vector<LayoutPoint>& due) const {
        due.clear();
        for (const FuzzyLink* link = graph.begin(node); link < graph.end(node); ++link)
            if (is_due(link->weight)) due.push_back(from[link->to]);
        LayoutPoint own = from[node];
        Random random(Random(seed ^ (uint64_t{epoch} << 32 | node)).next());
        const auto drawn = [&] { return from[random.below(graph.count())]; };
        for (size_t i = 0; i < due.size(); ++i) {
            // Each link pulls twice: the node at its other end has it, too, and moves both.
            const LayoutPoint others[2 * lanes] = {
                due[i], due[due.size() - 1 - i], drawn(), drawn(), drawn(), drawn(), drawn(), own};
            forces.apply(own, others, rate);
        }
        return own;
    }
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
    const Forces forces(fit_layout_curve(options.min_dist, options.spread));
    std::vector<LayoutPoint> next(count);
    std::vector<std::vector<LayoutPoint>> scratch(static_cast<size_t>(workers.threads()));
    for (uint32_t epoch = 0; epoch < options.epochs; ++epoch) {
        interrupts.check();
        const float rate = 1 - static_cast<float>(epoch) / static_cast<float>(options.epochs);
        const Descent descent = {graph, forces, 1 / greatest, options.seed,
                                 epoch, rate,   points.data()};
        workers.run((count + nodes_a_task - 1) / nodes_a_task, [&](size_t task, int thread) {
            const size_t end = std::min(count, (task + 1) * nodes_a_task);
            for (size_t node = task * nodes_a_task; node < end; ++node)
                next[node] = descent.moved(node, scratch[static_cast<size_t>(thread)]);
        });
        points.swap(next);
    }
}

std::vector<LayoutPoint> layout(Workers& workers, const FuzzyGraph& graph,
                                const LayoutOptions& options, const Interrupts& interrupts) {
    LayoutOptions chosen = options;
    if (chosen.epochs == 0) chosen.epochs = LayoutOptions::default_epochs(graph.count());
    std::vector<LayoutPoint> points = spectral_layout(workers, graph, chosen.seed, interrupts);
    optimize_layout(workers, graph, chosen, points, interrupts);
    return points;
}

}  // namespace pgwarp
