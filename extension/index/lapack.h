#pragma once

#include "extension/compat.h"

namespace pgwarp {

// Whether the system has what training of rotations needs; reports at this level where it lacks it.
bool check_lapack(const char* quantizer, int report_level);

}  // namespace pgwarp
