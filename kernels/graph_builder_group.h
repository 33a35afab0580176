// One graph builder from those of several devices.
//
// Exact graphs are dealt out: each device gets all rows and makes the lists of a part of them. A
// distance depends on its two rows only, so the lists are those of one device.
//
// A descent, and a merge, is the work of one device. Cutting rows into parts only to give each
// device one gains nothing: the merge of two parts takes half of the time of a descent over both,
// so n parts on n devices take 1/n of the whole, and their merges (n - 1)/n. Rows that are cut into
// parts anyway, because no device has room for all, are another matter: GraphTasks runs a part, or
// a merge, on each device at once.
#pragma once

#include "kernels/device.h"

#include <csignal>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace pgwarp {

// The others do the work of a device that fails or runs out of memory; where none is left, the
// builder that `make_cpu` makes. The failure is not thrown then; failure() returns it.
class GraphBuilderGroup final : public GraphBuilder {
  public:
    using MakeBuilder = std::function<std::unique_ptr<GraphBuilder>()>;
    // At least one member. Without `make_cpu`, the failure of the last device is thrown.
    // leave(member) is called once the member's builder is destroyed.
    GraphBuilderGroup(std::vector<std::unique_ptr<GraphBuilder>> members, MakeBuilder make_cpu,
                      std::function<void(size_t member)> leave = {});
    ~GraphBuilderGroup() override;

    // That of the first device that failed; empty while all work.
    const std::string& failure() const noexcept;
    // Devices that work; 0 once the CPU has taken over.
    size_t devices() const noexcept;
    // Whether the CPU has taken over.
    bool all_failed() const noexcept;

    const char* name() const noexcept override;
    DescentOptions default_options(uint32_t k) const noexcept override;
    size_t most_rows(uint32_t dims, const DescentOptions& options) const noexcept override;
    void exact(const GraphRows& rows, uint32_t degree, Edge* lists) override;
    void exact_merge(const GraphRows& rows, size_t first, uint32_t degree, Edge* lists) override;
    void exact_part(const GraphRows& rows, size_t first, const RowSpan& part, uint32_t degree,
                    Edge* lists) override;
    DescentReport descend(const GraphRows& rows, const DescentOptions& options,
                          Edge* lists) override;
    DescentReport merge(const GraphRows& rows, size_t first, const DescentOptions& options,
                        Edge* lists) override;
    DescentReport append(const GraphRows& rows, size_t first, const DescentOptions& options,
                         Edge* lists) override;
    // On one of the devices.
    std::unique_ptr<PairFinder> find_pairs(const GraphRows& rows,
                                           const PairSearch& search) override;

  private:
    friend class GraphTasks;
    struct State;
    const std::unique_ptr<State> state_;
};

// The graph of a part, or the merge of two.
struct GraphTask {
    GraphRows rows;
    size_t first;  // 0: a graph from scratch; else a merge, as merge() and exact_merge() have it
    bool exact;
    DescentOptions options;  // of exact graphs, the degree only
    Edge* lists;             // (rows.count)(degree)
    // Called in the thread that does the task: before it, again if another device repeats it, and
    // once it is done. May be null; must not throw.
    void (*prepare)(void* state) = nullptr;
    void (*keep)(void* state) = nullptr;
    void* state = nullptr;
};
void run_graph_task(GraphBuilder& builder, const GraphTask& task);

// Up to this many rows, comparing all pairs takes no longer than NN-Descent. The lists of a small
// part also hold few edges for a descent to follow, so that it would miss neighbors.
inline constexpr size_t most_exact_part = 8192;

// Tasks that run at once, one on each device of a group, which is used for nothing else meanwhile.
// Where a device fails, another does its task: its lists are unchanged then. Where none is left,
// the caller's thread does the tasks, as the group does its other work.
class GraphTasks {
  public:
    // `interrupt`: a flag that the group's builders poll, which only this thread and its signal
    // handlers write; null: none.
    explicit GraphTasks(GraphBuilderGroup& group, volatile std::sig_atomic_t* interrupt = nullptr);
    // Begins no other tasks. Ends those that run by raising the flag until they have ended; without
    // one, waits for them.
    ~GraphTasks();

    // The caller leaves rows and lists alone until finish() returns this number.
    void start(size_t number, const GraphTask& task);
    // Waits for one of the tasks, at least one of which was started and not finished yet. Throws
    // what a task has thrown; then no further task is done.
    size_t finish();

  private:
    struct State;
    const std::unique_ptr<State> state_;
};

// The graph of rows in memory that no device has room for: `parts` of about as many rows each, two
// of which have room, and every two of them merged, up to `lanes` at once.
struct PartedGraph {
    GraphRows rows;
    DescentOptions options;
    size_t parts;
    size_t lanes;
    Edge* own;    // (rows.count)(degree), for lists within a part
    Edge* found;  // (rows.count)(neighbors): the result
};
// Bytes that it takes beside these.
size_t parted_graph_memory(const PartedGraph& graph);
// Reports progress from the caller's thread: tasks that are done, of all.
void make_parted_graph(GraphBuilderGroup& group, const PartedGraph& graph,
                       const std::function<void(size_t done, size_t total)>& progress);

}  // namespace pgwarp
