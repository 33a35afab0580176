// The start of a layout: eigenvectors of the random walk P on the graph, of the greatest
// eigenvalues below the trivial 1 of each connected component (Laplacian eigenmaps; Belkin, Niyogi
// 2003). They are orthogonal when each node counts by its degree; the trivial one is constant.
//
// A block of vectors is filtered by Chebyshev polynomials of P, which damp the rest of the
// spectrum, and made orthogonal by Rayleigh and Ritz, again and again (Zhou, Saad 2006). A layout
// needs smooth coordinates rather than eigenvectors to the last digit. P has a block for each
// component: one product serves all components, only sums are taken component by component.

#include "kernels/cpu/pieces.h"
#include "kernels/cpu/small_eigen.h"
#include "kernels/graph_layout.h"
#include "kernels/random.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <numeric>
#include <type_traits>

namespace pgwarp {

namespace {

constexpr size_t width = 8;  // vectors of the block: two are wanted, more converge faster
constexpr int filter_degree = 16;
constexpr int cycles = 4;
constexpr size_t nodes_a_task = 4096;
// Components with fewer nodes are scattered at random.
constexpr size_t least_nodes = 16;
constexpr double half_extent = 10;  // of the largest component

// A row: the values of a node in each vector. A link fetches one line of a cache.
struct alignas(32) Block {
    float values[width];

    float& operator[](size_t i) { return values[i]; }
    const float& operator[](size_t i) const { return values[i]; }
};
using Gram = SmallMatrix<width>;

// Nodes by component, the largest component first.
struct Components {
    std::vector<uint32_t> of_node;  // (nodes)
    std::vector<uint32_t> nodes;    // component by component
    std::vector<size_t> begins;     // (components + 1)

    size_t count() const { return begins.size() - 1; }
    size_t size(size_t component) const { return begins[component + 1] - begins[component]; }
};

// Union-find for threads. A root is the smallest node of its set, whatever the order was.
class SharedSets {
  public:
    explicit SharedSets(size_t nodes) : above_(nodes) {
        std::iota(above_.begin(), above_.end(), 0);
    }
    uint32_t root_of(uint32_t node) {
        for (uint32_t above = load(node); above != node; above = load(node)) {
            const uint32_t next = load(above);
            if (next != above) replace(node, above, next);
            node = next;
        }
        return node;
    }
    void unite(uint32_t a, uint32_t b) {
        do {
            a = root_of(a);
            b = root_of(b);
            if (a < b) std::swap(a, b);
        } while (a != b && !replace(a, a, b));
    }

  private:
    uint32_t load(uint32_t node) {
        return std::atomic_ref(above_[node]).load(std::memory_order_relaxed);
    }
    bool replace(uint32_t node, uint32_t was, uint32_t by) {
        return std::atomic_ref(above_[node])
            .compare_exchange_strong(was, by, std::memory_order_relaxed);
    }
    std::vector<uint32_t> above_;  // (nodes): never a greater one
};

Components find_components(Workers& workers, const FuzzyGraph& graph) {
    const size_t count = graph.count();
    SharedSets sets(count);
    for_pieces(workers, count, nodes_a_task, [&](size_t begin, size_t end, int) {
        for (size_t node = begin; node < end; ++node)
            for (const FuzzyLink* link = graph.begin(node); link < graph.end(node); ++link)
                if (link->to < node) sets.unite(static_cast<uint32_t>(node), link->to);
    });
    std::vector<uint32_t> sizes(count, 0), roots;
    for (uint32_t node = 0; node < count; ++node)
        if (sizes[sets.root_of(node)]++ == 0) roots.push_back(sets.root_of(node));
    std::stable_sort(roots.begin(), roots.end(),
                     [&](uint32_t a, uint32_t b) { return sizes[a] > sizes[b]; });
    Components found;
    found.begins.push_back(0);
    for (uint32_t root : roots) found.begins.push_back(found.begins.back() + sizes[root]);
    for (uint32_t i = 0; i < roots.size(); ++i) sizes[roots[i]] = i;
    found.of_node.resize(count);
    found.nodes.resize(count);
    std::vector<size_t> next(found.begins.begin(), found.begins.end() - 1);
    for (uint32_t node = 0; node < count; ++node) {
        found.of_node[node] = sizes[sets.root_of(node)];
        found.nodes[next[found.of_node[node]]++] = node;
    }
    return found;
}

// Nodes of one component, of which a task makes a sum.
struct Chunk {
    size_t component;
    size_t begin, end;  // in Components::nodes
};

class SpectralStart {
  public:
    SpectralStart(Workers& workers, const FuzzyGraph& graph, const Components& components,
                  uint64_t seed);

    void run();
    // The two smoothest coordinates of a node, of which squares average 1 in its component.
    LayoutPoint coordinates(uint32_t node) const;

  private:
    template <typename Use>
    void walk(const std::vector<Block>& from, const Use& use);
    void filter();
    void remove_trivial();
    void rotate();
    template <typename Sum, typename Use>
    std::vector<Sum> sum_components(const Use& use);
    template <typename Use>
    void for_nodes(const Use& use);

    Workers& workers_;
    const FuzzyGraph& graph_;
    const Components& components_;
    size_t solved_ = 0;  // components that are large enough
    std::vector<Chunk> chunks_;
    std::vector<float> degree_;                    // (nodes)
    std::vector<double> total_;                    // (solved): of degrees
    std::vector<double> bound_;                    // (solved): the filter damps eigenvalues below
    std::vector<Block> block_, product_, before_;  // (nodes)
};

SpectralStart::SpectralStart(Workers& workers, const FuzzyGraph& graph,
                             const Components& components, uint64_t seed)
    : workers_(workers), graph_(graph), components_(components) {
    const size_t count = graph.count();
    while (solved_ < components.count() && components.size(solved_) >= least_nodes) ++solved_;
    for (size_t component = 0; component < solved_; ++component)
        for (size_t begin = components.begins[component]; begin < components.begins[component + 1];
             begin += nodes_a_task)
            chunks_.push_back({component, begin,
                               std::min(begin + nodes_a_task, components.begins[component + 1])});
    bound_.assign(solved_, 0.5);
    degree_.resize(count);
    block_.resize(count);
    product_.resize(count);
    before_.resize(count);
    for_nodes([&](size_t node) {
        double degree = 0;
        for (const FuzzyLink* link = graph.begin(node); link < graph.end(node); ++link)
            degree += link->weight;
        degree_[node] = static_cast<float>(degree);
        Random random(Random(seed ^ node).next());
        for (float& value : block_[node].values) value = static_cast<float>(random.uniform() - 0.5);
    });
    total_ = sum_components<double>([&](uint32_t node, double& sum) { sum += degree_[node]; });
}

template <typename Use>
void SpectralStart::for_nodes(const Use& use) {
    const size_t count = graph_.count();
    workers_.run((count + nodes_a_task - 1) / nodes_a_task, [&](size_t task, int) {
        const size_t end = std::min(count, (task + 1) * nodes_a_task);
        for (size_t node = task * nodes_a_task; node < end; ++node) use(node);
    });
}

// (solved): what use(node, sum) adds. In the order of chunks, on any number of threads.
template <typename Sum, typename Use>
std::vector<Sum> SpectralStart::sum_components(const Use& use) {
    std::vector<Sum> parts(chunks_.size(), Sum{}), sums(solved_, Sum{});
    workers_.run(chunks_.size(), [&](size_t i, int) {
        for (size_t at = chunks_[i].begin; at < chunks_[i].end; ++at)
            use(components_.nodes[at], parts[i]);
    });
    for (size_t i = 0; i < chunks_.size(); ++i) {
        if constexpr (std::is_same_v<Sum, double>) {
            sums[chunks_[i].component] += parts[i];
        } else {
            auto& sum = sums[chunks_[i].component];
            for (size_t a = 0; a < sum.size(); ++a)
                if constexpr (std::is_same_v<Sum, Gram>)
                    for (size_t b = 0; b < width; ++b) sum[a][b] += parts[i][a][b];
                else
                    sum[a] += parts[i][a];
        }
    }
    return sums;
}

// Calls use(node, value) with the product of P and a block.
template <typename Use>
void SpectralStart::walk(const std::vector<Block>& from, const Use& use) {
    constexpr std::ptrdiff_t ahead = 24;
    const FuzzyLink* const last = graph_.end(graph_.count() - 1);
    for_nodes([&](size_t node) {
        Block sum = {};
        for (const FuzzyLink* link = graph_.begin(node); link < graph_.end(node); ++link) {
            if (last - link > ahead) __builtin_prefetch(&from[link[ahead].to]);
            const Block& other = from[link->to];
            for (size_t v = 0; v < width; ++v) sum[v] += link->weight * other[v];
        }
        const float share = degree_[node] > 0 ? 1 / degree_[node] : 0;
        for (size_t v = 0; v < width; ++v) sum[v] *= share;
        use(node, sum);
    });
}

// block_ becomes T(P) block_, where T is the Chebyshev polynomial on [-1, bound] of the component.
void SpectralStart::filter() {
    before_.swap(block_);
    for (int degree = 1; degree <= filter_degree; ++degree) {
        // Invariant: before_ is the polynomial of degree - 1, block_ that of degree - 2.
        walk(before_, [&](size_t node, const Block& product) {
            const uint32_t component = components_.of_node[node];
            if (component >= solved_) return;
            const auto center = static_cast<float>((bound_[component] - 1) / 2);
            const auto scale = static_cast<float>((degree == 1 ? 2 : 4) / (bound_[component] + 1));
            for (size_t v = 0; v < width; ++v)
                block_[node][v] = scale * (product[v] - center * before_[node][v]) -
                                  (degree == 1 ? 0 : block_[node][v]);
        });
        block_.swap(before_);
    }
    block_.swap(before_);
}

// Makes the block orthogonal to the trivial eigenvector of each component.
void SpectralStart::remove_trivial() {
    using Row = std::array<double, width>;
    const std::vector<Row> along = sum_components<Row>([&](uint32_t node, Row& sum) {
        for (size_t v = 0; v < width; ++v) sum[v] += double{degree_[node]} * block_[node][v];
    });
    for_nodes([&](size_t node) {
        const uint32_t component = components_.of_node[node];
        if (component >= solved_) return;
        for (size_t v = 0; v < width; ++v)
            block_[node][v] -= static_cast<float>(along[component][v] / total_[component]);
    });
}

// The rotation of a block to approximate eigenvectors, of unit length, and their eigenvalues.
SmallEigen<width> ritz(const Gram& own, const Gram& with_product) {
    const SmallEigen<width> lengths = small_eigen<width>(own);
    Gram whiten = {}, half = {}, middle = {};
    for (size_t v = 0; v < width; ++v) {
        // A vector that depends on the others becomes 0.
        const double length = lengths.values[v];
        const double inverse = length > 1e-10 * lengths.values[0] ? 1 / std::sqrt(length) : 0;
        for (size_t i = 0; i < width; ++i) whiten[i][v] = lengths.vectors[i][v] * inverse;
    }
    for (size_t i = 0; i < width; ++i)
        for (size_t v = 0; v < width; ++v)
            for (size_t j = 0; j < width; ++j)
                half[i][v] += (with_product[i][j] + with_product[j][i]) / 2 * whiten[j][v];
    for (size_t u = 0; u < width; ++u)
        for (size_t v = 0; v < width; ++v)
            for (size_t i = 0; i < width; ++i) middle[u][v] += whiten[i][u] * half[i][v];
    const SmallEigen<width> turned = small_eigen<width>(middle);
    SmallEigen<width> found = {turned.values, {}};
    for (size_t i = 0; i < width; ++i)
        for (size_t v = 0; v < width; ++v)
            for (size_t j = 0; j < width; ++j)
                found.vectors[i][v] += whiten[i][j] * turned.vectors[j][v];
    return found;
}

void SpectralStart::rotate() {
    walk(block_, [&](size_t node, const Block& product) { product_[node] = product; });
    const auto gram_with = [&](const std::vector<Block>& other) {
        return sum_components<Gram>([&](uint32_t node, Gram& sum) {
            for (size_t a = 0; a < width; ++a)
                for (size_t b = 0; b < width; ++b)
                    sum[a][b] += double{degree_[node]} * block_[node][a] * other[node][b];
        });
    };
    const std::vector<Gram> own = gram_with(block_), with_product = gram_with(product_);
    std::vector<SmallEigen<width>> turns(solved_);
    for (size_t component = 0; component < solved_; ++component) {
        turns[component] = ritz(own[component], with_product[component]);
        bound_[component] = std::clamp(turns[component].values[width - 1], 0.0, 0.9999);
    }
    for_nodes([&](size_t node) {
        const uint32_t component = components_.of_node[node];
        if (component >= solved_) return;
        Block turned;
        for (size_t v = 0; v < width; ++v) {
            double sum = 0;
            for (size_t i = 0; i < width; ++i)
                sum += block_[node][i] * turns[component].vectors[i][v];
            turned[v] = static_cast<float>(sum);
        }
        block_[node] = turned;
    });
}

void SpectralStart::run() {
    if (solved_ == 0) return;
    for (int cycle = 0; cycle < cycles; ++cycle) {
        filter();
        remove_trivial();
        rotate();
    }
}

LayoutPoint SpectralStart::coordinates(uint32_t node) const {
    const auto scale = static_cast<float>(std::sqrt(total_[components_.of_node[node]]));
    return {block_[node][0] * scale, block_[node][1] * scale};
}

// Few nodes far out would leave no room for the others.
float compressed(float value) {
    const float half = value / 2;
    return half / std::sqrt(1 + half * half);
}

// Where a component is drawn.
struct Place {
    double x, y;    // its middle
    double extent;  // from there, either way
};

// (components): along a spiral with the golden angle no two meet.
std::vector<Place> place_components(const Components& components, const Interrupts& interrupts) {
    std::vector<Place> places(components.count());
    const double largest = static_cast<double>(components.size(0));
    double area = 0;  // of the components so far, with gaps, in units of a square
    for (size_t component = 0; component < components.count(); ++component) {
        if (component % nodes_a_task == 0) interrupts.check();
        const auto size = static_cast<double>(components.size(component));
        const double extent = half_extent * std::sqrt(size / largest);
        const double radius = component == 0 ? 0 : std::sqrt(area) + extent;
        const double angle = 2.399963 * static_cast<double>(component);
        area += 2 * extent * extent;
        places[component] = {radius * std::cos(angle), radius * std::sin(angle), extent};
    }
    return places;
}

}  // namespace

std::vector<LayoutPoint> spectral_layout(Workers& workers, const FuzzyGraph& graph, uint64_t seed,
                                         const Interrupts& interrupts) {
    std::vector<LayoutPoint> points(graph.count());
    if (points.empty()) return points;
    const Components components = find_components(workers, graph);
    SpectralStart start(workers, graph, components, seed);
    start.run();
    const std::vector<Place> places = place_components(components, interrupts);
    for_pieces(workers, points.size(), nodes_a_task, [&](size_t begin, size_t end, int) {
        for (size_t i = begin; i < end; ++i) {
            const auto node = static_cast<uint32_t>(i);
            const uint32_t component = components.of_node[node];
            Random random(Random(~seed ^ node).next());
            const auto drawn = [&] { return static_cast<float>(2 * random.uniform() - 1); };
            LayoutPoint at = {drawn(), drawn()};
            if (components.size(component) >= least_nodes) {
                const LayoutPoint smooth = start.coordinates(node);
                // A little noise parts nodes that have the same neighbors.
                at = {compressed(smooth.x) + 1e-3f * at.x, compressed(smooth.y) + 1e-3f * at.y};
            }
            const Place& place = places[component];
            points[node] = {static_cast<float>(place.x + place.extent * at.x),
                            static_cast<float>(place.y + place.extent * at.y)};
        }
    });
    return points;
}

}  // namespace pgwarp
