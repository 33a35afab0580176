// Encodes one vector, for INSERT; kernels encode batches.
#pragma once

#include "extension/index/format.h"

extern "C" {
#include "utils/rel.h"
}

namespace pgwarp {

// A vector's list and offset. The offset includes the part of the squared norm that a rotation
// dropped.
struct EncodedVector {
    uint32 list;
    float offset;
};
// `form` and `dropped` come from model_form(); writes the code, (m), and the refinement,
// (refinement_layout(meta).bytes()).
EncodedVector encode_vector(Relation index, const MetaPage& meta, const float* form, float dropped,
                            uint8* code, uint8* refinement);

}  // namespace pgwarp
