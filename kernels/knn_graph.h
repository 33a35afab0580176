// k-NN graphs of rows in memory: exact, by NN-Descent, merged from two graphs, and appended to.
//
// The interface for graphs, as executor.h is for indexes: a builder works on the CPU or on a
// device. Functions throw as an executor's do (std::bad_alloc, Interrupted); the lists are
// unspecified then. One thread at a time uses a builder.
#pragma once

#include "kernels/common.h"
#include "kernels/interrupts.h"

#include <algorithm>
#include <functional>
#include <memory>

namespace pgwarp {

// Distances in a list:
//   l2             squared
//   inner_product  negative
//   cosine         half the squared L2 distance of rows that the caller has normalised: 1 - cos
//   l1             as it is
struct GraphRows {
    const float* rows;  // (count)(dims)
    size_t count;       // at most most_graph_rows
    uint32_t dims;
    Metric metric;

    const float* row(size_t i) const { return rows + i * dims; }
};

inline constexpr size_t most_graph_rows = (size_t{1} << 31) - 2;

struct Edge {
    float distance;
    uint32_t row;
};
static_assert(sizeof(Edge) == 8);

// Padding at the end of a list that has fewer neighbors than its degree; its distance is infinity.
inline constexpr uint32_t no_row = 0x7fffffff;

// Lists are (count)(degree): the neighbors of each row by (distance, row), never the row itself,
// none twice. Distances are those of graph_distance() and depend on the two rows only; on a device
// they may differ by rounding. In a list of a descent, the distances behind the first `neighbors`
// places may differ by rounding on the CPU, too.
struct DescentOptions {
    uint32_t neighbors = 0;  // k: how many the caller will use
    uint32_t degree = 0;     // length of a list, more than `neighbors`
    // p of the paper: new and old neighbors sampled in each direction, forward and reverse.
    uint32_t samples = 0;
    uint32_t iterations = 0;  // at most
    uint32_t trees = 0;  // random projection trees to start from, 1 counts as 2; 0: random groups
    uint64_t seed = 0;

    // Defaults for the k nearest on the CPU.
    static DescentOptions for_neighbors(uint32_t k) noexcept {
        DescentOptions options;
        options.neighbors = k;
        options.degree = std::max(k + k / 2, k + 18);
        options.samples = 14;
        options.iterations = 12;
        options.trees = 4;
        return options;
    }
};

struct DescentReport {
    uint32_t iterations = 0;
    uint64_t compared = 0;  // pairs of rows whose distance was computed
};

// `done` of `total` steps of the phase. The builder's thread calls it between tasks; it must not
// throw.
enum class GraphPhase : uint8_t { start, descent, exact, distances };
using GraphProgress = std::function<void(GraphPhase phase, uint64_t done, uint64_t total)>;

// Consecutive rows.
struct RowSpan {
    size_t begin, end;
    size_t size() const { return end - begin; }
};

class PairFinder;
struct PairSearch;

class GraphBuilder {
  public:
    virtual ~GraphBuilder() = default;

    // For messages: "cpu", or the device's name.
    virtual const char* name() const noexcept = 0;

    // This builder's defaults for the k nearest.
    virtual DescentOptions default_options(uint32_t k) const noexcept {
        return DescentOptions::for_neighbors(k);
    }

    // Rows that fit at a time, beside the caller's own memory. Larger sets are built in parts.
    virtual size_t most_rows(uint32_t /*dims*/, const DescentOptions& /*options*/) const noexcept {
        return most_graph_rows;
    }

    // All pairs. `lists` is (count)(degree).
    virtual void exact(const GraphRows& rows, uint32_t degree, Edge* lists) = 0;

    // All pairs of one of the first `first` rows with one of the others, merged into lists that
    // hold the neighbors within each set, or padding.
    virtual void exact_merge(const GraphRows& rows, size_t first, uint32_t degree, Edge* lists) = 0;

    // The part of such work that makes the lists of some rows: of exact() where `first` is 0, else
    // of exact_merge(). `lists` is (part.size())(degree).
    virtual void exact_part(const GraphRows& rows, size_t first, const RowSpan& part,
                            uint32_t degree, Edge* lists) = 0;

    // NN-Descent from scratch.
    virtual DescentReport descend(const GraphRows& rows, const DescentOptions& options,
                                  Edge* lists) = 0;

    // The first `first` rows have a graph among themselves, the others another: no distance within
    // either set is computed. Lists shorter than the degree end with no_row.
    virtual DescentReport merge(const GraphRows& rows, size_t first, const DescentOptions& options,
                                Edge* lists) = 0;

    // The first `first` rows have a graph among themselves, the others were added since: all
    // distances of the others are new, and their lists hold no_row or neighbors known already.
    virtual DescentReport append(const GraphRows& rows, size_t first, const DescentOptions& options,
                                 Edge* lists) = 0;

    // A finder of all pairs whose distance, as a list stores it, is at most the search's bound
    // (similar_pairs.h). It takes as many bytes as the rows and 16 MB, at most. The rows outlive
    // it, and so does the builder.
    virtual std::unique_ptr<PairFinder> find_pairs(const GraphRows& rows,
                                                   const PairSearch& search) = 0;

    GraphProgress progress;  // may be empty
};

// Bytes that descend(), merge() and append() need beside rows and lists, at most.
size_t descent_memory(size_t count, uint32_t dims, const DescentOptions& options, int threads);

// Bytes that exact() needs beside rows and lists.
size_t exact_graph_memory(size_t count, uint32_t dims, int threads);

// Work ends with Interrupted once an interrupt is pending.
std::unique_ptr<GraphBuilder> make_cpu_graph_builder(int threads, const Interrupts& interrupts);

// Merges the edges of `others` before its first no_row into a list.
void add_edges(Edge* list, uint32_t degree, const Edge* others, uint32_t count) noexcept;

// The distance as a list stores it.
float graph_distance(Metric metric, const float* a, const float* b, uint32_t dims) noexcept;

}  // namespace pgwarp
