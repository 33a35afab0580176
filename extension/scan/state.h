// The state of a scan, for the files that its subjects are in: scan.cpp (callbacks, rounds),
// lists.cpp, pending.cpp, ranking.cpp.
#pragma once

#include "kernels/candidates.h"
#include "kernels/nibble_scan.h"
#include "extension/scan/candidate_order.h"
#include "extension/scan/bound.h"
#include "extension/index/format.h"
#include "extension/scan/rows.h"
#include "extension/scan/report.h"
#include "extension/util/scratch.h"
#include "extension/scan/tid_set.h"

extern "C" {
#include "access/genam.h"
}

namespace pgwarp {

struct RankedRow {
    double distance;
    ItemPointerData tid;
};

// Where the candidates of the group of lists under way come from.
enum class GroupStage : uint8 {
    first,    // a walk that keeps as many as a round wants
    walked,   // that left some: the next walk keeps as many as memory holds, for many rounds
    held,     // from what that walk kept
    ordered,  // from an order of all that lies behind: temporary files, if need be
    ended
};

// A group of lists whose candidates up to a floor were ranked: those beyond it lay beyond the
// limit.
struct EndedGroup {
    uint32 begin;
    uint32 end;
    Candidate floor;
    uint32 returns;  // to it, because the limit has risen
};
// Each group is twice as large as the one before.
inline constexpr int most_groups = 16;
static_assert((1 << most_groups) > max_lists);

struct ScanState {
    uint32 wanted_rows;     // as told by want_rows(); 0: the plan tells
    uint32 passed_over;     // likewise
    MemoryContext context;  // everything below; reset by a rescan
    RowReader* reader;
    Scratch* scratch;
    VectorCache* cache;

    Vector* query;
    float* form;  // the query as the model sees it, once it is ready
    bool form_ready;
    bool started;
    bool finished;
    uint32 limit;     // rows that will probably be fetched
    Size least_rows;  // of the first round, so that they come in order; 0: nobody knows
    Size wanted;      // candidates of the next round
    int64 ranked;     // rows read so far
    DistanceBound bound;
    ScanReport report;

    // The model the lists were ranked with.
    MetaPage meta;
    float* terms;         // (lists)
    uint32* order;        // (lists), nearest first
    float* table;         // of the query: see read_table()
    NibbleTable nibbles;  // made of it where sub-quantizers have four bits

    // Lists under way: order[group_begin .. group_end).
    uint32 group_begin;
    uint32 group_end;
    GroupStage stage;
    Candidate list_floor;  // candidates of the group up to this were taken
    double walk_limit;     // by code: the last walk passed over what lies beyond it
    CandidateQueue held;
    bool held_all;  // nothing lies behind what is held
    CandidateOrder* ordered;
    uint32 returns;  // to this group
    // Groups that came to an end; and which the one under way is, or will be, among them.
    EndedGroup ended[most_groups];
    uint32 ended_count;
    uint32 group_number;
    Candidate* candidates;
    Size candidate_room;  // bytes

    // Candidates of the service's round: TIDs, sorted. The next round meets them again.
    uint64* served;
    Size served_count;
    Size repeated;  // how many of them the next round may meet

    // The pending list, as it was when the scan began: TIDs, and rows by exact distance.
    TidSet* pending_tids;
    uint32 pending_generation;
    CandidateOrder* pending;
    bool pending_done;

    // Rows of this round, in order once it is complete; those that memory has no room for are in
    // `ranked_rows`, from which `rows` is filled again and again.
    RankedRow* rows;
    Size row_room;  // bytes
    Size row_count;
    Size row_next;
    Size round_rows;
    CandidateOrder* ranked_rows;
    double last_distance;  // handed out, for strict_order
};

// A scan's memory is bounded by work_mem: half of it for candidates (32 bytes each while they are
// selected), a quarter for ranked rows (16 bytes), an eighth each for the pending list's TIDs and
// rows. What needs more goes to temporary files.
Size scan_memory();  // bytes
Size most_candidates();

// --- ranking.cpp

// Memory for a selection of candidates.
Candidate* reserve_candidates(ScanState* s, Size wanted);

// Reads the rows of some candidates of the lists and adds those that the snapshot sees, and that
// were not among the pending or the service's, to the round's. Changes the candidates' order.
void rank_candidates(IndexScanDesc scan, ScanState* s, Candidate* candidates, Size count);

double row_distance(const ScanState* s, const Vector* row);
void add_row(ScanState* s, double distance, uint64 tid);

// Puts the round's rows into order; and takes more of them where memory did not hold all. False:
// there are no more.
void begin_rows(ScanState* s);
void sort_rows(ScanState* s);
bool more_rows(ScanState* s);

// --- pending.cpp

// Reads the pending list and ranks its rows. False: the index was trained meanwhile, and entries
// may have moved to lists that the scan's model does not know.
bool read_pending(IndexScanDesc scan, ScanState* s);
// Adds the nearest of what is left of it to the round's rows.
void gather_from_pending(ScanState* s);
// Whether an entry may have left the pending list for another since it was read.
bool pending_has_moved(Relation index, const ScanState* s);

// --- lists.cpp

uint32 bounded_probes(uint32 probes, const MetaPage& meta);
// The next candidates of the group under way; at its end the next group follows.
void gather_from_lists(IndexScanDesc scan, ScanState* s);
// The first round, by the service. False, and nothing is changed, where it has no answer that the
// pages agree with.
bool gather_from_service(IndexScanDesc scan, ScanState* s);

}  // namespace pgwarp
