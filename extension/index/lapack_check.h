#pragma once

#include "extension/compat.h"

namespace pgwarp {

// Whether LAPACK, which training of this quantizer needs, can be loaded; reports at this level if
// not.
bool check_lapack(const char* quantizer, int report_level);

}  // namespace pgwarp
