// Graphs of sets larger than maintenance_work_mem. The set is cut into parts of which two fit. Each
// part gets a graph of its own, then every two parts are merged (section 5 of the GNND paper).
// There are two files of lists: a merge starts from the lists within each part (`own`), and the
// neighbors it finds go into the result (`found`).
#pragma once

#include "extension/graph/job.h"

namespace pgwarp {

struct Parts {
    const GraphJob* job;
    const GraphSet* set;  // in a file
    bool exact;
    Size count;      // of parts
    Size* begins;    // (count + 1): first row of each part, then the set's count
    Size most_rows;  // of a part
    uint32 degree;   // of the lists a merge works on
    BufFile* own;    // (rows)(degree): lists within a part, row numbers of the part
    BufFile* found;  // (rows)(k): nearest so far, row numbers of the set

    // Buffers: `rows` and `lists` for two parts, `results` for one.
    float* rows;
    Edge* lists;
    Edge* results;

    Size begin(Size part) const { return begins[part]; }
    Size size(Size part) const { return begins[part + 1] - begins[part]; }
};

// Rows that the builder has room for; at least two parts of the smallest useful size.
Size rows_on_device(const GraphJob& job, uint32 dims);

// No part has rows on both sides of row `border`; 0: no border.
Parts open_parts(const GraphJob& job, const GraphSet& set, bool exact, Size border);
void close_parts(Parts* parts);

// Builds the graph within a part: its `own` lists, and the first contents of `found`.
void build_part(const Parts& parts, Size part);
// Finds neighbors across two parts, and adds them to `found`.
void merge_parts(const Parts& parts, Size first, Size second);
// Move a part's found lists from the file to `results`, and back; put_found() passes all to a sink.
void read_found(const Parts& parts, Size part);
void write_found(const Parts& parts, Size part);
void put_found(const Parts& parts, const EdgeSink& sink);

// The whole graph: builds every part, and merges every two of them.
void build_by_parts(const GraphJob& job, const GraphSet& set, bool exact, const EdgeSink& sink);

}  // namespace pgwarp
