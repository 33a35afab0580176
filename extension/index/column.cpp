#include <cmath>
#include <cstring>

#include "kernels/distance.h"
#include "kernels/vector_range.h"
#include "extension/index/column.h"

extern "C" {
#include "access/genam.h"
#include "catalog/pg_type.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/ruleutils.h"
}

namespace pgwarp {

namespace {

// The vector's column or expression as SQL, without the attributes.
const char* first_column_text(Relation index) {
    return TextDatumGetCString(DirectFunctionCall3(pg_get_indexdef_ext,
                                                   ObjectIdGetDatum(RelationGetRelid(index)),
                                                   Int32GetDatum(1), BoolGetDatum(true)));
}

// Whether there is a cast from arrays of these to vectors.
bool is_number(Oid type) {
    return type == INT4OID || type == FLOAT4OID || type == FLOAT8OID || type == NUMERICOID;
}

[[noreturn]] void report_no_vector(Relation index) {
    const Oid type = getBaseType(TupleDescAttr(RelationGetDescr(index), 0)->atttypid);
    ereport(ERROR, (errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
                    errmsg("the first column of an ivfpq index must be a vector"),
                    errdetail("The other columns are attributes for conditions."),
                    is_number(get_element_type(type))
                        ? errhint("Use CREATE INDEX ... USING ivfpq ((%s::vector(n))) and ORDER BY "
                                  "the same expression.",
                                  first_column_text(index))
                        : 0));
}

[[noreturn]] void report_no_dimensions(Relation index) {
    const char* what = first_column_text(index);
    const Oid table = index->rd_index->indrelid;
    const bool is_column = index->rd_index->indkey.values[0] != 0;
    const char* type = type_of(index).name();
    ereport(ERROR,
            (errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("column does not have dimensions"),
             is_column ? errdetail("Column %s of table \"%s\" has type %s, not %s(n).", what,
                                   get_rel_name(table), type, type)
                       : errdetail("Expression %s has type %s, not %s(n).", what, type, type),
             is_column ? errhint("Use ALTER TABLE %s ALTER COLUMN %s TYPE %s(n), or "
                                 "CREATE INDEX ... USING ivfpq ((%s::%s(n))) and ORDER BY the same "
                                 "expression.",
                                 quote_identifier(get_rel_name(table)), what, type, what, type)
                       : errhint("Use CREATE INDEX ... USING ivfpq ((%s::%s(n))) and ORDER BY the "
                                 "same expression.",
                                 what, type)));
}

}  // namespace

Metric metric_of(Relation index) {
    if (!OidIsValid(index_getprocid(index, 1, metric_procedure))) report_no_vector(index);
    const FmgrInfo* procedure = index_getprocinfo(index, 1, metric_procedure);
    const int32 metric = DatumGetInt32(
        FunctionCall1Coll(const_cast<FmgrInfo*>(procedure), InvalidOid, Int32GetDatum(0)));
    return static_cast<Metric>(metric);
}

VectorType type_of(Relation index) {
    return VectorType::of(index->rd_opcintype[0],
                          TupleDescAttr(RelationGetDescr(index), 0)->atttypmod);
}

uint32 declared_dims(Relation index) {
    const auto* column = TupleDescAttr(RelationGetDescr(index), 0);
    return VectorType::of(column->atttypid, column->atttypmod).dims();
}

int dims_of(Relation index) {
    const uint32 dims = declared_dims(index);
    if (dims == 0) report_no_dimensions(index);
    return static_cast<int>(dims);
}

void index_form(Metric metric, const float* from, uint32 dims, float* to) {
    if (!normalizes(metric)) {
        memcpy(to, from, dims * sizeof(float));
        return;
    }
    const double norm = std::sqrt(squared_norm(from, dims));
    for (uint32 i = 0; i < dims; ++i) to[i] = norm > 0 ? static_cast<float>(from[i] / norm) : 0;
}

namespace {

// First elements that no form of a row in a list has. Under cosine forms are of length 1.
constexpr float no_direction_mark = 4;
float out_of_range_mark(Metric metric) {
    return normalizes(metric) ? -no_direction_mark : 0x1p61f;
}
static_assert(0x1p61 * 0x1p61 > most_squared_norm);

RowKind kind_by_norm(Metric metric, double squared_norm) {
    if (normalizes(metric)) {
        if (squared_norm == 0) return RowKind::no_direction;
        if (squared_norm < least_squared_norm) return RowKind::out_of_range;
    }
    return squared_norm <= most_squared_norm ? RowKind::in_lists : RowKind::out_of_range;
}

}  // namespace

RowKind kind_of(Metric metric, const StoredVector& row) {
    return kind_by_norm(
        metric, row.visit([&](const auto* elements) { return squared_norm(elements, row.dims); }));
}

RowKind kind_of(Metric metric, const float* vector, uint32 dims) {
    return kind_by_norm(metric, squared_norm(vector, dims));
}

RowKind row_form(Metric metric, const float* from, uint32 dims, float* to) {
    const RowKind kind = kind_of(metric, from, dims);
    if (kind == RowKind::in_lists) {
        index_form(metric, from, dims, to);
        return kind;
    }
    memset(to, 0, dims * sizeof(float));
    to[0] = kind == RowKind::no_direction ? no_direction_mark : out_of_range_mark(metric);
    return kind;
}

RowKind kind_of_form(Metric metric, const float* form) {
    if (normalizes(metric) && form[0] == no_direction_mark) return RowKind::no_direction;
    return form[0] == out_of_range_mark(metric) ? RowKind::out_of_range : RowKind::in_lists;
}

}  // namespace pgwarp
