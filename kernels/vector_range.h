// Vectors whose distances floats hold. Beyond, sums of squares and products overflow or underflow.
#pragma once

namespace pgwarp {

// Distances between vectors whose squared norms are not above this are floats, and so are their
// terms.
inline constexpr double most_squared_norm = 0x1p120;
// Where vectors get unit length: sums of squares have full precision if they are not below this.
inline constexpr double least_squared_norm = 0x1p-100;

}  // namespace pgwarp
