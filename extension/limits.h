// Limits that settings, types and the format share.
#pragma once

namespace pgwarp {

// 20 bits: the build sorts by (list, tid) in one int64. A list takes a page at least, so that an
// index of this many has 8 GB.
inline constexpr int max_lists = 1048576;
// With more lists, they get parents (kernels/quantizer.h), unless an option says otherwise. It is
// also how many a build chooses by itself at most, and the most that the devices of the service
// take: their kernels rank all lists.
inline constexpr int max_plain_lists = 32768;
inline constexpr int max_parents = 65536;
inline constexpr int max_candidates = 1000000;  // that a user may ask for
// Rows that a search is planned for, at most: so 64 candidates for each, the most that a curve has
// (RecallCurve::factor_values), are a number of 32 bits.
inline constexpr int most_wanted_rows = 1 << 25;
inline constexpr int max_dims = 16000;  // of a vector, of any type

}  // namespace pgwarp
