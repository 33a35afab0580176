// A set beyond maintenance_work_mem is cut into parts of which two fit. Each part gets a graph of
// its own, then two at a time are merged (section 5 of the GNND paper). Merging needs the lists
// that a part has among itself, while what is found elsewhere goes into the result: two files of
// lists.
#pragma once

#include "extension/graph/job.h"

namespace pgwarp {

struct Parts {
    const GraphJob* job;
    const GraphSet* set;  // in a file
    bool exact;
    Size count;      // of parts
    Size* begins;    // (count + 1) rows
    Size most_rows;  // of a part
    uint32 degree;   // of the lists a merge works on
    BufFile* own;    // (rows)(degree): lists among a part, numbers in the part
    BufFile* found;  // (rows)(k): what is nearest so far, numbers in the set

    // Room for two parts; `results` for one.
    float* rows;
    Edge* lists;
    Edge* results;

    Size begin(Size part) const { return begins[part]; }
    Size size(Size part) const { return begins[part + 1] - begins[part]; }
};

// Rows that a builder has room for: two parts of a size that a graph is worth making of, at least.
Size rows_on_device(const GraphJob& job, uint32 dims);

// No part has rows on both sides of the border; 0: there is none.
Parts open_parts(const GraphJob& job, const GraphSet& set, bool exact, Size border);
void close_parts(Parts* parts);

// The graph of a part among itself, which is what is found so far.
void build_part(const Parts& parts, Size part);
// What the rows of two parts have in each other.
void merge_parts(const Parts& parts, Size first, Size second);
// Lists of what is found: read, and written back.
void read_found(const Parts& parts, Size part);
void write_found(const Parts& parts, Size part);
void put_found(const Parts& parts, const EdgeSink& sink);

// All parts, and every two of them.
void build_by_parts(const GraphJob& job, const GraphSet& set, bool exact, const EdgeSink& sink);

}  // namespace pgwarp
