// Whether enough candidates were ranked, by how well their codes tell which are nearest.
//
// The recall curve tells how many candidates to rank for the nearest rows. Rows that pass a
// condition may lie far away. There they are hardly farther than each other, compared with the
// error of codes, and the order by code says little. The scan sees that in the candidates that it
// has ranked: where codes tell little, many of the k nearest rows are among the last candidates by
// code.
#pragma once

#include "extension/compat.h"

namespace pgwarp {

struct RankedCode {
    double code;  // distance by code
    double exact;
};

struct RankedCodes {
    RankedCode* items;
    Size count;
    Size room;
    bool too_few;     // more candidates were asked for than the curve says
    Size least_rows;  // then: the round's minimum without that
};

// Records a ranked row. Allocates in the current memory context.
void note_code(RankedCodes* codes, double code, double exact);
// The share of the k nearest rows that are in the last half of the candidates by code. Reorders the
// items.
double late_share(RankedCodes* codes, Size k);

}  // namespace pgwarp
