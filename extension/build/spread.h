// Measures how many lists a scan looks into for many rows, for the planner (index/effort).
#pragma once

#include "extension/build/curve.h"

namespace pgwarp {

// In one process, after the curve. It looks at a part of each list's first page only, which takes a
// small part of the curve's time.
ListSpread measure_spread(Relation index, const MetaPage& meta, const CurveQuery* queries,
                          uint32 count);

}  // namespace pgwarp
