#include <climits>

#include "extension/settings.h"
#include "extension/ivfpq_format.h"

extern "C" {
#include "utils/guc.h"
}

namespace pgwarp {

Settings settings = {
    .probes = 0,
    .candidates = 0,
    .target_recall = 0.95,
    .iterative_scan = static_cast<int>(IterativeScan::relaxed_order),
    .max_probes = 0,
    .max_scan_tuples = 0,
    .seed = 0,
};

namespace {

const config_enum_entry iterative_scan_options[] = {
    {"off", static_cast<int>(IterativeScan::off), false},
    {"relaxed_order", static_cast<int>(IterativeScan::relaxed_order), false},
    {"strict_order", static_cast<int>(IterativeScan::strict_order), false},
    {nullptr, 0, false},
};

}  // namespace

void define_settings() {
    DefineCustomIntVariable("ivfpq.probes", "Sets how many lists a scan looks into first.",
                            "0 lets the index choose from its recall curve and "
                            "ivfpq.target_recall.",
                            &settings.probes, settings.probes, 0, max_lists, PGC_USERSET, 0,
                            nullptr, nullptr, nullptr);
    DefineCustomIntVariable("ivfpq.candidates",
                            "Sets how many rows a scan first ranks by exact distance.",
                            "0 lets the index choose from its recall curve and "
                            "ivfpq.target_recall.",
                            &settings.candidates, settings.candidates, 0, 1000000, PGC_USERSET, 0,
                            nullptr, nullptr, nullptr);
    DefineCustomRealVariable("ivfpq.target_recall",
                             "Sets the share of true neighbors a scan aims to find.", nullptr,
                             &settings.target_recall, settings.target_recall, 0.0, 1.0, PGC_USERSET,
                             0, nullptr, nullptr, nullptr);
    DefineCustomEnumVariable(
        "ivfpq.iterative_scan", "Sets how a scan goes on when more rows are wanted.",
        "relaxed_order goes on in rounds, each in exact order; strict_order leaves out rows that "
        "would come out of order; off ends after the first round.",
        &settings.iterative_scan, settings.iterative_scan, iterative_scan_options, PGC_USERSET, 0,
        nullptr, nullptr, nullptr);
    DefineCustomIntVariable("ivfpq.max_probes", "Sets how many lists a scan looks into at most.",
                            "0 means no bound.", &settings.max_probes, settings.max_probes, 0,
                            max_lists, PGC_USERSET, 0, nullptr, nullptr, nullptr);
    DefineCustomIntVariable(
        "ivfpq.max_scan_tuples", "Sets after how many rows a scan begins no further round.",
        "0 means no bound.", &settings.max_scan_tuples, settings.max_scan_tuples, 0, INT_MAX,
        PGC_USERSET, 0, nullptr, nullptr, nullptr);
    DefineCustomIntVariable("ivfpq.seed", "Sets the seed of training.",
                            "The same rows, settings and seed give the same index.", &settings.seed,
                            settings.seed, INT_MIN, INT_MAX, PGC_USERSET, 0, nullptr, nullptr,
                            nullptr);
    compat_reserve_prefix("ivfpq");
}

}  // namespace pgwarp
