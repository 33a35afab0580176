// Prefetching memory that is read soon.
#pragma once

#include "extension/compat.h"

namespace pgwarp {

inline constexpr Size cache_line = 64;  // bytes, on x86-64 and most ARM

inline void prefetch_lines(const void* memory, Size bytes) {
    for (Size at = 0; at < bytes; at += cache_line)
        __builtin_prefetch(static_cast<const char*>(memory) + at);
}

}  // namespace pgwarp
