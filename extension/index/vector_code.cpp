#include <cstring>

#include "extension/index/additive.h"
#include "extension/index/model.h"
#include "extension/index/vector_code.h"

namespace pgwarp {

EncodedVector encode_vector(Relation index, const MetaPage& meta, const float* form, float dropped,
                            uint8* code, uint8* refinement) {
    float* centroid = static_cast<float*>(palloc(meta.code_dims * sizeof(float)));
    float* residual = static_cast<float*>(palloc(meta.code_dims * sizeof(float)));
    const uint32 list = nearest_list(index, meta, form, centroid);
    for (uint32 d = 0; d < meta.code_dims; ++d) residual[d] = form[d] - centroid[d];
    float offset;
    if (shape_of(meta).additive()) {
        offset = encode_additive(index, meta, residual, centroid, code);
    } else {
        offset = encode_by_pieces(index, meta, residual, centroid, code) + dropped;
        if (!has_norms(meta.metric)) offset = 0;
    }
    if (meta.refinement != RefinementKind::none) {
        const RefinementHead head =
            encode_refinement(meta.metric, form, centroid, meta.code_dims,
                              reinterpret_cast<int8*>(refinement + sizeof(RefinementHead)));
        memcpy(refinement, &head, sizeof(head));
    }
    pfree(residual);
    pfree(centroid);
    return {list, offset};
}

}  // namespace pgwarp
