// The access method's callbacks for CREATE INDEX.
#pragma once

#include "kernels/common.h"
#include "extension/compat.h"

extern "C" {
#include "access/amapi.h"
#include "utils/rel.h"
}

namespace pgwarp {

IndexBuildResult* ivfpq_build(Relation heap, Relation index, IndexInfo* info);
void ivfpq_build_empty(Relation index);

}  // namespace pgwarp
