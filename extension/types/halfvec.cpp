#include <cmath>

#include "extension/types/halfvec.h"

extern "C" {
#include "common/shortest_dec.h"
}

namespace pgwarp {

void set_elements(HalfVector* vector, const float* values) {
    if (to_float16s(values, static_cast<size_t>(vector->dims), vector->x)) return;
    for (int i = 0; i < vector->dims; i++) {
        if (!std::isfinite(values[i]) || std::fabs(values[i]) < halfvec_limit) continue;
        char text[FLOAT_SHORTEST_DECIMAL_LEN];
        float_to_shortest_decimal_buf(values[i], text);
        ereport(ERROR, (errcode(ERRCODE_NUMERIC_VALUE_OUT_OF_RANGE),
                        errmsg("\"%s\" is out of range for type halfvec", text)));
    }
    check_elements(values, vector->dims, HalfVector::type_name);
}

}  // namespace pgwarp
