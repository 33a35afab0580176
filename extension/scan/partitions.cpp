// Scans of the partitions of a table, under one Merge Append.
//
// Each partition would search for all k rows of LIMIT, and the Merge Append take a few of each. So
// the scan that is asked for a row first begins all of them, before any row is returned. Their
// first rounds are one search then (ScanSearch): each searches for the rows that fall to it by
// chance, and goes on where it has more of the nearest. Where that is not possible, each partition
// is searched as a table of its own would be; the service is asked for the first rounds of all at
// once.
//
// An answer of the service is of lists as they were after all snapshots and pending lists were
// read, and is verified by the scan that takes it.

#include <algorithm>
#include <cmath>
#ifdef __GLIBC__
#include <malloc.h>
#endif

#include "extension/index/effort.h"
#include "extension/index/model.h"
#include "extension/scan/state.h"
#include "extension/service/client.h"
#include "extension/settings.h"

namespace pgwarp {

namespace {

ScanState* state_of(IndexScanDesc scan) {
    return static_cast<ScanState*>(scan->opaque);
}

struct Member {
    IndexScanDesc scan;
    double share;  // of all rows
};

// Begins its search for this many rows; 0: all that are wanted.
void prepare(const Member& member, double rows) {
    set_part_rows(member.scan, rows);
    prepare_round(member.scan);
}

// Searches with an effort of their own: of all rows, or up to a given distance.
bool joins(IndexScanDesc scan) {
    return settings.target_recall < 1 && !wanted_bound(scan, Metric::l2).given;
}

// Whether distances of all members have one order: branches of UNION ALL may have different
// operators, and rows of one whose argument is null come last. Where all rows are read for a query,
// searching for fewer saves nothing.
bool are_comparable(const Member* members, int count) {
    return std::all_of(members, members + count, [&](const Member& member) {
        return state_of(member.scan)->meta.metric == state_of(members[0].scan)->meta.metric &&
               !state_of(member.scan)->exact.wanted &&
               !(member.scan->orderByData[0].sk_flags & SK_ISNULL);
    });
}

// Whether the executor may drop rows that the scan returns, by a filter that the scan does not
// check. How many it has to return is then a guess of the plan, and more than LIMIT.
bool may_drop_rows(const ScanState* s) {
    return !row_filter(s->reader).passes && s->goal.limit > s->goal.least_rows;
}

// Whether the scan may be a part of a search.
bool is_plain(const ScanState* s) {
    return !s->exact.wanted && !row_filter(s->reader).passes && !s->bound.given &&
           s->audited.k == 0 && (s->meta.lists == 0 || s->goal.effort.threshold > 0);
}

// Chooses what all parts search for together. False: they have to be searched one by one.
bool begin_as_one(const Member* members, int count, double k, bool by_service, ScanSearch* search) {
    // Another round may be needed.
    if (settings.iterative_scan == static_cast<int>(IterativeScan::off) || settings.candidates > 0)
        return false;
    const MetaPage* largest = nullptr;
    for (int i = 0; i < count; ++i) {
        ScanState* s = state_of(members[i].scan);
        if (s->conditions.never) continue;
        // The executor may drop rows, so that LIMIT takes others.
        search->reads_beyond |= s->conditions.recheck;
        search->parts[search->count] = s;
        if (!is_plain(s) || may_drop_rows(s)) return false;
        if (s->meta.lists > 0) {
            if (largest && !has_like_codes(*largest, s->meta)) return false;
            if (!largest || measured_rows(*largest) < measured_rows(s->meta)) {
                largest = &s->meta;
                search->largest = search->count;
            }
        }
        ++search->count;
    }
    if (!largest || search->count < 2) return false;
    search->k = search->limit = static_cast<Size>(k);
    const ScanState* s = search->parts[search->largest];
    const Effort of_all = choose_effort(s->meta, static_cast<uint32>(k), checks_conditions(s));
    // All parts have candidates in memory at the same time.
    const Size room = most_candidates() / static_cast<Size>(search->count);
    if (!by_service && room < search->k) return false;
    const Size wanted = std::max(kept_candidates(of_all), search->k);
    for (int i = 0, part = 0; i < count; ++i) {
        ScanState* member = state_of(members[i].scan);
        if (part == search->count || search->parts[part] != member) continue;
        ++part;
        member->goal.candidates =
            std::clamp<Size>(wanted, 1, std::max<Size>(room, member->goal.limit));
        member->service.most_of_first =
            static_cast<Size>(rows_of_part(static_cast<double>(wanted), members[i].share));
    }
    return true;
}

// False: each part searches by itself.
bool search_together(const Member* members, int count, double k, ScanSearch* search) {
    const char* reason;
    const bool by_service = service_usable(members[0].scan->indexRelation, &reason);
    // Devices know the radius of their own part only.
    const double least = by_service ? 2 : 1;
    for (int i = 0; i < count; ++i)
        prepare(members[i], std::min(k, std::max(least, std::round(k * members[i].share))));
    const bool together =
        are_comparable(members, count) && begin_as_one(members, count, k, by_service, search);
    if (together) {
        search_round(search);
        return true;
    }
    // Each scan searches for all wanted rows, as one of a table would. All begin anew now: later,
    // some may have returned rows.
    auto** parts = static_cast<ScanState**>(palloc(static_cast<Size>(count) * sizeof(ScanState*)));
    for (int i = 0; i < count; ++i) {
        begin_anew(members[i].scan);
        prepare(members[i], 0);
        parts[i] = state_of(members[i].scan);
    }
    if (by_service) ask_members(parts, count);
    pfree(parts);
    return false;
}

// Where LIMIT takes the k nearest rows of the group and no other, each scan ends with its own of
// these. Otherwise the Merge Append would read one more of each.
void end_at_limit(const ScanSearch& search) {
    for (int i = 0; i < search.count; ++i)
        if (search.parts[i]->conditions.recheck) return;
    const double kth = kth_distance(search, search.k, false);
    const auto may_have_nearer = [kth](const ScanState* s) { return s->refined.left_out <= kth; };
    if (std::isinf(kth) || std::any_of(search.parts, search.parts + search.count, may_have_nearer))
        return;
    for (int i = 0; i < search.count; ++i) {
        RoundRows& round = search.parts[i]->round;
        round.count = static_cast<Size>(
            std::partition_point(round.rows, round.rows + round.count,
                                 [kth](const RankedRow& row) { return row.distance <= kth; }) -
            round.rows);
        search.parts[i]->progress.limit_met = true;
    }
}

}  // namespace

// Nodes and scans of many partitions take more memory than PostgreSQL keeps for the next query, and
// malloc() would return it to the system each time, for page faults of the next one.
static void keep_memory(int partitions) {
#ifdef __GLIBC__
    constexpr int many = 16;
    constexpr int bytes = 8 << 20;
    static bool kept = false;
    if (kept || partitions < many) return;
    kept = true;
    mallopt(M_TRIM_THRESHOLD, bytes);
    mallopt(M_TOP_PAD, 1 << 20);
    // malloc() no longer adapts this threshold once the others are set.
    mallopt(M_MMAP_THRESHOLD, bytes);
#else
    (void)partitions;
#endif
}

void begin_group_of(IndexScanDesc scan) {
    ScanGroup* group = group_of(scan);
    if (!group) return;
    keep_memory(group_size(group));
    // As many as LIMIT says, whatever the search before this one was for.
    set_part_rows(scan, 0);
    if (!joins(scan)) return;
    // Beyond, rows may have to be spilled.
    constexpr double most = 1 << 14;
    const double k = group_rows(group);
    if (k < 1 || k > std::min<double>(most, static_cast<double>(most_candidates()) / 4)) return;
    const int size = group_size(group);
    auto* members = static_cast<Member*>(palloc(static_cast<Size>(size) * sizeof(Member)));
    ScanSearch search = {};
    search.parts = static_cast<ScanState**>(palloc(static_cast<Size>(size) * sizeof(ScanState*)));
    int count = 0;
    bool only_limit = reads_only_limit(group);
    for (int i = 0; i < size; ++i) {
        const IndexScanDesc member = begin_member(group, i);
        if (!member || state_of(member)->query.vector) continue;
        members[count++] = {member, part_share(member)};
        only_limit &= returns_all_rows(member);
    }
    search.reads_beyond = !only_limit;
    if (count > 1 && search_together(members, count, k, &search) && only_limit)
        end_at_limit(search);
    pfree(search.parts);
    pfree(members);
}

}  // namespace pgwarp
