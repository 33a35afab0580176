// What audits teach: the recall of an index's searches, how far their effort has to be raised, and
// whether the index has to be built again.
//
// The estimate compares the recall that was found with the target, and knows by how much effort was
// raised. So searches teach whatever their target is, and whatever the correction was when they
// were made.

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
    for (const bool conditions : {false, true})
        for (int k = 0; k < RecallCurve::ks; ++k)
            entry->searches(conditions).by_rows[k].correction =
                meta.learned(conditions).correction[k];
}

bool is_about(const AuditedIndex& entry, const MetaPage& meta, uint32 file) {
    if (entry.file != file || entry.curve_at != meta.curve_at) return false;
    for (const bool conditions : {false, true})
        for (int k = 0; k < RecallCurve::ks; ++k)
            if (entry.searches(conditions).by_rows[k].correction !=
                meta.learned(conditions).correction[k])
                return false;
    return true;
}

// An estimate of the table's rows; of a partial index, of its entries.
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
    // With twice the rows, lists have twice the length: REINDEX plans more of them.
    constexpr double growth = 2;
    const RecallEstimate& recent = by_rows.recent;
    if (recent.weights == 0 || effective_audits(recent) < least_audits) return Drift::none;
    if (recall_interval(recent).high >= mean_target(recent)) return Drift::none;
    if (by_rows.correction >= most_correction) return Drift::effort_at_bound;
    return rows > growth * static_cast<double>(meta.rows_at_build) ? Drift::table_has_grown
                                                                   : Drift::none;
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

// The searches that the audit is one of.
AuditedIndex::Searches* searches_of(AuditedIndex* entry, const AuditRecord& record) {
    return &entry->searches(record.conditions > 0);
}

// Adds the audit to its index. True: it is time to decide about the correction, and `entry` is what
// is known.
bool count_audit(const MetaPage& meta, const Audit& audit, AuditedIndex* entry) {
    const AuditRecord& record = *audit.record;
    const AuditResult result{audit.recall, record.target, record.correction};
    LWLockAcquire(audits->lock, LW_EXCLUSIVE);
    AuditedIndex* place = audited_index(record.database, record.index);
    if (!is_about(*place, meta, record.file)) begin_anew(place, meta, record.file);
    AuditedIndex::Searches* searches = searches_of(place, record);
    AuditedIndex::ByRows& rows = searches->by_rows[learned_group(record.k)];
    add_audit(&rows.estimate, result);
    if (record.correction == rows.correction) add_audit(&rows.recent, result);
    ++searches->audited;
    ++searches->unwritten;
    const bool due = ++rows.undecided >= audits_to_next_correction(rows.estimate);
    if (due) rows.undecided = 0;
    *entry = *place;
    LWLockRelease(audits->lock);
    return due;
}

// Writes another correction to the metapage, for searches like the audited one, if audits ask for
// it and this server may write.
void correct(Relation index, const MetaPage& meta, const AuditRecord& record, AuditedIndex* entry) {
    const int k = learned_group(record.k);
    AuditedIndex::Searches* searches = searches_of(entry, record);
    AuditedIndex::ByRows& rows = searches->by_rows[k];
    const auto next = static_cast<float>(next_correction(rows.estimate, rows.correction));
    if (next == rows.correction || RecoveryInProgress()) return;
    MetaPage changed = meta;
    LearnedEffort& learned = changed.learned(record.conditions > 0);
    learned.correction[k] = next;
    learned.recall = static_cast<float>(recall_interval(rows.estimate).recall);
    learned.audited += searches->unwritten;
    learned.at = GetCurrentTimestamp();
    if (!write_learned(index, meta, changed)) return;
    fade_before_step(&rows.estimate, next - rows.correction);
    rows.recent = {};
    rows.correction = next;
    searches->unwritten = 0;
}

// Warns once of the first searches that drift.
void look_for_drift(Relation index, const MetaPage& meta, AuditedIndex* entry) {
    entry->drift = Drift::none;
    for (const bool conditions : {false, true})
        for (const AuditedIndex::ByRows& rows : entry->searches(conditions).by_rows) {
            entry->drift = drift_of(rows, meta, entry->rows);
            if (entry->drift == Drift::none) continue;
            if (!entry->warned) warn_of_drift(index, *entry, rows.recent);
            entry->warned = true;
            return;
        }
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

RecallEstimate known_recall(const AuditedIndex::Searches& searches) {
    // Of fewer recent audits, the interval is too wide to show: all audits are shown instead.
    constexpr double enough = 20;
    RecallEstimate all = {}, recent = {};
    for (const AuditedIndex::ByRows& rows : searches.by_rows) {
        all = together(all, rows.estimate);
        recent = together(recent, rows.recent);
    }
    return recent.weights > 0 && effective_audits(recent) >= enough ? recent : all;
}

void learn_from(Relation heap, Relation index, const Audit& audit) {
    const MetaPage meta = read_meta(index);
    if (meta.curve_at != audit.record->curve_at) return;
    AuditedIndex entry;
    if (!count_audit(meta, audit, &entry)) return;
    entry.rows_at_build = static_cast<double>(meta.rows_at_build);
    entry.rows = rows_now(heap, index);
    look_for_drift(index, meta, &entry);
    correct(index, meta, *audit.record, &entry);
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
