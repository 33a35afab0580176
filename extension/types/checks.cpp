#include <cmath>

#include "extension/limits.h"
#include "extension/types/checks.h"

namespace pgwarp {

bool check_dims(int dims, const char* type, fmNodePtr context) {
    if (dims < 1)
        PGWARP_REJECT(
            context, false,
            (errcode(ERRCODE_DATA_EXCEPTION), errmsg("%s must have at least 1 dimension", type)));
    if (dims > max_dims)
        PGWARP_REJECT(context, false,
                      (errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
                       errmsg("%s cannot have more than %d dimensions", type, max_dims)));
    return true;
}

bool check_expected_dims(int32 typmod, int dims, fmNodePtr context) {
    if (typmod != -1 && typmod != dims)
        PGWARP_REJECT(context, false,
                      (errcode(ERRCODE_DATA_EXCEPTION),
                       errmsg("expected %d dimensions, not %d", typmod, dims)));
    return true;
}

bool check_element(float value, const char* type, fmNodePtr context) {
    if (std::isnan(value))
        PGWARP_REJECT(context, false,
                      (errcode(ERRCODE_DATA_EXCEPTION), errmsg("NaN not allowed in %s", type)));
    if (std::isinf(value))
        PGWARP_REJECT(
            context, false,
            (errcode(ERRCODE_DATA_EXCEPTION), errmsg("infinite value not allowed in %s", type)));
    return true;
}

void check_elements(const float* values, int dims, const char* type) {
    // x - x is NaN for infinity and NaN: the sum stays 0 while all elements are finite.
    float odd = 0;
    for (int i = 0; i < dims; i++) odd += values[i] - values[i];
    if (odd == 0) return;
    for (int i = 0; i < dims; i++) check_element(values[i], type);
}

void report_different_dims(uint32 a, uint32 b, const char* type) {
    ereport(ERROR, (errcode(ERRCODE_DATA_EXCEPTION),
                    errmsg("different %s dimensions %u and %u", type, a, b)));
}

}  // namespace pgwarp
