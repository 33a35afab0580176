#pragma once

namespace pgwarp {

// Opens the LAPACK that training of rotations needs, before any work; throws std::runtime_error
// where the system has none.
void require_lapack();

}  // namespace pgwarp
