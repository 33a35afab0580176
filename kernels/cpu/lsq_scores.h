#pragma once

#include "kernels/common.h"

namespace pgwarp {

// The number below 256 whose sum over all terms, (256) each, is smallest; ties go to the lowest.
// Sums fit sixteen bits. count > 0.
uint8_t argmin_of_sums(const uint16_t* const* terms, uint32_t count);

}  // namespace pgwarp
