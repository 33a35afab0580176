// Graphs of sets larger than maintenance_work_mem. The set is cut into parts of which two fit. Each
// part gets a graph of its own, then every two parts are merged (section 5 of the GNND paper).
// There are two files of lists: a merge starts from the lists within each part (`own`), and the
// neighbors it finds go into the result (`found`).
//
// With several devices, each makes the graph of a part, or a merge, at the same time (GraphTasks).
// This process alone reads and writes the files: it fills the buffers of a *lane*, and takes from
// them what a device has found. A merge changes no lists within a part, and of the neighbors found
// the nearest are kept, so the result does not depend on which merge ends first, nor where it ran.
// A set that memory has room for, and no device, needs no files: then the devices' threads do all
// of it (make_parted_graph()).
#pragma once

#include "kernels/graph_builder_group.h"
#include "extension/graph/job.h"

namespace pgwarp {

// Buffers for two parts, and what is being done there.
struct PartLane {
    float* rows;  // null: not allocated yet
    Edge* lists;
    Size first, second;  // parts; of a graph within one part, `second` is that part as well
    bool busy;
};

struct Parts {
    static constexpr Size most_lanes = 16;

    const GraphJob* job;
    const GraphSet* set;  // in a file
    bool exact;
    Size count;      // of parts
    Size* begins;    // (count + 1): first row of each part, then the set's count
    Size most_rows;  // of a part
    uint32 degree;   // of the lists a merge works on
    BufFile* own;    // (rows)(degree): lists within a part, row numbers of the part
    BufFile* found;  // (rows)(k): nearest so far, row numbers of the set

    MemoryContext context;
    PartLane lanes[most_lanes];
    Size lane_count;
    Owned<GraphTasks>* tasks;  // null: there is one lane, or nothing was begun yet
    bool* built;               // (count): parts whose `own` lists are written
    int64 done, total;         // graphs of parts and merges, for progress

    // Those of the first lane, for use while nothing is being done.
    float* rows;
    Edge* lists;
    Edge* results;  // for one part

    Size begin(Size part) const { return begins[part]; }
    Size size(Size part) const { return begins[part + 1] - begins[part]; }
};

// Rows that the job's builder has room for.
Size rows_on_device(const GraphJob& job, uint32 dims);

// No part has rows on both sides of row `border`; 0: no border.
Parts open_parts(const GraphJob& job, const GraphSet& set, bool exact, Size border);
void close_parts(Parts* parts);
// How many calls of build_part() and merge_parts() will follow.
void expect_parts(Parts* parts, Size total);

// Builds the graph within a part: its `own` lists, and the first contents of `found`. May return
// before it is done.
void build_part(Parts* parts, Size part);
// Finds neighbors across two parts, and adds them to `found`. May return before it is done.
void merge_parts(Parts* parts, Size first, Size second);
// Waits until all of that is done; then the functions below may be called.
void finish_parts(Parts* parts);

// Move a part's found lists from the file to `results`, and back; put_found() passes all to a sink.
void read_found(const Parts& parts, Size part);
void write_found(const Parts& parts, Size part);
void put_found(const Parts& parts, const EdgeSink& sink);

// The whole graph of a set in a file: builds every part, and merges every two of them.
void build_by_parts(const GraphJob& job, const GraphSet& set, bool exact, const EdgeSink& sink);

// The same by nn_descent for a set in memory, without files. False: there is one device, or no
// memory for several at once.
bool build_parts_in_memory(const GraphJob& job, const GraphSet& set, const EdgeSink& sink);

}  // namespace pgwarp
