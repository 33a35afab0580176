// Limits that settings and the format share.
#pragma once

namespace pgwarp {

inline constexpr int max_lists = 32768;  // 15 bits: the build sorts by (list, tid) in one int64

}  // namespace pgwarp
