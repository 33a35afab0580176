// Distances between two vectors; dimensions and norm of one.

#include <cmath>

#include "kernels/distance.h"
#include "extension/types/halfvec.h"
#include "extension/types/vector_cache.h"

using namespace pgwarp;

namespace {

// The two arguments of a distance, checked to have equal dimensions.
template <typename Any>
struct Pair {
    const Any* a;
    const Any* b;

    explicit Pair(FunctionCallInfo fcinfo)
        : a(find<Any>(PG_GETARG_DATUM(0))), b(find<Any>(PG_GETARG_DATUM(1))) {
        check_same_dims(a, b);
    }

    size_t dims() const { return static_cast<size_t>(a->dims); }
    double squared_l2() const { return squared_l2_distance(a->x, b->x, dims()); }
    double product() const { return dot_product(a->x, b->x, dims()); }
    double l1() const { return l1_distance(a->x, b->x, dims()); }

    // NaN where one of the vectors is zero: it has no direction.
    double cosine() const {
        const CosineParts parts = cosine_parts(a->x, b->x, dims());
        const double squared_norms =
            static_cast<double>(parts.squared_norm_a) * static_cast<double>(parts.squared_norm_b);
        return clamp_cosine(parts.product / std::sqrt(squared_norms));
    }

    // The angle between unit vectors, divided by pi; unlike cosine distance, it obeys the triangle
    // inequality.
    double spherical() const { return std::acos(clamp_cosine(product())) / M_PI; }

    // Rounding can carry a cosine out of [-1, 1].
    static double clamp_cosine(double cosine) {
        if (cosine > 1) return 1;
        if (cosine < -1) return -1;
        return cosine;
    }
};

template <typename Any>
double norm_of(Datum datum) {
    const Any* vector = datum_get<Any>(datum);
    return std::sqrt(squared_norm(vector->x, static_cast<size_t>(vector->dims)));
}

}  // namespace

PGWARP_FUNCTION(pgwarp_l2_distance) {
    PG_RETURN_FLOAT8(std::sqrt(Pair<Vector>(fcinfo).squared_l2()));
}

PGWARP_FUNCTION(pgwarp_vector_l2_squared_distance) {
    PG_RETURN_FLOAT8(Pair<Vector>(fcinfo).squared_l2());
}

PGWARP_FUNCTION(pgwarp_inner_product) {
    PG_RETURN_FLOAT8(Pair<Vector>(fcinfo).product());
}

PGWARP_FUNCTION(pgwarp_vector_negative_inner_product) {
    PG_RETURN_FLOAT8(-Pair<Vector>(fcinfo).product());
}

PGWARP_FUNCTION(pgwarp_cosine_distance) {
    PG_RETURN_FLOAT8(1 - Pair<Vector>(fcinfo).cosine());
}

PGWARP_FUNCTION(pgwarp_vector_spherical_distance) {
    PG_RETURN_FLOAT8(Pair<Vector>(fcinfo).spherical());
}

PGWARP_FUNCTION(pgwarp_l1_distance) {
    PG_RETURN_FLOAT8(Pair<Vector>(fcinfo).l1());
}

PGWARP_FUNCTION(pgwarp_vector_dims) {
    PG_RETURN_INT32(datum_get<Vector>(PG_GETARG_DATUM(0))->dims);
}

PGWARP_FUNCTION(pgwarp_vector_norm) {
    PG_RETURN_FLOAT8(norm_of<Vector>(PG_GETARG_DATUM(0)));
}

PGWARP_FUNCTION(pgwarp_halfvec_l2_distance) {
    PG_RETURN_FLOAT8(std::sqrt(Pair<HalfVector>(fcinfo).squared_l2()));
}

PGWARP_FUNCTION(pgwarp_halfvec_l2_squared_distance) {
    PG_RETURN_FLOAT8(Pair<HalfVector>(fcinfo).squared_l2());
}

PGWARP_FUNCTION(pgwarp_halfvec_inner_product) {
    PG_RETURN_FLOAT8(Pair<HalfVector>(fcinfo).product());
}

PGWARP_FUNCTION(pgwarp_halfvec_negative_inner_product) {
    PG_RETURN_FLOAT8(-Pair<HalfVector>(fcinfo).product());
}

PGWARP_FUNCTION(pgwarp_halfvec_cosine_distance) {
    PG_RETURN_FLOAT8(1 - Pair<HalfVector>(fcinfo).cosine());
}

PGWARP_FUNCTION(pgwarp_halfvec_spherical_distance) {
    PG_RETURN_FLOAT8(Pair<HalfVector>(fcinfo).spherical());
}

PGWARP_FUNCTION(pgwarp_halfvec_l1_distance) {
    PG_RETURN_FLOAT8(Pair<HalfVector>(fcinfo).l1());
}

PGWARP_FUNCTION(pgwarp_halfvec_dims) {
    PG_RETURN_INT32(datum_get<HalfVector>(PG_GETARG_DATUM(0))->dims);
}

PGWARP_FUNCTION(pgwarp_halfvec_l2_norm) {
    PG_RETURN_FLOAT8(norm_of<HalfVector>(PG_GETARG_DATUM(0)));
}
