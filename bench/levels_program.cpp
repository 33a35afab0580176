// The coarse step of a query, which chooses its lists: compared with every centroid, and by two
// levels, where it is compared with parents first and then with the centroids of the nearest ones.
//
//     cmake --build build/kernels --target pgwarp_bench_levels
//     pgwarp_bench_levels BASE QUERIES LISTS DIMS PARENTS [PARENTS ...]
//
// Rows of BASE stand for centroids, which is the harder case: means of rows lie more evenly. Where
// LISTS is more than BASE has, rows come again with noise: then times mean something, shares less.
// Prints microseconds a query, and the share of the nearest lists that two levels find, by probes
// and by how many lists are looked at for each probe.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <random>
#include <vector>

#include "bench/clock.h"
#include "bench/vecs_file.h"
#include "kernels/bfloat16.h"
#include "kernels/distance.h"
#include "kernels/kmeans.h"

namespace {

using namespace pgwarp;

struct Centroids {
    uint32_t dims;
    std::vector<float> rows;
    std::vector<bfloat16> halves;  // as pages have them

    uint32_t count() const { return static_cast<uint32_t>(rows.size() / dims); }
    void round() {
        halves.resize(rows.size());
        std::transform(rows.begin(), rows.end(), halves.begin(), to_bfloat16);
    }
};

struct Levels {
    Centroids parents;
    Centroids lists;  // those of a parent are adjacent
    std::vector<uint32_t> first;
};

Levels make_levels(const Centroids& lists, uint32_t parents, Workers& workers) {
    const uint32_t dims = lists.dims;
    Levels levels{{dims, std::vector<float>(size_t{parents} * dims), {}}, {dims, {}, {}}, {}};
    float* centroids = levels.parents.rows.data();
    const size_t some = std::min<size_t>(lists.count(), size_t{64} * parents);
    kmeans_start(lists.rows.data(), some, dims, parents, 1, centroids);
    for (int i = 0; i < 8; ++i)
        kmeans_step(workers, lists.rows.data(), some, dims, parents, centroids);
    std::vector<uint32_t> nearest(lists.count());
    assign_nearest(workers, {lists.rows.data(), lists.count(), dims, centroids, parents,
                             nearest.data(), nullptr});
    std::vector<uint32_t> order(lists.count());
    std::iota(order.begin(), order.end(), 0u);
    std::stable_sort(order.begin(), order.end(),
                     [&](uint32_t a, uint32_t b) { return nearest[a] < nearest[b]; });
    levels.first.assign(parents + 1, 0);
    for (const uint32_t parent : nearest) ++levels.first[parent + 1];
    std::partial_sum(levels.first.begin(), levels.first.end(), levels.first.begin());
    levels.lists.rows.reserve(lists.rows.size());
    for (const uint32_t list : order)
        levels.lists.rows.insert(levels.lists.rows.end(), lists.rows.data() + size_t{list} * dims,
                                 lists.rows.data() + (size_t{list} + 1) * dims);
    levels.parents.round();
    levels.lists.round();
    return levels;
}

struct Ranking {
    std::vector<float> terms;
    std::vector<uint32_t> order;
    std::vector<float> parent_terms;
    std::vector<uint32_t> parent_order;
    size_t looked_at;
};

void nearest_first(const std::vector<float>& terms, std::vector<uint32_t>& order, size_t wanted) {
    wanted = std::min(wanted, order.size());
    std::partial_sort(order.begin(), order.begin() + wanted, order.end(),
                      [&](uint32_t a, uint32_t b) {
                          return terms[a] < terms[b] || (terms[a] == terms[b] && a < b);
                      });
}

void rank_all(const Centroids& lists, const float* query, uint32_t probes, Ranking& ranking) {
    ranking.terms.resize(lists.count());
    ranking.order.resize(lists.count());
    squared_l2_distances(query, HalfRows{lists.halves.data(), lists.dims, lists.count()},
                         lists.dims, ranking.terms.data());
    std::iota(ranking.order.begin(), ranking.order.end(), 0u);
    nearest_first(ranking.terms, ranking.order, probes);
}

void rank_by_levels(const Levels& levels, const float* query, uint32_t probes, size_t wanted,
                    Ranking& ranking) {
    const uint32_t dims = levels.lists.dims;
    rank_all(levels.parents, query, 0, ranking);
    std::swap(ranking.terms, ranking.parent_terms);
    std::swap(ranking.order, ranking.parent_order);
    ranking.terms.resize(levels.lists.count());
    ranking.order.clear();
    // In steps, since it is not known beforehand how many parents have enough lists.
    size_t sorted = 0;
    for (size_t next = 0; next < levels.parents.count() && ranking.order.size() < wanted; ++next) {
        if (next == sorted) {
            const size_t more = std::min<size_t>(levels.parents.count() - sorted, sorted + 16);
            std::partial_sort(ranking.parent_order.begin() + sorted,
                              ranking.parent_order.begin() + sorted + more,
                              ranking.parent_order.end(), [&](uint32_t a, uint32_t b) {
                                  return ranking.parent_terms[a] < ranking.parent_terms[b];
                              });
            sorted += more;
        }
        const uint32_t parent = ranking.parent_order[next];
        const uint32_t first = levels.first[parent];
        const uint32_t count = levels.first[parent + 1] - first;
        squared_l2_distances(
            query, HalfRows{levels.lists.halves.data() + size_t{first} * dims, dims, count}, dims,
            ranking.terms.data() + first);
        for (uint32_t i = 0; i < count; ++i) ranking.order.push_back(first + i);
    }
    ranking.looked_at = ranking.order.size();
    nearest_first(ranking.terms, ranking.order, probes);
}

}  // namespace

int main(int argc, char** argv) {
    if (argc < 6) {
        std::fprintf(stderr, "usage: %s BASE QUERIES LISTS DIMS PARENTS ...\n", argv[0]);
        return 2;
    }
    const bench::Vectors base = bench::read_vectors(argv[1]);
    const bench::Vectors queries = bench::read_vectors(argv[2]);
    const auto lists = static_cast<uint32_t>(std::atoi(argv[3]));
    const auto dims = static_cast<uint32_t>(std::atoi(argv[4]));
    if (dims > base.dims || dims > queries.dims || lists == 0) return 2;
    std::mt19937_64 random(1);
    std::normal_distribution<float> noise(0, 8);
    Centroids all{dims, {}, {}};
    for (uint32_t i = 0; i < lists; ++i)
        for (uint32_t d = 0; d < dims; ++d)
            all.rows.push_back(base.row(i % base.rows)[d] + (i < base.rows ? 0 : noise(random)));
    all.round();
    const uint32_t tried[] = {1, 8, 32, 128, 512};
    const size_t times[] = {4, 8, 16, 32, 64};
    const size_t least = 0;
    const size_t query_count = std::min<size_t>(queries.rows, 200);
    Workers workers(2);
    Ranking ranking, flat;
    std::printf("%u lists of %u dimensions, %zu queries, one thread\n", lists, dims, query_count);
    for (const uint32_t probes : tried) {
        const bench::Stopwatch watch;
        for (size_t q = 0; q < query_count; ++q) rank_all(all, queries.row(q).data(), probes, flat);
        std::printf("flat, probes %u: %.1f us\n", probes,
                    watch.seconds() * 1e6 / static_cast<double>(query_count));
    }
    for (int a = 5; a < argc; ++a) {
        const auto parents = static_cast<uint32_t>(std::atoi(argv[a]));
        const bench::Stopwatch making;
        const Levels levels = make_levels(all, parents, workers);
        std::printf("%u parents, made in %.1f s, two threads\n", parents, making.seconds());
        for (const uint32_t probes : tried)
            for (const size_t factor : times) {
                const size_t wanted = std::max<size_t>(factor * std::max(probes, 32u), least);
                if (wanted > lists) continue;
                double found = 0, looked_at = 0, seconds = 0;
                for (size_t q = 0; q < query_count; ++q) {
                    const float* query = queries.row(q).data();
                    const bench::Stopwatch watch;
                    rank_by_levels(levels, query, probes, wanted, ranking);
                    seconds += watch.seconds();
                    looked_at += static_cast<double>(ranking.looked_at);
                    rank_all(levels.lists, query, probes, flat);
                    std::vector<uint32_t> mine(ranking.order.begin(),
                                               ranking.order.begin() + probes);
                    std::vector<uint32_t> truth(flat.order.begin(), flat.order.begin() + probes);
                    std::sort(mine.begin(), mine.end());
                    std::sort(truth.begin(), truth.end());
                    std::vector<uint32_t> both;
                    std::set_intersection(mine.begin(), mine.end(), truth.begin(), truth.end(),
                                          std::back_inserter(both));
                    found += static_cast<double>(both.size()) / probes;
                }
                const auto n = static_cast<double>(query_count);
                std::printf("  probes %4u, %3zu lists a probe: %7.0f lists, %7.1f us, share %.4f\n",
                            probes, factor, looked_at / n, seconds * 1e6 / n, found / n);
            }
    }
    return 0;
}
