// Limits that settings, types and the format share.
#pragma once

namespace pgwarp {

inline constexpr int max_lists = 32768;  // 15 bits: the build sorts by (list, tid) in one int64
inline constexpr int max_dims = 16000;   // of a vector, of any type

}  // namespace pgwarp
