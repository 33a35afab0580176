// SQL declares our functions, and may be of another version than the library: files of a new
// version are installed before ALTER EXTENSION ... UPDATE runs, or without it. A function that was
// declared with other arguments or columns must not run.
#pragma once

#include "extension/compat.h"

namespace pgwarp {

inline constexpr const char* library_version = "0.2.0";

// Reports an error unless the SQL declaration of the function has this number of arguments, and
// this number of result columns (0: the result is no row).
void check_signature(FunctionCallInfo fcinfo, int arguments, int columns);

}  // namespace pgwarp
