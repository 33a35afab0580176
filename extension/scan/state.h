// The state of a scan, shared by scan.cpp (callbacks, rounds), lists.cpp, pending.cpp and
// ranking.cpp.
#pragma once

#include "kernels/candidates.h"
#include "kernels/list_store.h"
#include "kernels/nibble_scan.h"
#include "extension/scan/candidate_order.h"
#include "extension/scan/bound.h"
#include "extension/scan/entries.h"
#include "extension/scan/limit.h"
#include "extension/scan/noted_scan.h"
#include "extension/scan/repeated_search.h"
#include "extension/scan/conditions.h"
#include "extension/index/effort.h"
#include "extension/index/format.h"
#include "extension/index/list_order.h"
#include "extension/scan/rows.h"
#include "extension/scan/report.h"
#include "extension/util/scratch.h"
#include "extension/scan/tid_set.h"

extern "C" {
#include "access/genam.h"
#include "portability/instr_time.h"
}

namespace pgwarp {

struct ScanState;
struct ServiceAnswer;
struct ServiceDevice;
struct PlannedSearch;

// --- parts of the state, each with the file that writes it

// What a caller without a plan wants (scan.cpp, want_rows()); kept by a rescan.
struct AskedRows {
    uint32 rows;                     // 0: taken from the plan
    uint32 passed_over;              // more candidates, for rows that the caller skips
    const RepeatedSearch* repeated;  // null: the scan's keys say what it searches for
};

// The query (scan.cpp).
struct ScanQuery {
    VectorView vector;  // none until the scan starts
    float* form;        // as the model sees it; written by lists.cpp
    bool form_ready;    // `form` is valid
};

// What the next round shall give (scan.cpp).
struct RoundGoal {
    // The scan searches for this many nearest rows, visible or not, whether they pass filters or
    // not: it has seen enough where those that are wanted are among them.
    uint32 limit;
    Size waiting;       // rows to take of those that wait beside lists, at least
    Size least_rows;    // first round's minimum, so that LIMIT rows come in order; 0: unknown
    Size candidates;    // that the next walk keeps
    Effort effort;      // for `limit` rows; its threshold is for lists as they are now
    double growth;      // of the lists since they were measured
    bool probes_given;  // by ivfpq.probes, as the scan began
};

// How far the scan has come (scan.cpp).
struct ScanProgress {
    bool started;
    bool finished;
    int64 ranked;          // candidates so far, for max_scan_tuples
    double last_distance;  // of the row returned last, for strict_order
    bool limit_met;        // LIMIT takes no row behind those of this round (partitions.cpp)
};

// The lists by distance, and what distances by code are summed from (lists.cpp).
struct ListTables : ListOrder {
    bool ranked;          // the first group is in its order
    float* table;         // the query's lookup table: see read_table()
    NibbleTable nibbles;  // `table` rounded to bytes, if bits = 4
    bool rounded;         // `nibbles` alone tell what is near (gather.cpp)
};

// A group of lists, order[begin .. end) (lists.cpp). Candidates up to the floor were taken. The
// rest of a group that has ended lay beyond the limit (bound.h).
struct ListGroup {
    uint32 begin;
    uint32 end;
    Candidate floor;
    uint32 returns;  // how often the scan came back to the group because the limit had risen
};

// Where the next candidates of the current group of lists come from; see lists.cpp.
enum class GroupStage : uint8 {
    first,    // the first walk, which keeps as many candidates as the round wants
    walked,   // the second walk, which keeps as many as memory holds, for many rounds
    held,     // candidates that the second walk kept
    ordered,  // a CandidateOrder of all the rest, which may spill to temporary files
    ended
};

// Walks of the current group (lists.cpp).
struct GroupWalk {
    GroupStage stage;
    double limit;  // distance by code beyond which the last walk skipped candidates
    CandidateQueue held;
    bool held_all;  // `held` has all remaining candidates of the group
    CandidateOrder* ordered;
};

// What the walks of the current search have seen (gather.cpp).
struct SeenEntries {
    double entries;
    double passing;  // the conditions
    float score;     // of the first list that was not taken (kernels/list_plan.h); 0: unknown
};

// Groups that have ended (lists.cpp).
struct EndedGroups {
    // Each group has twice as many lists as the one before.
    static constexpr int most = 21;
    static_assert((1 << most) > max_lists);
    ListGroup groups[most];
    uint32 count;
    uint32 current;  // index of the current group among them, whether it ended before or not
};

// Rounds that the service answers (service_rounds.cpp).
struct ServiceProgress {
    bool done;  // it answers no further round of this scan
    // Lists of its last answer came from pages, and had more candidates than were ranked: the scan
    // walks the group again for them.
    bool left_more;
    // The next search of the group resumes after this candidate, in the service's own order.
    bool resumes;
    Neighbor floor;
    ServiceDevice* device;  // that answered last; null: none has, or several have:
    uint32 devices;         // a bit each
    // (group.end - group.begin) lists of the group, each with its generation.
    uint64* lists;
    bool* finished;          // (lists): those of groups that have ended; null: none has
    PlannedSearch* planned;  // the next search, by ask_members(); null: the round plans it
    Size most_of_first;      // candidates by code of the first search; 0: as many as its effort has
    ServiceAnswer* given;    // to the next question; null: the service has to be asked
};

// Candidates that were ranked, and that the next walk finds again (lists.cpp): those of the
// service's answers, and those before the group got more lists.
struct ServedCandidates {
    uint64* tids;  // sorted
    Size count;
    Size repeated;  // how many of them the next round may find again
};

// Memory for a selection of candidates (ranking.cpp).
struct CandidateMemory {
    Candidate* items;
    Size bytes;
};

// The pending list as of the start of the scan (pending.cpp).
struct PendingRows {
    PendingEntries entries;
    CandidateOrder* rows;  // by exact distance
    bool done;             // no rows are left
};

// Rows without a finite distance (pending.cpp): they come after all others, as in a sort by the
// operator.
struct LastRows {
    bool wait;             // until all other rows were returned
    CandidateOrder* rows;  // those met so far, the infinite before NaN; null: none
    bool read;             // the list of rows without a direction was read, too
    bool done;             // no rows are left
};

// An exact search (exact.cpp).
struct ExactProgress {
    bool wanted;
    TidSet* tids;      // of all entries that may pass the conditions
    bool checks_rows;  // the conditions have to be checked on the rows
    Candidate floor;   // rows up to it were returned
};

struct RankedRow {
    double distance;
    ItemPointerData tid;
};

// A candidate of this round that was scored by its refinement, or a row that was visited
// (refine.cpp).
struct WaitingCandidate {
    double least;  // no version of the row is nearer, by exact_distance()
    uint64 tid;
    bool visited;  // `least` is the distance
    float beyond;  // the distance is probably by this greater than `least`; infinity: unknown
};

// Refinements of candidates (refine.cpp). Candidates of a round wait until a row of theirs may be
// the next one to return; most are never visited.
struct RefinedCandidates {
    bool decided;  // once a scan, by the first walk: distances by code depend on it
    bool used;
    RefinementQuery query;  // dims is 0 until it is made
    // Refinement pages of list pages that had candidates: see EntryPlaces.
    BlockNumber* blocks;
    Size block_count;
    Size block_room;
    WaitingCandidate* waiting;  // in the order of `least` after visit_waiting()
    Size count;
    Size room;
    Size step;  // rows that the next visits aim at
    // Candidates that the service scored and did not name are no nearer, by exact_distance(). The
    // next round finds them.
    double left_out;
};

// Rows of this round, sorted when the round is complete (ranking.cpp). If memory cannot hold them
// all, they are in `spilled`, and more_rows() refills `rows` from there.
struct KnownDistances {
    double* items;
    Size count;
    Size room;
};

struct RoundRows {
    RankedRow* rows;
    Size bytes;  // of `rows`
    Size count;
    Size next;   // the row to return next (scan.cpp)
    Size added;  // in memory and spilled
    CandidateOrder* spilled;
    // Distances by code, or by refinements, of the candidates that were visited, and of those whose
    // rows are wanted.
    KnownDistances visited;
    KnownDistances passing;
    bool unsure;  // candidates that were not kept may be among the wanted rows
};

// Whether the search will be audited (audited_search.cpp).
struct AuditedSearch {
    uint32 k;  // 0: it will not
    instr_time start;
};

// What the searches of a scan did, those before a rescan included (scan.cpp).
struct ScanTotals {
    int64 searches;
    int64 served;  // by the service
    int64 given;   // times that a join gave the rows, and nothing was searched
    int64 rounds;
    int64 probes;
    int64 candidates;
    int64 ranked_rows;
    const char* reason;      // of the last search that was not served
    float score;             // the least at which a search stopped; 0: unknown
    int64 expectations;      // searches whose recall is expected
    double expected_recall;  // their sum
};

// Tells when the memory in which a scan began is freed, which an error does without ending the
// scan.
struct ScanEnd {
    MemoryContextCallback callback;
    ScanState* scan;  // null: the scan has ended
    IndexScanDesc of;
};

// The note, `asked`, `totals`, `end`, `context` and `reader` are kept by a rescan.
struct ScanState : NotedScan {
    AskedRows asked;
    ScanTotals totals;      // without the current search
    ScanEnd* end;           // in the memory in which the scan began, and its reader
    MemoryContext context;  // of everything below except the reader; reset by a rescan
    RowReader* reader;      // null until a row is read: see reader_of()
    Scratch* scratch;
    VectorCache* cache;

    bool given;  // a join gave the rows
    ScanQuery query;
    DistanceBound bound;
    Conditions conditions;  // on attributes
    RoundGoal goal;
    ScanProgress progress;
    ScanReport report;
    AuditedSearch audited;
    MetaPage meta;  // of the model that the lists are ranked with

    ListTables lists;
    ListGroup group;  // the current group
    GroupWalk walk;
    EndedGroups ended;
    SeenEntries seen;
    ServiceProgress service;
    ServedCandidates served;
    PendingRows pending;
    LastRows last;
    ExactProgress exact;
    CandidateMemory candidates;
    RefinedCandidates refined;
    RoundRows round;
};

// Scans that search together: that of a table, or those of its partitions (partitions.cpp). A row
// is among the k nearest whatever part it is in: so all parts have one radius, by which each
// decides on its lists, and their candidates are ranked in one order.
struct ScanSearch {
    ScanState** parts;
    int count;
    // Of several parts:
    Size k = 0;                 // rows that are wanted of all
    Size limit = 0;             // it searches for this many nearest rows: see RoundGoal
    int largest = 0;            // the part with most rows: all have its effort
    bool reads_beyond = false;  // the executor reads the next row of each part, too
};
inline const Effort& effort_of(const ScanSearch& search) {
    return search.parts[search.largest]->goal.effort;
}
inline Size limit_of(const ScanSearch& search) {
    return search.count > 1 ? search.limit : search.parts[0]->goal.limit;
}
inline IndexScanDesc scan_of(const ScanState* s) {
    return s->end->of;
}
// Calls with() in the memory of a scan.
template <typename With>
void in_memory_of(const ScanState* s, With&& with) {
    const MemoryContext before = MemoryContextSwitchTo(s->context);
    with();
    MemoryContextSwitchTo(before);
}

// Whether entries must pass conditions on attributes, or be of rows of a bitmap.
inline bool checks_conditions(const ScanState* s) {
    return s->conditions.count > 0 || s->conditions.rows;
}

// A scan's memory is bounded by work_mem: half of it for candidates (48 bytes each while they are
// selected), a quarter for ranked rows (16 bytes) or candidates that wait (24 bytes), an eighth
// for the pending list's TIDs, a sixteenth each for its rows and for those that come last. The rest
// spills to temporary files.
Size scan_memory();  // bytes
Size most_candidates();

// --- scan.cpp

// Opens the reader, once a scan: many partitions of a table have none of the rows that are wanted.
RowReader* reader_of(ScanState* s);
// Begins a scan before the executor asks it for a row.
void prepare_round(IndexScanDesc scan);
// The next round of all parts, which prepare_round() has begun.
void search_round(ScanSearch* search);
// The scan begins anew, with the same keys.
void begin_anew(IndexScanDesc scan);

// Of a scan by an ivfpq index, up to now.
ScanTotals totals_of(const ScanState* s);

// --- partitions.cpp

// Before the first row of a scan: begins all scans of its group.
void begin_group_of(IndexScanDesc scan);

// --- audited_search.cpp

// Called when a scan has begun, and when its first round is complete.
void choose_for_audit(IndexScanDesc scan, ScanState* s, const WantedRows& wanted);
void note_for_audit(IndexScanDesc scan, const ScanState* s);

// --- ranking.cpp

// Memory for a selection of `wanted` candidates; invalidates the previous one.
Candidate* reserve_candidates(ScanState* s, Size wanted);

// Makes room for `more` rows: in memory, or by spilling all rows to `spilled`. Until then, cached
// vectors stay.
void expect_rows(ScanState* s, Size more);
// Reads the rows of some candidates of the lists, and adds the visible ones to the round. Skips
// candidates that came from the pending list or the service. Reorders `candidates`.
void rank_candidates(IndexScanDesc scan, ScanState* s, Candidate* candidates, Size count);
// The same by their refinements, where these are used.
void rank_or_refine(IndexScanDesc scan, ScanState* s, Candidate* candidates, Size count);
// Drops duplicates, and candidates that the service or the pending list gave before; counts the
// others. They are in the order of their TIDs then. Returns how many there are.
Size new_candidates(IndexScanDesc scan, ScanState* s, Candidate* candidates, Size count);
// What is added to distances by code (index/effort.h).
float code_shift(const ScanState* s);
// Notes that a candidate was visited, and whether its row is wanted. NaN: its code is unknown.
void note_visit(ScanState* s, double by_code, bool passes);
void sort_visits(RoundRows* round);
// The exact distances of the k nearest rows of all parts, in any order, and of the last of them.
// `by_refinements`: of rows that wait for a visit, too, as far as these tell.
struct NearestDistances {
    double* items = nullptr;  // null: there are fewer
    double kth = std::numeric_limits<double>::infinity();
};
NearestDistances nearest_distances(const ScanSearch& search, Size k, bool by_refinements);
double kth_distance(const ScanSearch& search, Size k, bool by_refinements);
// Rows that the round shall find: LIMIT, or as many as are expected to be fetched.
Size wanted_of_round(const ScanState* s);
Size wanted_of_round(const ScanSearch& search);
// How many rows are visited where candidates wait.
Size visits_of_round(const ScanSearch& search);
// Candidates of a part, nearest by code first.
struct RankedPart {
    ScanState* s;
    Candidate* candidates;  // ranking reorders them
    Size count;
    double known_until;  // there may be others, beyond
    bool have_places;    // of their refinements
    Size ranked;         // how many of them were
};
// Ranks candidates of some parts in one order, nearest by code first, by their refinements where
// these are used, until the next ones are so far that they are not among the wanted rows of all
// parts, but for the error that codes may have (index/effort.h). The round of a part is unsure
// where others, beyond `known_until`, are within reach. `goes_on`: nearer ones were ranked before.
// Of one part it takes at least one, if there are any.
void rank_until_sure(const ScanSearch& search, RankedPart* parts, int count, bool goes_on);

// Its ranked_distance(). Also counts the row in the report.
double row_distance(ScanState* s, const StoredVector& row);
// Adds a row to the round. One without a finite distance waits, if it has to.
void add_row(ScanState* s, double distance, uint64 tid);

// The rows of a round: begin_rows() empties them, sort_rows() sorts them by exact distance, and
// more_rows() refills them from `spilled`. False: there are no more.
void begin_rows(ScanState* s);
void sort_rows(ScanState* s);
// Keeps the first rows of a round, after sort_rows(). The others wait for the next round
// (refine.cpp).
void hold_back_rows(ScanState* s, Size count);
bool more_rows(ScanState* s);

// --- refine.cpp

// Whether the scan orders candidates by their refinements. Where rows are filtered, or the distance
// has a bound, it visits them all: what it learns of their rows decides how far it goes.
bool refines(const ScanState* s);
// Decides it for the scan, before its first walk.
void decide_to_refine(ScanState* s);
// Scores candidates by their refinements: they wait for visit_waiting(). False: they are too many
// for memory, and nothing was done. Reorders `candidates`.
bool refine_candidates(IndexScanDesc scan, ScanState* s, Candidate* candidates, Size count);
// The same for candidates that a device has scored: their distances are the least that their rows
// may have, in units of distances by code. Those that it did not name are no nearer than
// `left_out`.
void wait_for_visits(IndexScanDesc scan, ScanState* s, Candidate* candidates, Size count,
                     double left_out);
// Visits candidates of all parts until the k nearest rows are known, and adds these and all rows
// nearer than any candidate that waits to the rounds. Other rows that were visited wait, too.
void visit_waiting(const ScanSearch& search, Size k);
// Before a round: it finds candidates that the one before left out.
void find_left_out(ScanState* s);
// The next rows of the round, of candidates that wait. False: there are none.
bool more_waiting_rows(IndexScanDesc scan, ScanState* s);

// --- pending.cpp

// Reads the rows of the set, in the order of their TIDs, and passes on the visible ones that pass
// the plan's filters and are within its bound. `checks`: they must pass the conditions, too, which
// were not checked on their entries. Returns how many TIDs the set has.
struct RowSink {
    void (*put)(void* state, double distance, uint64 tid);
    void* state;
};
Size rank_tids(ScanState* s, TidSet* tids, bool checks, const RowSink& sink);

// Reads the pending list and ranks its rows. False: VACUUM trained the index meanwhile, and may
// have moved entries to lists that the scan's copy of the metapage does not have.
bool rank_pending(IndexScanDesc scan, ScanState* s);
// Adds the nearest remaining rows of the pending list to the round.
void gather_from_pending(ScanState* s);
// Once all other rows were returned: whether there may be rows without a finite distance, and the
// next ones of them, for the round.
bool may_have_last_rows(Relation index, const ScanState* s);
void gather_last(IndexScanDesc scan, ScanState* s);

// --- lists.cpp

uint32 bounded_probes(uint32 probes, const MetaPage& meta);
// Aims at this many nearest rows: how many lists and candidates the next walk takes.
void aim_at(ScanState* s, uint32 rows);
// Reports where the last search stopped, and the recall that was measured of searches that stop
// there: with the score of the first list that it did not take as their threshold, or with as many
// lists. The service does not tell scores: its searches have the recall of their threshold.
void expect_recall(ScanState* s);
// How many nearest rows to search for next, where this many were searched for.
uint32 longer_limit(Size limit, double rows);
// Begins the lists again for more rows: what was ranked is skipped. False: memory does not hold as
// many candidates. Then the scan goes on behind those that it has, group by group.
bool search_for_more(Relation index, ScanState* s, double rows);
// Ranks the next candidates of the current groups of some parts; at its end the next group begins.
void gather_from_lists(const ScanSearch& search, ScanState* const* parts, int count);

// The ids of candidates, sorted, in the current memory context.
uint64* sorted_ids(const Candidate* candidates, Size count);
// Adds candidates that were ranked to those that a later walk skips. Frees `ranked`.
void remember(ScanState* s, uint64* ranked, Size ranked_count);
// Ends the group where its candidates by code reach the limit (bound.h).
void end_group_at_limit(Relation index, ScanState* s);
// After rounds that the service answered: the next walk takes all its lists again, because the
// order of the lists and of candidates by code is the service's own, and skips what was ranked.
void begin_lists_again(ScanState* s);

// --- exact.cpp

// Gathers a round of an exact search, instead of candidates.
void exact_round(IndexScanDesc scan, ScanState* s);

// --- service_rounds.cpp

// Asks the service for what scans that have not begun their first rounds will ask it for, all at
// once. Their rounds take the answers.
void ask_members(ScanState* const* parts, int count);
// Ranks candidates of some parts from the service. The first of `parts` become those without an
// answer that is current with the pages, whose lists have to give what is missing; returns their
// number.
int gather_from_service(const ScanSearch& search, ScanState** parts, int count);

}  // namespace pgwarp
