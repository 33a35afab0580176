// What must hold for vectors of any type, and the messages where it does not. They name the type as
// SQL does.
#pragma once

#include "extension/compat.h"

namespace pgwarp {

// Each returns true or reports an error. With the context of an input function it may instead save
// the error there and return false (see PGWARP_REJECT).
bool check_dims(int dims, const char* type, fmNodePtr context = nullptr);
bool check_expected_dims(int32 typmod, int dims, fmNodePtr context = nullptr);
bool check_element(float value, const char* type, fmNodePtr context = nullptr);

void check_elements(const float* values, int dims, const char* type);

[[noreturn]] void report_different_dims(uint32 a, uint32 b, const char* type);
inline void check_same_dims(uint32 a, uint32 b, const char* type) {
    if (a != b) report_different_dims(a, b, type);
}

}  // namespace pgwarp
