// From one vector to its entry, for INSERT: batches are encoded by kernels.
#pragma once

#include "extension/index/format.h"

extern "C" {
#include "utils/rel.h"
}

namespace pgwarp {

// A vector's list and offset. The offset includes what a rotation dropped of the squared norm.
struct EncodedVector {
    uint32 list;
    float offset;
};
// `form` and `dropped` come from model_form(); writes the code, (m).
EncodedVector encode_vector(Relation index, const MetaPage& meta, const float* form, float dropped,
                            uint8* code);

}  // namespace pgwarp
