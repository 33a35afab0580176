// All settings (GUCs) of pgwarp.
#pragma once

namespace pgwarp {

enum class IterativeScan : int { off, relaxed_order, strict_order };

struct Settings {
    // Of the session:
    int probes;      // 0: from the recall curve
    int candidates;  // 0: from the recall curve
    double target_recall;
    int iterative_scan;   // IterativeScan
    int max_probes;       // 0: no bound
    int max_scan_tuples;  // 0: no bound
    int seed;
};
extern Settings settings;

void define_settings();

}  // namespace pgwarp
