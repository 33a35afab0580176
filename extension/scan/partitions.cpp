// Scans of the partitions of a table, under one Merge Append.
//
// Each partition would search for all k rows of LIMIT, and the Merge Append take a few of each. So
// the scan that is asked for a row first begins all of them, before any row is returned. They are
// one search then: of lists (joint_search.cpp), or by the service (joint_answers.cpp). Where that
// is not possible, each partition is searched as a table of its own would be.
//
// The service is asked for the first rounds of all of them at once: its answers take the time of a
// few instead of one after the other. Each answer is verified when its scan takes it, as any is. An
// answer is of lists as they were after all snapshots and pending lists were read.

#include <algorithm>
#include <limits>
#ifdef __GLIBC__
#include <malloc.h>
#endif

#include "extension/index/effort.h"
#include "extension/scan/state.h"
#include "extension/service/client.h"
#include "extension/settings.h"

namespace pgwarp {

namespace {

constexpr double far = std::numeric_limits<double>::infinity();

ScanState* state_of(IndexScanDesc scan) {
    return static_cast<ScanState*>(scan->opaque);
}

struct Member {
    IndexScanDesc scan;
    double share;  // of all rows
    double rows;   // for which its effort is
    double most;   // rows that it may have among the nearest without another search
};

// The distance of the nearest row of this rank, of those that members have found.
double distance_of(const Member* members, int count, double rank) {
    const auto k = static_cast<Size>(rank);
    Size all = 0;
    for (int i = 0; i < count; ++i) all += std::min(state_of(members[i].scan)->round.count, k);
    auto* distances = static_cast<double*>(palloc(Max(all, Size{1}) * sizeof(double)));
    Size found = 0;
    for (int i = 0; i < count; ++i) {
        const RoundRows& round = state_of(members[i].scan)->round;
        for (Size row = 0; row < std::min(round.count, k); ++row)
            distances[found++] = round.rows[row].distance;
    }
    double distance = far;
    if (found >= k) {
        std::nth_element(distances, distances + k - 1, distances + found);
        distance = distances[k - 1];
    }
    pfree(distances);
    return distance;
}

void prepare(Member* member) {
    set_part_rows(member->scan, member->rows);
    prepare_round(member->scan);
}

// How many rows of the member are at most this far.
double rows_within(const Member& member, double distance) {
    const RoundRows& round = state_of(member.scan)->round;
    Size count = 0;
    while (count < round.count && round.rows[count].distance <= distance) ++count;
    return static_cast<double>(count);
}

// Searches with an effort of their own: of all rows, or up to a given distance.
bool joins(IndexScanDesc scan) {
    return settings.target_recall < 1 && !wanted_bound(scan, Metric::l2).given;
}

// Asks the service for the first rounds of all members.
void ask_for(Member* members, int count) {
    auto* scans =
        static_cast<IndexScanDesc*>(palloc(static_cast<Size>(count) * sizeof(IndexScanDesc)));
    for (int i = 0; i < count; ++i) scans[i] = members[i].scan;
    ask_members(scans, count);
    pfree(scans);
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

// Each finds all rows, as one of a table would.
void search_apart(Member* members, int count) {
    for (int i = 0; i < count; ++i) {
        members[i].rows = 0;
        begin_anew(members[i].scan);
        // So that the next scan to be asked for a row does not begin them again.
        prepare(&members[i]);
    }
    const char* reason;
    if (service_usable(members[0].scan->indexRelation, &reason)) ask_for(members, count);
}

// Whether rows that the scan returns may be dropped by a filter that it does not check: how many it
// has to return is a guess of the plan then, and those near enough for LIMIT are not enough.
bool may_drop_rows(const ScanState* s) {
    return !row_filter(s->reader).passes && s->goal.limit > s->goal.least_rows;
}

JointResult search_lists(const Member* members, int count, double k, bool beyond) {
    auto* scans =
        static_cast<IndexScanDesc*>(palloc(static_cast<Size>(count) * sizeof(IndexScanDesc)));
    for (int i = 0; i < count; ++i) scans[i] = members[i].scan;
    const JointResult result = search_jointly(scans, count, k, beyond);
    pfree(scans);
    return result;
}

// `asked`: the service was asked for their first rounds.
JointResult search_by_service(const Member* members, int count, double k, bool beyond,
                              bool* asked) {
    const char* reason;
    *asked = false;
    if (!service_usable(members[0].scan->indexRelation, &reason)) return JointResult::impossible;
    auto* scans = static_cast<JointScan*>(palloc(static_cast<Size>(count) * sizeof(JointScan)));
    for (int i = 0; i < count; ++i) scans[i] = {members[i].scan, members[i].rows, members[i].most};
    const JointResult result = search_answers(scans, count, k, beyond, asked);
    pfree(scans);
    return result;
}

// False: they have to be searched one by one.
bool search_as_one(Member* members, int count, double k, bool beyond) {
    bool asked;
    JointResult result = search_by_service(members, count, k, beyond, &asked);
    if (result == JointResult::impossible && !asked)
        result = search_lists(members, count, k, beyond);
    return result == JointResult::found;
}

void search_together(Member* members, int count, double k, bool beyond) {
    for (int i = 0; i < count; ++i) prepare(&members[i]);
    const bool drops = std::any_of(members, members + count, [](const Member& member) {
        return may_drop_rows(state_of(member.scan));
    });
    if (drops || !are_comparable(members, count) || !search_as_one(members, count, k, beyond))
        search_apart(members, count);
}

// Where LIMIT takes the k nearest rows of the group and no other, each scan ends with its own of
// these. Otherwise the Merge Append would read one more of each.
void end_at_limit(const Member* members, int count, double k) {
    if (!are_comparable(members, count)) return;
    for (int i = 0; i < count; ++i) {
        const ScanState* s = state_of(members[i].scan);
        if (s->conditions.recheck || s->round.spilled) return;
    }
    const double kth = distance_of(members, count, k);
    if (kth == far) return;
    for (int i = 0; i < count; ++i) {
        ScanState* s = state_of(members[i].scan);
        s->round.count = static_cast<Size>(rows_within(members[i], kth));
        s->progress.limit_met = true;
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
    // It no longer follows what is allocated, once the others are set.
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
    int count = 0;
    for (int i = 0; i < size; ++i) {
        const IndexScanDesc member = begin_member(group, i);
        if (!member || state_of(member)->query.vector) continue;
        const double share = part_share(member);
        members[count++] = {member, share, std::min(k, std::max(2.0, std::round(k * share))),
                            rows_of_part(k, share)};
    }
    if (count > 1) {
        const bool only_limit = reads_only_limit(group) &&
                                std::all_of(members, members + count, [](const Member& member) {
                                    return returns_all_rows(member.scan);
                                });
        search_together(members, count, k, !only_limit);
        if (only_limit) end_at_limit(members, count, k);
    }
    pfree(members);
}

}  // namespace pgwarp
