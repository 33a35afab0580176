// The state of a scan, shared by scan.cpp (callbacks, rounds), lists.cpp, pending.cpp and
// ranking.cpp.
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

// Where the next candidates of the current group of lists come from; see lists.cpp.
enum class GroupStage : uint8 {
    first,    // the first walk, which keeps as many candidates as the round wants
    walked,   // the second walk, which keeps as many as memory holds, for many rounds
    held,     // candidates that the second walk kept
    ordered,  // a CandidateOrder of all the rest, which may spill to temporary files
    ended
};

// A group of lists whose candidates were ranked up to a floor; the rest lay beyond the limit
// (bound.h).
struct EndedGroup {
    uint32 begin;
    uint32 end;
    Candidate floor;
    uint32 returns;  // how often the scan came back to the group because the limit had risen
};
// Each group has twice as many lists as the one before.
inline constexpr int most_groups = 16;
static_assert((1 << most_groups) > max_lists);

struct ScanState {
    uint32 wanted_rows;     // set by want_rows(); 0: taken from the plan
    uint32 passed_over;     // set by want_rows()
    MemoryContext context;  // of everything below except the reader; reset by a rescan
    RowReader* reader;
    Scratch* scratch;
    VectorCache* cache;

    VectorView query;  // none until the scan starts
    float* form;       // the query as the model sees it; valid if form_ready
    bool form_ready;
    bool started;
    bool finished;
    uint32 limit;     // expected number of fetched rows, a hint
    Size least_rows;  // first round's minimum, so that LIMIT rows come in order; 0: unknown
    Size wanted;      // candidates of the next round
    int64 ranked;     // rows read so far
    DistanceBound bound;
    ScanReport report;

    // The model the lists were ranked with.
    MetaPage meta;
    float* terms;         // (lists): the centroid's part of distances by code
    uint32* order;        // (lists), nearest first
    float* table;         // the query's lookup table: see read_table()
    NibbleTable nibbles;  // `table` rounded to bytes, if bits = 4

    // The current group of lists: order[group_begin .. group_end).
    uint32 group_begin;
    uint32 group_end;
    GroupStage stage;
    Candidate list_floor;  // candidates of the group up to this one were taken
    double walk_limit;     // distance by code beyond which the last walk skipped candidates
    CandidateQueue held;
    bool held_all;  // `held` has all remaining candidates of the group
    CandidateOrder* ordered;
    uint32 returns;  // as in EndedGroup
    // Ended groups; `group_number` is the current group's index among them, ended before or not.
    EndedGroup ended[most_groups];
    uint32 ended_count;
    uint32 group_number;
    Candidate* candidates;
    Size candidate_room;  // bytes

    // TIDs of the service's candidates, sorted. The next round finds these candidates again.
    uint64* served;
    Size served_count;
    Size repeated;  // how many of them the next round may find again

    // The pending list as of the start of the scan: TIDs, and rows by exact distance.
    TidSet* pending_tids;
    uint32 pending_generation;
    CandidateOrder* pending;
    bool pending_done;

    // Rows of this round, sorted when the round is complete. If memory cannot hold them all, they
    // are in `ranked_rows`, and more_rows() refills `rows` from there.
    RankedRow* rows;
    Size row_room;  // bytes
    Size row_count;
    Size row_next;
    Size round_rows;
    CandidateOrder* ranked_rows;
    double last_distance;  // of the row returned last, for strict_order
};

// A scan's memory is bounded by work_mem: half of it for candidates (32 bytes each while they are
// selected), a quarter for ranked rows (16 bytes), an eighth each for the pending list's TIDs and
// rows. The rest spills to temporary files.
Size scan_memory();  // bytes
Size most_candidates();

// --- ranking.cpp

// Memory for a selection of `wanted` candidates; invalidates the previous one.
Candidate* reserve_candidates(ScanState* s, Size wanted);

// Reads the rows of some candidates of the lists, and adds the visible ones to the round. Skips
// candidates that came from the pending list or the service. Reorders `candidates`.
void rank_candidates(IndexScanDesc scan, ScanState* s, Candidate* candidates, Size count);

double row_distance(const ScanState* s, const VectorView& row);
void add_row(ScanState* s, double distance, uint64 tid);

// The rows of a round: begin_rows() empties them, sort_rows() sorts them by exact distance, and
// more_rows() refills them from `ranked_rows`. False: there are no more.
void begin_rows(ScanState* s);
void sort_rows(ScanState* s);
bool more_rows(ScanState* s);

// --- pending.cpp

// Reads the pending list and ranks its rows. False: VACUUM trained the index meanwhile, and may
// have moved entries to lists that the scan's copy of the metapage does not have.
bool read_pending(IndexScanDesc scan, ScanState* s);
// Adds the nearest remaining rows of the pending list to the round.
void gather_from_pending(ScanState* s);
// Whether an entry may have moved from the pending list to another list since the scan read it.
bool pending_has_moved(Relation index, const ScanState* s);

// --- lists.cpp

uint32 bounded_probes(uint32 probes, const MetaPage& meta);
// Ranks the next candidates of the current group; at the group's end the next group begins.
void gather_from_lists(IndexScanDesc scan, ScanState* s);
// The first round, by the service. False, and the scan is unchanged, if the service has no answer
// or its answer is not current with the pages.
bool gather_from_service(IndexScanDesc scan, ScanState* s);

}  // namespace pgwarp
