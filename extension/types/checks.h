// What must hold for vectors of any type, and the messages where it does not.
#pragma once

#include "extension/compat.h"

namespace pgwarp {

// Each returns true or reports an error. With the context of an input function it may instead save
// the error there and return false (see PGWARP_REJECT).
bool check_dims(int dims, fmNodePtr context = nullptr);
bool check_expected_dims(int32 typmod, int dims, fmNodePtr context = nullptr);
bool check_element(float value, fmNodePtr context = nullptr);

void check_elements(const float* values, int dims);

[[noreturn]] void report_different_dims(uint32 a, uint32 b);
inline void check_same_dims(uint32 a, uint32 b) {
    if (a != b) report_different_dims(a, b);
}

}  // namespace pgwarp
