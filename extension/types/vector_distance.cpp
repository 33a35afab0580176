// Distances between two vectors; dimensions and norm of one.

#include <cmath>

#include "kernels/distance.h"
#include "extension/types/vector.h"
#include "extension/types/vector_cache.h"

using namespace pgwarp;

namespace {

// The two arguments of a distance, checked to have equal dimensions.
struct Pair {
    const Vector* a;
    const Vector* b;

    explicit Pair(FunctionCallInfo fcinfo)
        : a(find_vector(PG_GETARG_DATUM(0))), b(find_vector(PG_GETARG_DATUM(1))) {
        check_same_dims(a, b);
    }

    template <typename Kernel>
    auto apply(Kernel kernel) const {
        return kernel(a->x, b->x, static_cast<size_t>(a->dims));
    }
};

// Rounding can carry a cosine out of [-1, 1].
double clamp_cosine(double cosine) {
    if (cosine > 1) return 1;
    if (cosine < -1) return -1;
    return cosine;
}

}  // namespace

PGWARP_FUNCTION(pgwarp_l2_distance) {
    const double squared = Pair(fcinfo).apply(squared_l2_distance);
    PG_RETURN_FLOAT8(std::sqrt(squared));
}

PGWARP_FUNCTION(pgwarp_vector_l2_squared_distance) {
    PG_RETURN_FLOAT8(Pair(fcinfo).apply(squared_l2_distance));
}

PGWARP_FUNCTION(pgwarp_inner_product) {
    PG_RETURN_FLOAT8(Pair(fcinfo).apply(dot_product));
}

PGWARP_FUNCTION(pgwarp_vector_negative_inner_product) {
    PG_RETURN_FLOAT8(-Pair(fcinfo).apply(dot_product));
}

// NaN where one of the vectors is zero: it has no direction.
PGWARP_FUNCTION(pgwarp_cosine_distance) {
    const CosineParts parts = Pair(fcinfo).apply(cosine_parts);
    const double squared_norms =
        static_cast<double>(parts.squared_norm_a) * static_cast<double>(parts.squared_norm_b);
    PG_RETURN_FLOAT8(1 - clamp_cosine(parts.product / std::sqrt(squared_norms)));
}

// The angle between unit vectors, divided by pi; unlike cosine distance, it obeys the triangle
// inequality.
PGWARP_FUNCTION(pgwarp_vector_spherical_distance) {
    const double cosine = clamp_cosine(Pair(fcinfo).apply(dot_product));
    PG_RETURN_FLOAT8(std::acos(cosine) / M_PI);
}

PGWARP_FUNCTION(pgwarp_l1_distance) {
    PG_RETURN_FLOAT8(Pair(fcinfo).apply(l1_distance));
}

PGWARP_FUNCTION(pgwarp_vector_dims) {
    PG_RETURN_INT32(datum_get_vector(PG_GETARG_DATUM(0))->dims);
}

PGWARP_FUNCTION(pgwarp_vector_norm) {
    const Vector* vector = datum_get_vector(PG_GETARG_DATUM(0));
    PG_RETURN_FLOAT8(std::sqrt(squared_norm(vector->x, static_cast<size_t>(vector->dims))));
}
