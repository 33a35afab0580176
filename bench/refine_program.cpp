// Compares refinement codes: how well each orders candidates that product quantizer codes found,
// and how many rows of the table must be visited until exact distances decide the nearest ten.
//
//     cmake --build build/kernels --target pgwarp_bench_refine
//     pgwarp_bench_refine DATA METRIC ROWS QUERIES LISTS M PROBES
//
// Candidates are visited in the order of the least distance that their code allows, until that of
// the next exceeds the tenth exact distance. "bound": the error is as large as it can be. "4 dev.":
// four standard deviations, as if the errors of dimensions were independent of the query.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <string>
#include <vector>

#include "bench/dataset.h"
#include "bench/metric.h"
#include "bench/neighbors.h"
#include "bench/parallel.h"
#include "bench/random.h"
#include "kernels/distance.h"
#include "kernels/executor.h"
#include "kernels/float16.h"
#include "kernels/list_scan.h"
#include "kernels/refinement.h"
#include "kernels/trainer.h"
#include "kernels/workers.h"

namespace pgwarp::bench {
namespace {

constexpr size_t k = 10;
constexpr size_t most_candidates = 640;

struct Trial {
    Dataset data;
    Metric metric;
    uint32_t dims;
    QuantizerShape shape;
    std::vector<float> centroids, codebook;
    std::vector<uint32_t> lists;
    std::vector<uint8_t> codes;
    std::vector<float> offsets;
    RowNumbers truth;
    std::vector<std::vector<uint32_t>> candidates;  // of each query, nearest by code first

    const float* row(size_t i) const { return data.base.values.data() + i * dims; }
    const float* query(size_t i) const { return data.queries.values.data() + i * dims; }
    const float* centroid_of(size_t i) const { return centroids.data() + size_t{lists[i]} * dims; }
};

void normalize(Vectors& vectors) {
    for (size_t i = 0; i < vectors.rows; ++i) {
        float* row = vectors.values.data() + i * vectors.dims;
        const double norm = std::sqrt(squared_norm(row, vectors.dims));
        for (size_t d = 0; d < vectors.dims; ++d)
            row[d] = static_cast<float>(row[d] / std::max(norm, 1e-30));
    }
}

void train(Trial& t) {
    const size_t sample = std::min<size_t>(t.data.base.rows, 64 * size_t{t.shape.lists});
    std::vector<float> rows;
    const std::vector<size_t> order = shuffled(t.data.base.rows, 3);
    for (size_t i = 0; i < sample; ++i)
        rows.insert(rows.end(), t.row(order[i]), t.row(order[i]) + t.dims);
    const auto executor = make_cpu_executor(static_cast<int>(default_threads()), {});
    Trainer trainer(*executor, {rows.data(), sample, t.dims, t.shape, false, 1, sample, sample,
                                sample, sample, sample});
    while (trainer.advance()) {
    }
    t.centroids = trainer.model().centroids;
    t.codebook = trainer.model().codebook;
    t.lists.resize(t.data.base.rows);
    t.codes.resize(t.data.base.rows * t.shape.m);
    t.offsets.resize(t.data.base.rows);
    executor->encode({t.shape, t.centroids.data(), t.codebook.data()},
                     {t.data.base.values.data(), t.data.base.rows, t.lists.data(), t.codes.data(),
                      t.offsets.data()});
}

void search(Trial& t, uint32_t probes) {
    std::vector<std::vector<uint32_t>> members(t.shape.lists);
    for (size_t i = 0; i < t.lists.size(); ++i)
        members[t.lists[i]].push_back(static_cast<uint32_t>(i));
    t.candidates.resize(t.data.queries.rows);
    parallel_pieces(t.data.queries.rows, default_threads(), [&](unsigned, size_t q) {
        const float* query = t.query(q);
        std::vector<float> terms(t.shape.lists), table(size_t{t.shape.m} * codewords);
        std::vector<uint32_t> order(t.shape.lists);
        for (uint32_t l = 0; l < t.shape.lists; ++l) {
            order[l] = l;
            terms[l] = squared_l2_distance(query, t.centroids.data() + size_t{l} * t.dims, t.dims);
        }
        std::sort(order.begin(), order.end(),
                  [&](uint32_t a, uint32_t b) { return terms[a] < terms[b]; });
        build_table({t.shape, t.centroids.data(), t.codebook.data()}, query, table.data());
        std::vector<std::pair<float, uint32_t>> all;
        for (uint32_t p = 0; p < probes; ++p)
            for (const uint32_t row : members[order[p]]) {
                float sum = terms[order[p]] + t.offsets[row];
                const uint8_t* code = t.codes.data() + size_t{row} * t.shape.m;
                for (uint32_t j = 0; j < t.shape.m; ++j) sum += table[j * codewords + code[j]];
                all.emplace_back(sum, row);
            }
        const size_t kept = std::min(all.size(), most_candidates);
        std::partial_sort(all.begin(), all.begin() + static_cast<ptrdiff_t>(kept), all.end());
        for (size_t i = 0; i < kept; ++i) t.candidates[q].push_back(all[i].second);
    });
}

double recall_of(const Trial& t, size_t count) {
    size_t found = 0;
    for (size_t q = 0; q < t.candidates.size(); ++q)
        for (size_t i = 0; i < std::min(count, t.candidates[q].size()); ++i) {
            const auto truth = t.truth.row(q).first(k);
            found += std::find(truth.begin(), truth.end(),
                               static_cast<int32_t>(t.candidates[q][i])) != truth.end();
        }
    return double(found) / double(t.candidates.size() * k);
}

// A random rotation in two rounds: signs, then Hadamard transforms of the longest beginning and end
// whose length is a power of two.
class FastRotation {
  public:
    explicit FastRotation(size_t dims) : dims_(dims), signs_(2 * dims) {
        Random random(7);
        for (float& sign : signs_) sign = random.below(2) ? 1.0f : -1.0f;
        while (2 * block_ <= dims_) block_ *= 2;
    }
    void apply(std::vector<float>& v) const {
        for (int round = 0; round < 2; ++round)
            for (const size_t begin : {size_t{0}, dims_ - block_}) {
                for (size_t i = 0; i < block_; ++i)
                    v[begin + i] *= signs_[static_cast<size_t>(round) * dims_ + i];
                for (size_t h = 1; h < block_; h *= 2)
                    for (size_t i = 0; i < block_; i += 2 * h)
                        for (size_t j = i; j < i + h; ++j) {
                            const float a = v[begin + j], b = v[begin + j + h];
                            v[begin + j] = a + b;
                            v[begin + j + h] = a - b;
                        }
                const float scale = 1 / std::sqrt(static_cast<float>(block_));
                for (size_t i = 0; i < block_; ++i) v[begin + i] *= scale;
            }
    }

  private:
    size_t dims_, block_ = 1;
    std::vector<float> signs_;
};

struct Decoded {
    std::vector<float> residual;  // as decoded
    double error;                 // |r - decoded|
};

Decoded decode_int8(const std::vector<float>& r) {
    std::vector<float> origin(r.size());
    std::vector<int8_t> codes(r.size());
    const RefinementHead head = encode_refinement(Metric::l2, r.data(), origin.data(),
                                                  static_cast<uint32_t>(r.size()), codes.data());
    Decoded d{r, head.error};
    for (size_t i = 0; i < r.size(); ++i) d.residual[i] = head.scale * codes[i];
    return d;
}

Decoded decode_half(const std::vector<float>& r) {
    Decoded d{r, 0};
    for (size_t i = 0; i < r.size(); ++i) {
        d.residual[i] = to_float(to_float16(r[i]));
        d.error += double(r[i] - d.residual[i]) * (r[i] - d.residual[i]);
    }
    d.error = std::sqrt(d.error);
    return d;
}

// `bits` for each dimension of the residual, of which the caller has taken a rotation: the grid of
// half-integers whose direction is nearest to the residual's, scaled to its projection. Extended
// RaBitQ has the same codes, and finds the best by a sweep; here it is the best of some scales.
Decoded decode_grid(const std::vector<float>& r, int bits) {
    float greatest = 0;
    double norm = 0;
    for (const float v : r) greatest = std::max(greatest, std::fabs(v)), norm += double(v) * v;
    Decoded best{r, INFINITY};
    if (greatest == 0) return {r, 0};
    const float most = static_cast<float>(1 << (bits - 1));
    for (float part = 0.3f; part <= 1.0f; part += 0.05f) {
        const float step = part * greatest / most;
        double product = 0, length = 0;
        std::vector<float> grid(r.size());
        for (size_t i = 0; i < r.size(); ++i) {
            grid[i] = std::clamp(std::floor(r[i] / step), -most, most - 1) + 0.5f;
            product += double(grid[i]) * r[i];
            length += double(grid[i]) * grid[i];
        }
        const double scale = product / length;
        const double error = std::sqrt(std::max(0.0, norm - product * scale));
        if (error >= best.error) continue;
        best.error = error;
        for (size_t i = 0; i < r.size(); ++i)
            best.residual[i] = static_cast<float>(scale * grid[i]);
    }
    return best;
}

struct Visits {
    double rows = 0, worst = 0;
    size_t found = 0, wanted = 0;  // of the nearest ten of the candidates
};

template <class Decode>
void measure(const Trial& t, const char* name, double bytes, size_t count, bool rotated,
             Decode decode) {
    const FastRotation rotation(t.dims);
    Visits by_bound, by_deviations;
    double squares = 0, spread = 0;
    size_t pairs = 0;
    for (size_t q = 0; q < t.candidates.size(); ++q) {
        const size_t here = std::min(count, t.candidates[q].size());
        struct Scored {
            double exact, refined, error;
        };
        std::vector<Scored> scored;
        for (size_t i = 0; i < here; ++i) {
            const uint32_t row = t.candidates[q][i];
            std::vector<float> r(t.dims), around(t.dims);
            for (uint32_t d = 0; d < t.dims; ++d) {
                r[d] = t.row(row)[d] - t.centroid_of(row)[d];
                around[d] = t.query(q)[d] - t.centroid_of(row)[d];
            }
            if (rotated) rotation.apply(r), rotation.apply(around);
            const Decoded decoded = decode(r);
            const double off = squared_l2_distance(around.data(), decoded.residual.data(), t.dims);
            const double exact = squared_l2_distance(t.query(q), t.row(row), t.dims);
            const double refined = off + decoded.error * decoded.error;
            scored.push_back({exact, refined, 2 * std::sqrt(off) * decoded.error});
            squares += (refined - exact) * (refined - exact) / (exact * exact + 1e-20);
            ++pairs;
        }
        std::vector<double> exact;
        for (const Scored& s : scored) exact.push_back(s.exact);
        std::sort(exact.begin(), exact.end());
        if (exact.size() > k) spread += exact[k - 1] > 0 ? exact[2 * k - 1] / exact[k - 1] - 1 : 0;
        const auto visit = [&](double share, Visits& visits) {
            std::sort(scored.begin(), scored.end(), [&](const Scored& a, const Scored& b) {
                return a.refined - share * a.error < b.refined - share * b.error;
            });
            std::vector<double> nearest;
            size_t visited = 0;
            for (; visited < scored.size(); ++visited) {
                const Scored& s = scored[visited];
                if (nearest.size() >= k && s.refined - share * s.error > nearest[k - 1]) break;
                nearest.insert(std::upper_bound(nearest.begin(), nearest.end(), s.exact), s.exact);
            }
            visits.rows += double(visited);
            visits.worst = std::max(visits.worst, double(visited));
            for (size_t i = 0; i < std::min(k, exact.size()); ++i) {
                ++visits.wanted;
                visits.found += nearest[i] <= exact[i];
            }
        };
        visit(1, by_bound);
        visit(std::min(1.0, 4 / std::sqrt(double(t.dims))), by_deviations);
    }
    const double queries = double(t.candidates.size());
    std::printf("%-14s %6.0f %10.5f %8.1f %6.0f %8.1f %6.0f %9.5f\n", name, bytes,
                std::sqrt(squares / double(pairs)), by_bound.rows / queries, by_bound.worst,
                by_deviations.rows / queries, by_deviations.worst,
                double(by_deviations.found) / double(by_deviations.wanted));
    std::fflush(stdout);
}

double processor_seconds() {
    timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return double(now.tv_sec) + double(now.tv_nsec) * 1e-9;
}

// Nanoseconds of processor time to score an entry, at places drawn at random from 256 MB.
template <class Score>
double time_of(size_t bytes, Score score) {
    const size_t entries = (size_t{256} << 20) / bytes;
    std::vector<uint8_t> memory(entries * bytes, 1);
    Random random(5);
    std::vector<uint32_t> places(200000);
    for (uint32_t& place : places) place = static_cast<uint32_t>(random.below(entries));
    double best = 1e9;
    volatile float kept = 0;
    for (int round = 0; round < 5; ++round) {
        const double start = processor_seconds();
        float sum = 0;
        for (size_t i = 0; i < places.size(); ++i) {
            if (i + 4 < places.size())
                for (size_t b = 0; b < bytes; b += 64)
                    __builtin_prefetch(memory.data() + places[i + 4] * bytes + b);
            sum += score(memory.data() + places[i] * bytes);
        }
        kept = kept + sum;
        best = std::min(best, (processor_seconds() - start) / double(places.size()) * 1e9);
    }
    return best;
}

void time_codes(const Trial& t) {
    std::vector<int16_t> room(t.dims);
    const RefinementQuery query = make_refinement_query(t.metric, t.query(0), t.dims, room.data());
    std::printf("ns to score an entry: int8 %.0f", time_of(t.dims + 24, [&](const uint8_t* at) {
                    return refined_distance(query, 1, {1, 1, 1, 1},
                                            reinterpret_cast<const int8_t*>(at))
                        .distance;
                }));
    std::printf(", half %.0f", time_of(2 * t.dims + 16, [&](const uint8_t* at) {
                    return dot_product(t.query(0), reinterpret_cast<const float16*>(at), t.dims);
                }));
    // Two nibbles of a byte, each beside its half of the query.
    std::printf(", int8 of half as many bytes, for four bits at best %.0f\n",
                time_of(t.dims / 2 + 24, [&](const uint8_t* at) {
                    RefinementQuery half = query;
                    half.dims = t.dims / 2;
                    return refined_distance(half, 1, {1, 1, 1, 1},
                                            reinterpret_cast<const int8_t*>(at))
                        .distance;
                }));
}

int run(char** arguments) {
    Trial t;
    t.metric = parse_metric(arguments[2]);
    t.data = read_dataset({arguments[1], "build/data", std::strtoul(arguments[3], nullptr, 10),
                           std::strtoul(arguments[4], nullptr, 10)});
    t.dims = static_cast<uint32_t>(t.data.base.dims);
    if (t.metric == Metric::cosine) normalize(t.data.base), normalize(t.data.queries);
    t.shape = {t.dims, static_cast<uint32_t>(std::atoi(arguments[5])),
               static_cast<uint32_t>(std::atoi(arguments[6])), t.metric};
    const auto probes = static_cast<uint32_t>(std::atoi(arguments[7]));
    t.truth = exact_neighbors(Metric::l2, t.data.base, t.data.queries, k, default_threads());
    train(t);
    search(t, probes);
    std::printf("%s, %zu x %u, %zu queries, %u lists, m = %u, %u probes\n", t.data.name.c_str(),
                t.data.base.rows, t.dims, t.data.queries.rows, t.shape.lists, t.shape.m, probes);
    std::printf("recall@10 by candidates:");
    for (size_t count = k; count <= most_candidates; count *= 2)
        std::printf(" %zu: %.4f", count, recall_of(t, count));
    time_codes((std::printf("\n"), t));
    for (const size_t count : {size_t{40}, size_t{160}}) {
        std::printf("%zu candidates\n%-14s %6s %10s %8s %6s %8s %6s %9s\n", count, "", "bytes",
                    "error", "bound", "most", "4 dev.", "most", "found");
        const double d = t.dims;
        measure(t, "int8", d + 16, count, false, decode_int8);
        measure(t, "half", 2 * d + 8, count, false, decode_half);
        measure(t, "4 bits", d / 2 + 16, count, false,
                [](const std::vector<float>& r) { return decode_grid(r, 4); });
        measure(t, "4 bits, rotated", d / 2 + 16, count, true,
                [](const std::vector<float>& r) { return decode_grid(r, 4); });
        measure(t, "6 bits, rotated", d * 6 / 8 + 16, count, true,
                [](const std::vector<float>& r) { return decode_grid(r, 6); });
    }
    return 0;
}

}  // namespace
}  // namespace pgwarp::bench

int main(int count, char** arguments) {
    if (count != 8) {
        std::fprintf(stderr, "usage: %s DATA METRIC ROWS QUERIES LISTS M PROBES\n", arguments[0]);
        return 2;
    }
    return pgwarp::bench::run(arguments);
}
