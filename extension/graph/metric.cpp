#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/distance.h"
#include "extension/graph/metric.h"

extern "C" {
#include "lib/stringinfo.h"
}

namespace pgwarp {

namespace {

// "l2, inner_product (or ip), cosine and l1"
const char* list_names() {
    StringInfoData text;
    initStringInfo(&text);
    for (Size i = 0; i < lengthof(all_metrics); ++i) {
        const char *name = sql_name(all_metrics[i]), *other = short_name(all_metrics[i]);
        if (i > 0) appendStringInfoString(&text, i + 1 < lengthof(all_metrics) ? ", " : " and ");
        appendStringInfoString(&text, name);
        if (strcmp(name, other) != 0) appendStringInfo(&text, " (or %s)", other);
    }
    return text.data;
}

}  // namespace

Metric graph_metric_called(const char* name) {
    for (Metric metric : all_metrics)
        if (strcmp(name, sql_name(metric)) == 0 || strcmp(name, short_name(metric)) == 0)
            return metric;
    ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE), errmsg("unknown metric \"%s\"", name),
                    errhint("Metrics are %s.", list_names())));
    return Metric::l2;
}

float edge_operator_distance(Metric metric, float distance) {
    // Kernels clamp a distance that overflows; operators return infinity.
    if (distance == std::numeric_limits<float>::max())
        return std::numeric_limits<float>::infinity();
    return metric == Metric::l2 ? std::sqrt(distance) : distance;
}

bool prepare_row(Metric metric, float* row, uint32 dims) {
    if (!normalizes(metric)) return true;
    const double norm = std::sqrt(squared_norm(row, dims));
    if (!(norm > 0)) return false;
    for (uint32 d = 0; d < dims; ++d) row[d] = static_cast<float>(row[d] / norm);
    return true;
}

Size prepare_rows(Metric metric, float* rows, int64* keys, Size count, uint32 dims) {
    if (!normalizes(metric)) return count;
    Size kept = 0;
    for (Size i = 0; i < count; ++i) {
        float* row = rows + i * dims;
        if (!prepare_row(metric, row, dims)) continue;
        if (kept != i) {
            memcpy(rows + kept * dims, row, dims * sizeof(float));
            keys[kept] = keys[i];
        }
        ++kept;
    }
    return kept;
}

}  // namespace pgwarp
