#include <cmath>

#include "extension/index/options.h"
#include "extension/scan/explain.h"
#include "extension/scan/state.h"

extern "C" {
#include "nodes/execnodes.h"
}

namespace pgwarp {

namespace {

// Sums over all loops of the node; the least score, and the mean of the recall that is expected.
[[maybe_unused]] void explain_scan(PlanState* node, ExplainState* es) {
    if (!es->analyze || !IsA(node, IndexScanState)) return;
    const auto* scan = reinterpret_cast<const IndexScanState*>(node);
    // Null: no row was asked for.
    if (!scan->iss_RelationDesc || !is_ivfpq(scan->iss_RelationDesc) || !scan->iss_ScanDesc) return;
    const ScanTotals totals = totals_of(static_cast<const ScanState*>(scan->iss_ScanDesc->opaque));
    if (totals.given > 0) ExplainPropertyInteger("Rows by Batches", nullptr, totals.given, es);
    if (totals.searches == 0) return;
    const char* executor = totals.served == 0                 ? "cpu"
                           : totals.served == totals.searches ? "service"
                                                              : "service, cpu";
    ExplainPropertyText("Executor", executor, es);
    if (totals.reason) ExplainPropertyText("Service Not Used", totals.reason, es);
    ExplainPropertyInteger("Rounds", nullptr, totals.rounds, es);
    ExplainPropertyInteger("Lists Probed", nullptr, totals.probes, es);
    ExplainPropertyInteger("Candidates", nullptr, totals.candidates, es);
    ExplainPropertyInteger("Rows Visited", nullptr, totals.ranked_rows, es);
    if (totals.score > 0 && std::isfinite(totals.score))
        ExplainPropertyFloat("Stop Score", nullptr, totals.score, 1, es);
    if (totals.expectations > 0)
        ExplainPropertyFloat("Expected Recall", nullptr,
                             totals.expected_recall / static_cast<double>(totals.expectations), 3,
                             es);
}

}  // namespace

void install_explain_hook() {
    compat_explain_nodes(explain_scan);
}

}  // namespace pgwarp
