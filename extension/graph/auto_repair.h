// Repairs a graph where rows of its table have changed.
#pragma once

#include "extension/graph/auto.h"

namespace pgwarp {

// `changed`: keys whose rows were added, changed or removed; sorted, none twice. Inside SPI, with a
// lock that keeps other repairs out, as the owner of both tables. The active snapshot sees what
// changed.
void repair_graph(const KeptGraph& kept, const int64* changed, Size count);

}  // namespace pgwarp
