// Audits: a few live searches are made again with a far larger effort, and the share of neighbors
// that the first had found teaches the index how much effort its searches need.
//
// A backend hands a search over (records.cpp): the query, and the distances of what was found. A
// background worker, which the first of them starts and which ends when it has nothing to do,
// repeats the search (worker.cpp, repeat.cpp) and adds the result to the estimate of its index
// (learn.cpp). Where the estimate says so, the worker raises the effort on the metapage, or lowers
// it again.
//
// This header declares all of their shared memory. One lock protects it, except for what the
// comments say. Queries are in the ring of records only: no log, no file and no view shows them.
#pragma once

#include "kernels/common.h"
#include "kernels/recall_estimate.h"
#include "extension/compat.h"
#include "extension/index/format.h"

extern "C" {
#include "storage/latch.h"
#include "storage/lwlock.h"
#include "utils/timestamp.h"
}

namespace pgwarp {

// A search to repeat. In the ring it is followed by (dims) float, by (found) double and (values)
// uint64, and by (conditions) PackedCondition.
struct AuditRecord {
    uint32 bytes;  // with what follows
    Oid database;
    Oid index;
    uint32 file;     // the index's file number: REINDEX gives it another
    int64 curve_at;  // as on the metapage: another curve may err otherwise
    float correction;
    uint32 dims;
    uint32 k;
    uint32 found;
    uint32 probes;
    uint32 candidates;
    uint32 conditions;
    uint32 values;
    double target;
    TimestampTz at;
};

// Why an index needs to be built again.
enum class Drift : uint8 {
    none,
    effort_at_bound,  // recall is below the target with the largest correction
    table_has_grown,  // recall is below the target, and most rows came after the build
};

struct AuditedIndex {
    Oid database;  // invalid: the place is free
    Oid index;
    TimestampTz last_used;
    TimestampTz skipped_until;  // an audit took too long
    // What the estimates are about. If one of them changes, they begin anew.
    uint32 file;
    int64 curve_at;
    // Of the searches for about as many rows, see learned_group().
    struct ByRows {
        float correction;  // in force
        RecallEstimate estimate;
        RecallEstimate recent;  // the same, since the correction last changed
        uint32 undecided;       // audits since the last decision about the correction
    };
    // Conditions that few rows pass have other errors: neither group teaches the other.
    struct Searches {
        ByRows by_rows[RecallCurve::ks];
        int64 audited;
        uint32 unwritten;  // audits that the metapage has not counted yet
    };
    Searches plain;
    Searches with_conditions;
    Searches& searches(bool have_conditions) { return have_conditions ? with_conditions : plain; }
    const Searches& searches(bool have_conditions) const {
        return have_conditions ? with_conditions : plain;
    }
    int64 dropped;
    Drift drift;
    bool warned;  // of a drift, since the server started
    double rows_at_build;
    double rows;
};

// With what follows it.
inline constexpr Size most_record_bytes = 1 << 17;

// Seconds that audits may take at once. A server begins with all of them: the first audits tell
// most.
inline constexpr double most_allowance = 5;

struct AuditShared {
    LWLock* lock;

    // The worker.
    pid_t worker_pid;  // 0: none
    Latch* worker_latch;
    TimestampTz started_at;  // when one was last started

    // Seconds that audits may take now. Each search that is handed over adds a share of the time
    // that it and those beside it took; an audit takes away its own time.
    double allowance;  // at most most_allowance

    // The ring: bytes from `tail` to `head` hold records, at these positions modulo `ring_bytes`.
    static constexpr uint64 ring_bytes = 1 << 20;
    uint64 head;
    uint64 tail;
    uint32 records;

    static constexpr int places = 512;
    AuditedIndex indexes[places];

    char ring[ring_bytes];
};

// Null if the library was not preloaded.
extern AuditShared* audits;

// memory.cpp: called while the postmaster loads the library.
void request_audits();

// --- records.cpp

// Puts records of searches into the ring; starts a worker if there is none.
void hand_over_searches();
// Records that are older say nothing of the rows that are there now.
inline constexpr int oldest_record_ms = 60 * 1000;
// Starts a worker for a database. The caller does not hold the lock.
void start_audit_worker(Oid database);
// Called by the worker with the lock held. The first record in the ring; false: there is none.
bool first_record(AuditRecord* record);
// Removes it. `to`: null, or room for most_record_bytes.
void take_record(const AuditRecord& record, char* to);
// The same, and counts that it was not audited.
void drop_record(const AuditRecord& record);

// --- learn.cpp

// With the lock held: the place of an index, and null if it has none.
AuditedIndex* find_audited(Oid database, Oid index);
// Whether searches of the index are not to be audited now.
bool is_skipped(Oid database, Oid index);
// The place of an index; if it has none, it gets one, and the one unused for longest may give way.
AuditedIndex* audited_index(Oid database, Oid index);
// What is known of the recall of searches: since corrections last changed, once that is enough.
RecallEstimate known_recall(const AuditedIndex::Searches& searches);
// After an audit, with the index open and the lock not held.
struct Audit {
    const AuditRecord* record;
    double recall;
};
void learn_from(Relation heap, Relation index, const Audit& audit);

// --- repeat.cpp

// Repeats a search, in a transaction with a snapshot. False: there is nothing to compare with.
bool repeat_recorded(Relation heap, Relation index, const AuditRecord& record, const char* data,
                     double* recall);

}  // namespace pgwarp
