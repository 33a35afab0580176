#include <algorithm>
#include <cmath>

#include "kernels/additive.h"
#include "extension/index/format.h"
#include "extension/create/plan.h"

extern "C" {
#include "miscadmin.h"
#include "postmaster/autovacuum.h"
}

namespace pgwarp {

namespace {

constexpr uint32 rows_per_list = 64;      // to place a centroid well
constexpr uint32 min_rows_per_list = 16;  // to place it at all
constexpr uint32 dims_of_many_rows = 256;
// Additive codewords span all dimensions and need the most training rows.
constexpr uint32 rows_for_additive = 100000;
constexpr Size megabyte = 1024 * 1024;

uint32 choose_lists(double rows, uint32 dims) {
    // More lists are shorter lists, but each scan compares the query with every centroid. By
    // measurement: see bench/notes/levels.md.
    const double factor = dims <= 256 ? 1.75 : dims <= 512 ? 1.25 : 1.5;
    return static_cast<uint32>(std::clamp(std::round(factor * std::sqrt(rows)), 1.0,
                                          static_cast<double>(max_plain_lists)));
}

// Parents of lists; 0: none.
uint32 choose_parents(const MetaPage& meta, uint32 lists) {
    if (meta.asked_parents == 1) return 0;
    if (meta.asked_parents > 0) return std::min(meta.asked_parents, lists);
    if (lists <= max_plain_lists) return 0;
    // A query is compared with about as many parents as lists: see bench/notes/levels.md.
    return static_cast<uint32>(std::lround(4 * std::sqrt(static_cast<double>(lists))));
}

uint32 choose_m(const MetaPage& meta) {
    const uint32 dims = meta.code_dims;
    // Additive codes take long to find, so they are short.
    if (meta.quantizer == QuantizerKind::lsq) return std::min<uint32>(dims, 8);
    // Codes of 4 bits scan so fast that another byte costs less than ranking a row in vain; but
    // with long vectors memory bandwidth bounds the scan.
    const bool is_long =
        dims > 512 || (meta.refinement != RefinementKind::none && lies_in_toast(meta));
    if (meta.bits == 4) return std::clamp<uint32>(is_long ? dims / 6 : dims / 2, 1, max_m);
    const uint32 m = dims <= 16 ? dims : dims <= 64 ? dims / 2 : dims <= 512 ? dims / 4 : dims / 8;
    return std::min<uint32>(m, max_m);
}

// Bytes that training needs for any sample: the codebook with the copy that an iteration writes,
// the centroids with theirs and with two more for the trial of rounding them.
Size model_bytes(uint32 lists, uint32 dims) {
    return sizeof(float) * (4 * Size{lists} * dims + 2 * Size{dims} * codewords);
}

// Bytes of a rotation: its matrices, LAPACK's working memory (about four matrices for singular
// values, with sums in float64), and the rotated rows.
Size rotation_bytes(const MetaPage& meta, Size rows) {
    return sizeof(float) *
           (12 * Size{meta.dims} * meta.dims + 2 * rows * meta.code_dims + 8192 * meta.dims);
}

// Bytes that the quantizer needs beside the model and the sample.
Size quantizer_bytes(const MetaPage& meta, uint32 m) {
    if (has_rotation(meta)) return rotation_bytes(meta, residual_rows(meta));
    if (meta.quantizer != QuantizerKind::lsq) return 0;
    // LSQ training starts from a rotation, trained with some of the rows. Then it needs the
    // codebook, the codewords and their sums, and either tables for the search or equations for the
    // codewords.
    const LsqShape shape{meta.code_dims, m};
    return std::max(rotation_bytes(meta, rows_for_rotation),
                    4 * sizeof(float) * shape.words() * shape.dims +
                        std::max(2 * LsqEncoder::bytes(shape), lsq_fit_bytes(shape)));
}

// A sampled row: its floats, its TID, and what an iteration stores for it, at most a short code or
// two. With parents, where dimensions are reduced, these floats, too.
Size sample_row_bytes(const MetaPage& meta) {
    const bool reduced = meta.asked_parents > 1 || meta.asked_lists > max_plain_lists;
    const uint32 more = reduced && meta.code_dims < meta.dims ? meta.code_dims : 0;
    return (meta.dims + more) * sizeof(float) + sizeof(uint64) + 32;
}

// Autovacuum trains as well, and has a limit of its own where one is set.
struct MemoryBound {
    const char* setting;
    int kilobytes;
};

MemoryBound training_memory() {
    if (compat_is_autovacuum() && autovacuum_work_mem != -1)
        return {"autovacuum_work_mem", autovacuum_work_mem};
    return {"maintenance_work_mem", maintenance_work_mem};
}

// The memory and rows that a plan with a given number of lists needs.
struct Need {
    const MetaPage& meta;
    double rows;      // of the table
    Size more_bytes;  // quantizer_bytes()

    Size model(uint32 lists) const { return model_bytes(lists, meta.dims) + more_bytes; }
    double wanted_rows(uint32 lists) const {
        return std::min<double>(rows,
                                std::max(Size{lists} * rows_per_list, Size{residual_rows(meta)}));
    }
    double needed_rows(uint32 lists) const {
        return std::min<double>(rows, std::max(Size{lists} * min_rows_per_list, Size{codewords}));
    }
    double rows_in(Size memory, uint32 lists) const {
        return memory > model(lists)
                   ? static_cast<double>((memory - model(lists)) / sample_row_bytes(meta))
                   : 0;
    }
    bool fits(Size memory, uint32 lists) const {
        return rows_in(memory, lists) >= needed_rows(lists);
    }
    Size megabytes(uint32 lists) const {
        return (model(lists) + static_cast<Size>(needed_rows(lists)) * sample_row_bytes(meta)) /
                   megabyte +
               1;
    }
};

// Too many lists waste space: each has pages of its own.
void report_many_lists(const char* index_name, double rows, const MetaPage& meta, int level) {
    if (meta.asked_lists * static_cast<double>(min_rows_per_list) <= rows) return;
    const uint32 better = choose_lists(rows, meta.code_dims);
    if (meta.asked_lists <= better) return;
    ereport(
        level,
        (errmsg("index \"%s\" has too many lists for its rows", index_name),
         errdetail("It gets %u lists for about %.0f rows, and every list that has a row takes a "
                   "page of its own: up to %.0f MB.",
                   meta.asked_lists, rows,
                   std::ceil(std::min<double>(meta.asked_lists, rows) * BLCKSZ / megabyte)),
         errhint("Without the option it gets %u: ALTER INDEX ... RESET (lists), then REINDEX.",
                 better)));
}

}  // namespace

uint32 residual_rows(const MetaPage& meta) {
    if (meta.quantizer == QuantizerKind::lsq) return rows_for_additive;
    return has_rotation(meta) && meta.code_dims <= dims_of_many_rows ? rows_for_rotation
                                                                     : rows_for_codes;
}

TrainingPlan plan_training(const char* index_name, double rows, const MetaPage& meta,
                           int report_level) {
    TrainingPlan plan = {};
    plan.m = meta.asked_m ? meta.asked_m : choose_m(meta);
    const uint32 best = meta.asked_lists ? meta.asked_lists : choose_lists(rows, meta.code_dims);
    const Need need{meta, rows, quantizer_bytes(meta, plan.m)};
    const MemoryBound bound = training_memory();
    const Size memory = static_cast<Size>(bound.kilobytes) * 1024;
    // Fewer lists than the best number still give right answers; a number that the user set is kept
    // or refused.
    plan.lists = best;
    while (!meta.asked_lists && plan.lists > 1 && !need.fits(memory, plan.lists))
        plan.lists = plan.lists * 3 / 4;
    if (!need.fits(memory, plan.lists)) {
        // A single list would need less, but the user should set what the best number of lists
        // needs.
        ereport(
            report_level,
            (errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
             errmsg("memory required is %zu MB, %s is %d MB", need.megabytes(best), bound.setting,
                    bound.kilobytes / 1024),
             report_level < ERROR ? errdetail("Index \"%s\" stays untrained.", index_name) : 0));
        plan.sample_rows = 0;
        return plan;
    }
    if (plan.lists < best)
        ereport(NOTICE,
                (errmsg_plural("index \"%s\" gets %u list instead of %u, for %s is too small",
                               "index \"%s\" gets %u lists instead of %u, for %s is too small",
                               plan.lists, index_name, plan.lists, best, bound.setting),
                 errhint("Set maintenance_work_mem to at least %zu MB and REINDEX.",
                         need.megabytes(best))));
    if (meta.asked_lists)
        report_many_lists(index_name, rows, meta, report_level == ERROR ? NOTICE : report_level);
    plan.parents = choose_parents(meta, plan.lists);
    plan.sample_rows = static_cast<uint32>(
        std::min(need.wanted_rows(plan.lists), need.rows_in(memory, plan.lists)));
    return plan;
}

uint32 most_sample_rows(const MetaPage& meta) {
    const Size memory = static_cast<Size>(training_memory().kilobytes) * 1024;
    const Size wanted = std::max(Size{max_lists} * rows_per_list, Size{rows_for_additive});
    return static_cast<uint32>(std::min(wanted, memory / sample_row_bytes(meta)));
}

}  // namespace pgwarp
