// Codes of single vectors by an additive quantizer (kernels/lsq.h).
//
// The search for a code reads tables of products, which take milliseconds to compute and megabytes
// to keep: a backend keeps those of the indexes it inserted into last.
#pragma once

#include "extension/index/format.h"

extern "C" {
#include "utils/rel.h"
}

namespace pgwarp {

// The code (m) of a residual; returns the entry's offset.
float encode_additive(Relation index, const MetaPage& meta, const float* residual,
                      const float* centroid, uint8* code);

}  // namespace pgwarp
