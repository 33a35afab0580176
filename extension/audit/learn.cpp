// What audits teach: the recall of an index's searches, the correction of their effort, and whether
// the index has to be built again.
//
// The estimate compares the recall that was found with the one that the effort was chosen for. So
// searches teach whatever their target is, and whatever the correction was when they were made.

#include <algorithm>
#include <cmath>

#include "extension/audit/audit.h"
#include "extension/index/effort.h"
#include "extension/index/page.h"
#include "extension/index/page_changes.h"

extern "C" {
#include "access/xlog.h"
#include "optimizer/plancat.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/relcache.h"
}

namespace pgwarp {

namespace {

// From this format version on, the metapage has a place for what was learned.
constexpr uint32 learning_version = 5;

void begin_anew(AuditedIndex* entry, const MetaPage& meta, uint32 file) {
    const AuditedIndex before = *entry;
    *entry = {};
    entry->database = before.database;
    entry->index = before.index;
    entry->dropped = before.dropped;
    entry->last_used = before.last_used;
    entry->skipped_until = before.skipped_until;
    entry->file = file;
    entry->curve_at = meta.curve_at;
    for (int k = 0; k < RecallCurve::ks; ++k) {
        AuditedIndex::ByRows& rows = entry->by_rows[k];
        rows.correction = meta.learned.correction[k];
        rows.prior = {rows.correction,
                      meta.learned.at == 0 ? prior_variance_unlearned : prior_variance_learned};
    }
}

bool is_about(const AuditedIndex& entry, const MetaPage& meta, uint32 file) {
    if (entry.file != file || entry.curve_at != meta.curve_at) return false;
    for (int k = 0; k < RecallCurve::ks; ++k)
        if (entry.by_rows[k].correction != meta.learned.correction[k]) return false;
    return true;
}

// Whether searches without a condition are enough to decide by them alone.
bool plain_decide(const RecallEstimate* groups) {
    constexpr double hardly_any = 0.2;
    const RecallEstimate all =
        together(groups[AuditedIndex::plain], groups[AuditedIndex::with_conditions]);
    return groups[AuditedIndex::plain].weights >= hardly_any * all.weights;
}

// The searches that the correction is for: those without a condition. Conditions that few rows pass
// have other errors. Where hardly any search is without one, all count.
RecallEstimate decisive(const RecallEstimate* groups) {
    return plain_decide(groups)
               ? groups[AuditedIndex::plain]
               : together(groups[AuditedIndex::plain], groups[AuditedIndex::with_conditions]);
}

// An estimate, which an entry of the table's size may replace.
double rows_now(Relation heap, Relation index) {
    const bool partial = RelationGetIndexPredicate(index) != NIL;
    BlockNumber pages;
    double rows, visible;
    estimate_rel_size(partial ? index : heap, nullptr, &pages, &rows, &visible);
    return rows;
}

Drift drift_of(const AuditedIndex::ByRows& by_rows, const MetaPage& meta, double rows) {
    // Fewer audits than this say little, whatever their interval is.
    constexpr double least_audits = 40;
    constexpr double growth = 2;
    const RecallEstimate recent = decisive(by_rows.recent);
    if (recent.weights == 0 || effective_audits(recent) < least_audits) return Drift::none;
    if (recall_interval(recent).high >= mean_target(recent)) return Drift::none;
    if (by_rows.correction >= most_correction) return Drift::effort_at_bound;
    if (rows > growth * static_cast<double>(meta.rows_at_build)) return Drift::table_has_grown;
    return meta.version < learning_version ? Drift::old_format : Drift::none;
}

void warn_of_drift(Relation index, const AuditedIndex& entry, const RecallEstimate& recent) {
    const RecallInterval interval = recall_interval(recent);
    const char* schema = get_namespace_name(RelationGetNamespace(index));
    ereport(
        WARNING,
        (errmsg("recall of index \"%s\" is below the target", RelationGetRelationName(index)),
         errdetail("Audited searches found %.3f of the nearest rows (%.3f to %.3f), and the "
                   "target is %.3f. The table had about %.0f rows when the index was built, and "
                   "has about %.0f now.",
                   interval.recall, interval.low, interval.high, mean_target(recent),
                   entry.rows_at_build, entry.rows),
         errhint("Build it again: REINDEX INDEX CONCURRENTLY %s",
                 quote_qualified_identifier(schema, RelationGetRelationName(index)))));
}

// Adds the audit to its index. True: it is time to decide about the correction, and `entry` is what
// is known.
bool count_audit(const MetaPage& meta, const Audit& audit, AuditedIndex* entry) {
    const AuditRecord& record = *audit.record;
    const AuditResult result{audit.recall, record.target, record.aimed};
    const auto group = record.conditions > 0 ? AuditedIndex::with_conditions : AuditedIndex::plain;
    LWLockAcquire(audits->lock, LW_EXCLUSIVE);
    AuditedIndex* place = audited_index(record.database, record.index);
    if (!is_about(*place, meta, record.file)) begin_anew(place, meta, record.file);
    AuditedIndex::ByRows& rows = place->by_rows[learned_group(record.k)];
    add_audit(&rows.estimates[group], result);
    if (record.correction == rows.correction) add_audit(&rows.recent[group], result);
    ++place->audited[group];
    ++place->unwritten;
    const bool due = ++rows.undecided >= audits_to_next_correction(decisive(rows.estimates));
    if (due) rows.undecided = 0;
    *entry = *place;
    LWLockRelease(audits->lock);
    return due;
}

// Writes another correction to the metapage, for searches of as many rows as group `k` has, if
// audits ask for it and this server may write.
void correct(Relation index, MetaPage* meta, int k, AuditedIndex* entry) {
    AuditedIndex::ByRows& rows = entry->by_rows[k];
    const RecallEstimate estimate = decisive(rows.estimates);
    double next = next_correction(estimate, rows.prior, rows.correction);
    // Searches with conditions look at more than the curve says: what they find beyond the target
    // is no reason to do less without them.
    if (!plain_decide(rows.estimates)) next = std::max(next, std::min<double>(0, rows.correction));
    LearnedEffort learned = meta->learned;
    learned.correction[k] = static_cast<float>(next);
    if (learned.correction[k] == rows.correction || RecoveryInProgress() ||
        meta->version < learning_version)
        return;
    learned.recall = static_cast<float>(recall_interval(estimate).recall);
    learned.audited += entry->unwritten;
    learned.at = GetCurrentTimestamp();
    if (!write_learned(index, *meta, learned)) return;
    const double step = learned.correction[k] - rows.correction;
    meta->learned = learned;
    rows.correction = learned.correction[k];
    entry->unwritten = 0;
    for (RecallEstimate& group : rows.estimates) fade_before_step(&group, step);
    for (RecallEstimate& recent : rows.recent) recent = {};
}

void decide(Relation heap, Relation index, MetaPage* meta, int k, AuditedIndex* entry) {
    entry->rows_at_build = static_cast<double>(meta->rows_at_build);
    entry->rows = rows_now(heap, index);
    entry->drift = Drift::none;
    for (const AuditedIndex::ByRows& rows : entry->by_rows) {
        entry->drift = drift_of(rows, *meta, entry->rows);
        if (entry->drift == Drift::none) continue;
        if (!entry->warned) warn_of_drift(index, *entry, decisive(rows.recent));
        entry->warned = true;
        break;
    }
    correct(index, meta, k, entry);
}

}  // namespace

AuditedIndex* find_audited(Oid database, Oid index) {
    for (AuditedIndex& entry : audits->indexes)
        if (entry.index == index && entry.database == database) return &entry;
    return nullptr;
}

bool is_skipped(Oid database, Oid index) {
    const AuditedIndex* entry = find_audited(database, index);
    return entry && entry->skipped_until > GetCurrentTimestamp();
}

AuditedIndex* audited_index(Oid database, Oid index) {
    AuditedIndex* place = find_audited(database, index);
    if (!place) {
        place = std::min_element(
            std::begin(audits->indexes), std::end(audits->indexes),
            [](const AuditedIndex& a, const AuditedIndex& b) { return a.last_used < b.last_used; });
        *place = {};
        place->database = database;
        place->index = index;
    }
    place->last_used = GetCurrentTimestamp();
    return place;
}

RecallEstimate known_recall(const AuditedIndex& entry, AuditedIndex::Group group) {
    constexpr double enough = 20;
    RecallEstimate all = {}, recent = {};
    for (const AuditedIndex::ByRows& rows : entry.by_rows) {
        all = together(all, rows.estimates[group]);
        recent = together(recent, rows.recent[group]);
    }
    return recent.weights > 0 && effective_audits(recent) >= enough ? recent : all;
}

double main_correction(const AuditedIndex& entry) {
    const auto weights = [](const AuditedIndex::ByRows& rows) {
        return rows.estimates[AuditedIndex::plain].weights +
               rows.estimates[AuditedIndex::with_conditions].weights;
    };
    return std::max_element(std::begin(entry.by_rows), std::end(entry.by_rows),
                            [&](const auto& a, const auto& b) { return weights(a) < weights(b); })
        ->correction;
}

void learn_from(Relation heap, Relation index, const Audit& audit) {
    MetaPage meta = read_meta(index);
    if (meta.curve_at != audit.record->curve_at) return;
    AuditedIndex entry;
    if (!count_audit(meta, audit, &entry)) return;
    decide(heap, index, &meta, learned_group(audit.record->k), &entry);
    // Only this process changes what is about recall.
    LWLockAcquire(audits->lock, LW_EXCLUSIVE);
    if (AuditedIndex* place = find_audited(entry.database, entry.index)) {
        entry.dropped = place->dropped;
        entry.last_used = place->last_used;
        *place = entry;
    }
    LWLockRelease(audits->lock);
}

}  // namespace pgwarp
