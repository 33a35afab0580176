#include "kernels/cpu/condensed_tree.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace pgwarp {

namespace {

constexpr size_t steps_between_polls = 1 << 16;

// --- the single-linkage tree

// Two parts that an edge unites. Numbers below `vertices` are vertices, others are merges.
struct Merge {
    uint32_t left;
    uint32_t right;
    float weight;
    uint32_t size;
};

struct LinkageTree {
    size_t vertices;
    std::vector<Merge> merges;
    std::vector<uint32_t> roots;  // one for each component

    bool is_vertex(uint32_t node) const { return node < vertices; }
    const Merge& merge(uint32_t node) const { return merges[node - vertices]; }
    uint32_t size(uint32_t node) const { return is_vertex(node) ? 1 : merge(node).size; }
};

LinkageTree link_vertices(const std::vector<SpanningEdge>& edges, size_t vertices,
                          const Interrupts& interrupts) {
    LinkageTree tree = {vertices, {}, {}};
    tree.merges.reserve(edges.size());
    std::vector<uint32_t> parents(vertices), nodes(vertices);  // nodes: of roots
    std::iota(parents.begin(), parents.end(), 0);
    std::iota(nodes.begin(), nodes.end(), 0);
    const auto root_of = [&](uint32_t vertex) {
        while (parents[vertex] != vertex) vertex = parents[vertex] = parents[parents[vertex]];
        return vertex;
    };
    for (size_t i = 0; i < edges.size(); ++i) {
        if (i % steps_between_polls == 0) interrupts.check();
        uint32_t a = root_of(edges[i].a), b = root_of(edges[i].b);
        const uint32_t left = nodes[a], right = nodes[b];
        if (tree.size(left) < tree.size(right)) std::swap(a, b);
        tree.merges.push_back({left, right, edges[i].weight, tree.size(left) + tree.size(right)});
        parents[b] = a;
        nodes[a] = static_cast<uint32_t>(vertices + i);
    }
    for (uint32_t v = 0; v < vertices; ++v)
        if (parents[v] == v) tree.roots.push_back(nodes[v]);
    return tree;
}

// --- the condensed tree

class Condensing {
  public:
    Condensing(const LinkageTree& linkage, uint32_t min_cluster_size)
        : linkage_(linkage), min_cluster_size_(min_cluster_size) {
        tree_.cluster.resize(linkage.vertices);
        tree_.lambda.resize(linkage.vertices);
        tree_.clusters.push_back({0, static_cast<uint32_t>(linkage.vertices), 0, 0, 0, true});
        // Merges are in the order of weights: the first positive one is the least.
        const auto positive = std::find_if(linkage.merges.begin(), linkage.merges.end(),
                                           [](const Merge& merge) { return merge.weight > 0; });
        least_ = positive == linkage.merges.end() ? 1 : positive->weight;
    }

    CondensedTree run(const Interrupts& interrupts) {
        part(linkage_.roots, 0, 0);  // components part at an infinite distance
        std::vector<uint32_t> parts;
        for (size_t step = 0; !waiting_.empty(); ++step) {
            if (step % steps_between_polls == 0) interrupts.check();
            const Waiting next = waiting_.back();
            waiting_.pop_back();
            const float weight = linkage_.merge(next.node).weight;
            parts_below(next.node, weight, parts);
            part(parts, next.cluster, lambda_of(weight));
        }
        return std::move(tree_);
    }

  private:
    struct Waiting {
        uint32_t node;
        uint32_t cluster;
    };

    // Equal vertices would have an infinite density, against which nothing else counts. A distance
    // of zero counts as the least positive one.
    double lambda_of(float weight) const { return 1.0 / std::max(weight, least_); }

    // What a node falls into when all its edges of this weight are removed.
    void parts_below(uint32_t node, float weight, std::vector<uint32_t>& parts) {
        parts.clear();
        stack_.assign(1, node);
        while (!stack_.empty()) {
            const uint32_t here = stack_.back();
            stack_.pop_back();
            if (linkage_.is_vertex(here) || linkage_.merge(here).weight != weight) {
                parts.push_back(here);
                continue;
            }
            stack_.push_back(linkage_.merge(here).right);
            stack_.push_back(linkage_.merge(here).left);
        }
    }

    void part(const std::vector<uint32_t>& parts, uint32_t cluster, double lambda) {
        const auto is_large = [&](uint32_t node) {
            return linkage_.size(node) >= min_cluster_size_;
        };
        const auto large = std::count_if(parts.begin(), parts.end(), is_large);
        for (const uint32_t node : parts) {
            if (!is_large(node)) {
                fall_out(node, cluster, lambda);
            } else if (large == 1) {
                waiting_.push_back({node, cluster});  // the same cluster, with fewer vertices
            } else {
                leave(cluster, linkage_.size(node), lambda);
                tree_.clusters[cluster].is_leaf = false;
                waiting_.push_back({node, static_cast<uint32_t>(tree_.clusters.size())});
                tree_.clusters.push_back({cluster, linkage_.size(node), lambda, lambda, 0, true});
            }
        }
    }

    void leave(uint32_t cluster, uint32_t vertices, double lambda) {
        CondensedCluster& from = tree_.clusters[cluster];
        from.stability += vertices * (lambda - from.birth);
        from.death = std::max(from.death, lambda);
    }

    void fall_out(uint32_t node, uint32_t cluster, double lambda) {
        leave(cluster, linkage_.size(node), lambda);
        stack_.assign(1, node);
        while (!stack_.empty()) {
            const uint32_t here = stack_.back();
            stack_.pop_back();
            if (linkage_.is_vertex(here)) {
                tree_.cluster[here] = cluster;
                tree_.lambda[here] = lambda;
                continue;
            }
            stack_.push_back(linkage_.merge(here).right);
            stack_.push_back(linkage_.merge(here).left);
        }
    }

    const LinkageTree& linkage_;
    uint32_t min_cluster_size_;
    float least_;  // positive weight
    CondensedTree tree_;
    std::vector<Waiting> waiting_;
    std::vector<uint32_t> stack_;
};

// --- labels

constexpr uint32_t no_cluster = std::numeric_limits<uint32_t>::max();

// (clusters): the chosen cluster that a cluster is, or is in.
std::vector<uint32_t> chosen_clusters(const CondensedTree& tree,
                                      const std::vector<bool>& selected) {
    std::vector<uint32_t> chosen(tree.clusters.size(), no_cluster);
    for (uint32_t c = 1; c < chosen.size(); ++c)
        chosen[c] = selected[c] ? c : chosen[tree.clusters[c].parent];
    return chosen;
}

// (clusters): labels of chosen clusters: the largest first, of equal ones that with the smallest
// vertex.
std::vector<int32_t> number_clusters(const CondensedTree& tree,
                                     const std::vector<uint32_t>& chosen) {
    struct Found {
        uint32_t cluster, size;
    };
    std::vector<Found> found;  // in the order of their smallest vertices
    std::vector<int32_t> labels(tree.clusters.size(), -1);
    for (const uint32_t cluster : tree.cluster) {
        const uint32_t here = chosen[cluster];
        if (here == no_cluster) continue;
        if (labels[here] < 0) {
            labels[here] = static_cast<int32_t>(found.size());
            found.push_back({here, 0});
        }
        ++found[static_cast<size_t>(labels[here])].size;
    }
    std::stable_sort(found.begin(), found.end(),
                     [](const Found& a, const Found& b) { return a.size > b.size; });
    for (size_t i = 0; i < found.size(); ++i) labels[found[i].cluster] = static_cast<int32_t>(i);
    return labels;
}

}  // namespace

CondensedTree condensed_tree(const std::vector<SpanningEdge>& edges, size_t vertices,
                             uint32_t min_cluster_size, const Interrupts& interrupts) {
    const LinkageTree linkage = link_vertices(edges, vertices, interrupts);
    return Condensing(linkage, min_cluster_size).run(interrupts);
}

std::vector<bool> select_clusters(const CondensedTree& tree, ClusterSelection selection) {
    const size_t count = tree.clusters.size();
    std::vector<bool> selected(count);
    if (selection == ClusterSelection::leaves) {
        for (size_t c = 1; c < count; ++c) selected[c] = tree.clusters[c].is_leaf;
        return selected;
    }
    // From the leaves up: a cluster is better than what is chosen below it, or passes that on.
    std::vector<double> below(count);
    for (size_t c = count; c-- > 1;) {
        const CondensedCluster& cluster = tree.clusters[c];
        selected[c] = below[c] <= cluster.stability;
        below[cluster.parent] += std::max(below[c], cluster.stability);
    }
    // From the root down: none inside another.
    std::vector<bool> covered(count);
    for (size_t c = 1; c < count; ++c) {
        const uint32_t parent = tree.clusters[c].parent;
        covered[c] = covered[parent] || selected[parent];
        if (covered[c]) selected[c] = false;
    }
    return selected;
}

std::vector<DensityLabel> label_vertices(const CondensedTree& tree,
                                         const std::vector<bool>& selected) {
    const std::vector<uint32_t> chosen = chosen_clusters(tree, selected);
    const std::vector<int32_t> labels = number_clusters(tree, chosen);
    // The greatest density in a cluster, with all clusters inside it.
    std::vector<double> densest(tree.clusters.size());
    for (size_t c = tree.clusters.size(); c-- > 0;) {
        const CondensedCluster& cluster = tree.clusters[c];
        densest[c] = std::max(densest[c], cluster.death);
        densest[cluster.parent] = std::max(densest[cluster.parent], densest[c]);
    }
    std::vector<DensityLabel> rows(tree.cluster.size());
    for (size_t v = 0; v < rows.size(); ++v) {
        const uint32_t from = tree.cluster[v], in = chosen[from];
        const double lambda = tree.lambda[v];
        rows[v] = {-1, 0, 0};
        if (densest[from] > 0)
            rows[v].outlier_score = static_cast<float>(1 - lambda / densest[from]);
        if (in == no_cluster) continue;
        const double death = tree.clusters[in].death;
        rows[v].label = labels[in];
        rows[v].probability = death > 0 ? static_cast<float>(std::min(lambda, death) / death) : 1;
    }
    return rows;
}

size_t condensed_memory(size_t vertices) {
    // Merges and their roots, and what the condensed tree has of a vertex. A cluster has at least
    // two vertices, and at least one sibling.
    return vertices * (sizeof(Merge) + 4 * sizeof(uint32_t) + sizeof(double) +
                       sizeof(CondensedCluster) + sizeof(DensityLabel));
}

}  // namespace pgwarp
