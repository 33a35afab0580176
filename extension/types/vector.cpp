#include "extension/types/vector.h"

namespace pgwarp {

Vector* new_vector(int dims) {
    const Size size = offsetof(Vector, x) + static_cast<Size>(dims) * sizeof(float);
    auto* vector = static_cast<Vector*>(palloc(size));
    SET_VARSIZE(vector, size);
    vector->dims = static_cast<int16>(dims);
    vector->unused = 0;
    return vector;
}

}  // namespace pgwarp
