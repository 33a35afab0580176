// k-NN graphs of rows in memory: exact, by NN-Descent, merged from graphs of two sets, and grown.
//
// The boundary for graphs, as executor.h is for indexes: a builder works on the CPU or on a device.
// Functions throw as an executor's do (std::bad_alloc, Interrupted), and leave the lists
// unspecified then. A builder is used by one thread at a time.
#pragma once

#include "kernels/common.h"

#include <algorithm>
#include <csignal>
#include <functional>
#include <memory>

namespace pgwarp {

// Distances, as they stand in a list:
//   l2             squared
//   inner_product  negative
//   cosine         half the squared L2 distance of rows that the caller has normalised: 1 - cos
//   l1             as it is
enum class GraphMetric : uint8_t { l2, inner_product, cosine, l1 };

struct GraphRows {
    const float* rows;  // (count)(dims)
    size_t count;       // at most most_graph_rows
    uint32_t dims;
    GraphMetric metric;

    const float* row(size_t i) const { return rows + i * dims; }
};

inline constexpr size_t most_graph_rows = (size_t{1} << 31) - 2;

struct Edge {
    float distance;
    uint32_t row;
};
static_assert(sizeof(Edge) == 8);

// In a list's last places, where there are fewer rows than places; its distance is infinity.
inline constexpr uint32_t no_row = 0x7fffffff;

// Lists are (count)(degree): of each row its neighbors by (distance, row), never itself, none
// twice. Distances are those of graph_distance(), of the two rows alone, on a device up to
// rounding; in the places of a descent's list behind the neighbors that are wanted they may be off
// by rounding on the CPU, too.
struct DescentOptions {
    uint32_t neighbors = 0;  // that are wanted in the end: k
    uint32_t degree = 0;     // places of a list, more than those
    uint32_t samples = 0;  // p of the paper: so many new and old neighbors forwards, and backwards
    uint32_t iterations = 0;  // at most
    uint32_t trees = 0;       // that it starts from, 1 counts as 2; 0: groups made by chance
    uint64_t seed = 0;

    // Good ones for the k nearest, on the CPU.
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

// Where it is: `done` of `total` steps of the phase. Called by the builder's thread, between tasks;
// must not throw.
enum class GraphPhase : uint8_t { start, descent, exact, distances };
using GraphProgress = std::function<void(GraphPhase phase, uint64_t done, uint64_t total)>;

class GraphBuilder {
  public:
    virtual ~GraphBuilder() = default;

    // For messages: "cpu", or the device's name.
    virtual const char* name() const noexcept = 0;

    // Good ones for the k nearest, where nobody asks for others.
    virtual DescentOptions default_options(uint32_t k) const noexcept {
        return DescentOptions::for_neighbors(k);
    }

    // Rows that it has room for at a time, beside the caller's own memory. Sets of more are made
    // part by part.
    virtual size_t most_rows(uint32_t /*dims*/, const DescentOptions& /*options*/) const noexcept {
        return most_graph_rows;
    }

    // All pairs. `lists` is (count)(degree).
    virtual void exact(const GraphRows& rows, uint32_t degree, Edge* lists) = 0;

    // All pairs of one of the first `first` rows and one of the others, into lists that hold what
    // each set has among itself, or nothing.
    virtual void exact_merge(const GraphRows& rows, size_t first, uint32_t degree, Edge* lists) = 0;

    // NN-Descent from nothing.
    virtual DescentReport descend(const GraphRows& rows, const DescentOptions& options,
                                  Edge* lists) = 0;

    // The first `first` rows have a graph among themselves, the others another: no distance within
    // either set is computed. Lists that are shorter than the degree end with no_row.
    virtual DescentReport merge(const GraphRows& rows, size_t first, const DescentOptions& options,
                                Edge* lists) = 0;

    // The first `first` rows have a graph among themselves, the others were added since: all their
    // distances are new, and their lists hold no_row, or what is known of them already.
    virtual DescentReport append(const GraphRows& rows, size_t first, const DescentOptions& options,
                                 Edge* lists) = 0;

    GraphProgress progress;  // may be empty
};

// What descend(), merge() and append() need beside rows and lists, at most.
size_t descent_memory(size_t count, uint32_t dims, const DescentOptions& options, int threads);

// What exact() needs beside rows and lists.
size_t exact_graph_memory(size_t count, uint32_t dims, int threads);

// The flags, where not null, are polled; once either is raised, work ends with Interrupted.
std::unique_ptr<GraphBuilder> make_cpu_graph_builder(
    int threads, const volatile std::sig_atomic_t* interrupt,
    const volatile std::sig_atomic_t* other_interrupt = nullptr);

// Merges what `others` holds before its first no_row into a list.
void add_edges(Edge* list, uint32_t degree, const Edge* others, uint32_t count) noexcept;

// The distance of a list's entry.
float graph_distance(GraphMetric metric, const float* a, const float* b, uint32_t dims) noexcept;

}  // namespace pgwarp
