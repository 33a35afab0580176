// The first rounds of the partitions of a table as one search, by the service.
//
// Each scan has its own search and its own answer, which it verifies. But a row is among the k
// nearest whatever partition it is in. So candidates of all answers are ranked in one order, by
// their codes or by their refinements, and few rows are visited beside the k nearest.
//
// Each search is for the rows that fall to its partition by chance. Where more of the nearest lie
// in one, or its answer may lack some of them, that scan begins anew for more rows, up to k.
//
// Candidates that are not visited are left to later rounds, as those of a single scan are: the scan
// remembers which ones it has ranked, or they wait (refine.cpp).

#include <algorithm>
#include <cmath>
#include <limits>

#include "extension/index/model.h"
#include "extension/index/tid.h"
#include "extension/scan/joint_ranking.h"
#include "extension/scan/service_rounds.h"
#include "extension/settings.h"
#include "extension/util/disk_reads.h"

namespace pgwarp {

namespace {

constexpr double far = std::numeric_limits<double>::infinity();

// What a part has from the service; parts of JointSearch have the same numbers.
struct Answered {
    JointScan* scan;
    bool waits;  // for its answer to be taken
    PlannedSearch plan;
    TakenAnswer taken;
    uint64* ids;  // of taken.candidates, as they were
    int searches;
};

struct Search : JointSearch {
    Answered* answered;
    bool refined;
};

bool is_plain(const ScanState* s) {
    return !s->exact.wanted && s->conditions.count == 0 && !row_filter(s->reader).passes &&
           !s->bound.given && s->audited.k == 0;
}

// Whether the scans can be searched as one, as far as it is known before the service was asked.
bool begin(JointScan* scans, int count, Search* search) {
    // Another round may be needed for rows that wait, and for candidates that are left out.
    if (settings.iterative_scan == static_cast<int>(IterativeScan::off) || settings.candidates > 0)
        return false;
    const MetaPage* first = nullptr;  // of an index with lists
    for (int i = 0; i < count; ++i) {
        auto* s = static_cast<ScanState*>(scans[i].scan->opaque);
        if (s->conditions.never) continue;
        search->answered[search->part_count] = {&scans[i], true, {}, {}, nullptr, 0};
        search->parts[search->part_count++] = {scans[i].scan, s, nullptr, nullptr, nullptr, 0, 0};
        if (!is_plain(s) || search->parts[0].s->meta.metric != s->meta.metric) return false;
        if (s->meta.lists == 0) continue;
        if (first && !has_like_codes(*first, s->meta)) return false;
        first = &s->meta;
    }
    return first != nullptr;
}

bool has_lists(const JointPart& part) {
    return part.s->meta.lists > 0;
}

// Of the candidates by code that all parts need together, those of a part; as many as its rows ask
// for where it has more of the nearest than fall to it by chance.
Size candidates_of_part(const Search& search, int number) {
    if (search.answered[number].searches > 0) return 0;
    const double share = share_of(search, search.parts[number]);
    return static_cast<Size>(rows_of_part(static_cast<double>(search.most), share));
}

// Asks for the first rounds of all parts whose answers are not there. False: some will have none,
// or one that is to be continued.
bool ask_parts(Search* search) {
    auto* scans = static_cast<IndexScanDesc*>(
        palloc(static_cast<Size>(search->part_count) * sizeof(IndexScanDesc)));
    int count = 0;
    for (int i = 0; i < search->part_count; ++i)
        if (search->answered[i].waits && has_lists(search->parts[i])) {
            search->parts[i].s->service.most_of_first = candidates_of_part(*search, i);
            scans[count++] = search->parts[i].scan;
        }
    ask_members(scans, count);
    pfree(scans);
    for (int i = 0; i < search->part_count; ++i) {
        if (!search->answered[i].waits || !has_lists(search->parts[i])) continue;
        const PlannedSearch* plan = search->parts[i].s->service.planned;
        if (!plan || !plan->answered || plan->search.narrowed) return false;
    }
    return true;
}

// Whether all answers are of one kind, which it notes.
bool are_alike(Search* search) {
    int refined = 0;
    int all = 0;
    for (int i = 0; i < search->part_count; ++i) {
        if (!has_lists(search->parts[i])) continue;
        ++all;
        refined += search->parts[i].s->service.planned->refined;
    }
    search->refined = refined > 0;
    return refined == 0 || refined == all;
}

// --- answers

// False: the answer is not current, or lists from pages have too few candidates.
bool take_part(const Search& search, JointPart* part, Answered* answered) {
    ScanState* s = part->s;
    begin_answered_round(s);
    answered->waits = false;
    part->items = nullptr;
    part->count = part->ranked = 0;
    if (!has_lists(*part)) return !s->round.spilled;
    PlannedSearch& plan = answered->plan;
    plan = *s->service.planned;
    s->service.planned = nullptr;
    s->service.given = &plan.answer;
    begin_search(s, plan.left, plan.refined, &plan.search);
    const bool taken = ask_for_lists(part->scan, s, &plan.search, &plan.answer) &&
                       take_answer(part->scan, s, plan.search, plan.answer, &answered->taken) &&
                       !(answered->taken.from_pages && answered->taken.found < plan.left);
    s->service.given = nullptr;
    if (!taken) return false;
    const TakenAnswer& answer = answered->taken;
    expect_rows(s, answer.by_code + answer.unknown + s->round.count);
    if (s->round.spilled) return false;
    if (search.refined) {
        refine_and_remember(part->scan, s, answer);
        return !s->round.spilled;
    }
    answered->ids = static_cast<uint64*>(
        palloc(Max(answer.by_code + answer.unknown, Size{1}) * sizeof(uint64)));
    for (Size i = 0; i < answer.by_code + answer.unknown; ++i)
        answered->ids[i] = answer.candidates[i].id;
    rank_candidates(part->scan, s, answer.candidates + answer.by_code, answer.unknown);
    part->items = answer.candidates;
    part->count = answer.by_code;
    return true;
}

bool take_parts(Search* search) {
    for (int i = 0; i < search->part_count; ++i) {
        JointPart& part = search->parts[i];
        if (!search->answered[i].waits) continue;
        const MemoryContext before = MemoryContextSwitchTo(part.s->context);
        const bool taken = take_part(*search, &part, &search->answered[i]);
        MemoryContextSwitchTo(before);
        if (!taken) return false;
    }
    return true;
}

// The scan begins anew, for more rows: it has this many of the nearest, or more.
void begin_part_anew(const Search& search, int number, double near) {
    constexpr int most_searches = 4;
    Answered& answered = search.answered[number];
    JointScan& scan = *answered.scan;
    const auto k = static_cast<double>(search.k);
    const bool last = ++answered.searches == most_searches;
    scan.rows = last ? k : std::min(k, std::max(2 * scan.rows, near + 1));
    scan.most = last ? k : std::min(k, std::max(2 * scan.most, rows_of_part(k, near / k)));
    begin_anew(scan.scan);
    set_part_rows(scan.scan, scan.rows);
    prepare_round(scan.scan);
    answered.waits = true;
}

// Its first search was for a share of the rows, or of the candidates by code.
bool may_begin_anew(const Search& search, int number) {
    const Answered& answered = search.answered[number];
    return has_lists(search.parts[number]) &&
           (answered.scan->rows < static_cast<double>(search.k) ||
            (answered.searches == 0 && !search.refined));
}

// Whether a part has more of the nearest than fall to it by chance, or all of them.
bool has_many(const Search& search, int number, double near) {
    const JointScan& scan = *search.answered[number].scan;
    const auto k = static_cast<double>(search.k);
    return near > scan.most || (near >= k && scan.rows < k);
}

// Whether the answers of parts that were begun anew are of the kind of all others.
bool have_same_kind(const Search& search) {
    for (int i = 0; i < search.part_count; ++i)
        if (search.answered[i].waits && has_lists(search.parts[i]) &&
            search.parts[i].s->service.planned->refined != search.refined)
            return false;
    return true;
}

// --- by code

// Begins parts anew that may have more of the candidates that are worth ranking. Returns whether
// there were any.
bool begin_more_by_code(const Search& search, const JointOrder& order) {
    if (order.worth == 0) return false;
    const double kth = order.items[std::min(order.worth, search.k) - 1].distance;
    const double last = order.items[order.worth - 1].distance;
    bool any = false;
    for (int i = 0; i < search.part_count; ++i) {
        const JointPart& part = search.parts[i];
        if (!may_begin_anew(search, i)) continue;
        Size near = 0;
        while (near < part.count && part.items[near].distance <= kth) ++near;
        const TakenAnswer& taken = search.answered[i].taken;
        const bool cut =
            taken.by_code >= taken.search.k && part.items[part.count - 1].distance < last;
        if (!cut && !has_many(search, i, static_cast<double>(near))) continue;
        begin_part_anew(search, i, static_cast<double>(near));
        any = true;
    }
    return any;
}

// Returns the distance of the k-th row; nothing: an answer could not be used.
bool rank_by_code(Search* search, double* kth) {
    JointOrder order;
    while (true) {
        if (!take_parts(search)) return false;
        order = join_candidates(search);
        if (!begin_more_by_code(*search, order)) break;
        pfree(order.items);
        if (!ask_parts(search) || !have_same_kind(*search)) return false;
    }
    *kth = rank_jointly(search, order);
    pfree(order.items);
    for (int i = 0; i < search->part_count; ++i) {
        const JointPart& part = search->parts[i];
        if (!has_lists(part)) continue;
        const MemoryContext before = MemoryContextSwitchTo(part.s->context);
        const TakenAnswer& taken = search->answered[i].taken;
        uint64* ids = search->answered[i].ids;
        std::copy_n(ids + taken.by_code, taken.unknown, ids + part.ranked);
        std::sort(ids, ids + part.ranked + taken.unknown);
        remember(part.s, ids, part.ranked + taken.unknown);
        MemoryContextSwitchTo(before);
    }
    return true;
}

// --- by refinements

// Prefetches for candidates of all parts that are visited next.
void prefetch(const Search& search, const Size* begin, const Size* end) {
    DiskReads reads;
    for (const PrefetchStage stage :
         {PrefetchStage::hint, PrefetchStage::read, PrefetchStage::page, PrefetchStage::tuple}) {
        if (stage == PrefetchStage::read && !reads.needed()) continue;
        for (int i = 0; i < search.part_count; ++i) {
            ScanState* s = search.parts[i].s;
            for (Size c = begin[i]; c < end[i]; ++c)
                if (!s->refined.waiting[c].visited)
                    prefetch_row(reader_of(s), number_tid(s->refined.waiting[c].tid), stage);
        }
    }
}

// Visits candidates of all parts, in the order of their least distances, until no other one can be
// among the k nearest rows of those that the answers name. Returns the distance of the k-th.
double visit_jointly(Search* search) {
    const auto parts = static_cast<Size>(search->part_count);
    auto* next = static_cast<Size*>(palloc0(parts * sizeof(Size)));
    auto* end = static_cast<Size*>(palloc0(parts * sizeof(Size)));
    Size count = 0;
    for (int i = 0; i < search->part_count; ++i) {
        end[i] = order_waiting(search->parts[i].s);
        count += end[i];
    }
    auto* joined =
        static_cast<JointCandidate*>(palloc(Max(count, Size{1}) * sizeof(JointCandidate)));
    Size at = 0;
    for (int i = 0; i < search->part_count; ++i)
        for (Size c = 0; c < end[i]; ++c)
            joined[at++] = {search->parts[i].s->refined.waiting[c].least, i};
    std::sort(joined, joined + count);
    double kth = kth_distance(search);
    for (at = 0; at < count;) {
        const Size rows = count_rows(*search);
        Size until = at;
        if (rows < search->k) {
            until = std::min(count, at + (search->k - rows));
        } else {
            // Step by step: the k-th may be one of rows that wait beside lists, and far.
            const Size most = std::min(count, at + search->k);
            while (until < most && joined[until].distance <= kth) ++until;
        }
        if (until == at) break;
        std::copy_n(next, parts, end);
        for (; at < until; ++at) ++end[joined[at].part];
        prefetch(*search, next, end);
        for (int i = 0; i < search->part_count; ++i) {
            if (end[i] == next[i]) continue;
            const MemoryContext before = MemoryContextSwitchTo(search->parts[i].s->context);
            visit_ordered(search->parts[i].s, next[i], end[i]);
            MemoryContextSwitchTo(before);
        }
        std::copy_n(end, parts, next);
        kth = kth_distance(search);
    }
    for (int i = 0; i < search->part_count; ++i) drop_visited(search->parts[i].s, next[i]);
    pfree(joined);
    pfree(end);
    pfree(next);
    return kth;
}

// Begins parts anew that may have more of the k nearest rows than their answers name. False: one
// has searched for all k rows before. *any: there are some.
bool begin_more_by_rows(const Search& search, double kth, bool* any) {
    *any = false;
    for (int i = 0; i < search.part_count; ++i) {
        const ScanState* s = search.parts[i].s;
        if (!has_lists(search.parts[i])) continue;
        const auto near = static_cast<double>(
            std::count_if(s->round.rows, s->round.rows + s->round.count,
                          [kth](const RankedRow& row) { return row.distance <= kth; }));
        const bool left_out = s->refined.left_out <= kth && !std::isinf(s->refined.left_out);
        if (!left_out && (!has_many(search, i, near) || !may_begin_anew(search, i))) continue;
        if (!may_begin_anew(search, i)) return false;
        begin_part_anew(search, i, near);
        *any = true;
    }
    return true;
}

bool rank_by_refinements(Search* search, double* kth) {
    for (bool any = true; any;) {
        if (!take_parts(search)) return false;
        *kth = visit_jointly(search);
        if (!begin_more_by_rows(*search, *kth, &any)) return false;
        if (any && (!ask_parts(search) || !have_same_kind(*search))) return false;
    }
    for (int i = 0; i < search->part_count; ++i) {
        const MemoryContext before = MemoryContextSwitchTo(search->parts[i].s->context);
        end_visits(search->parts[i].s, 1);
        MemoryContextSwitchTo(before);
    }
    return true;
}

// Whether k rows were found, or all that there are.
bool find_rows(Search* search) {
    double kth;
    if (!(search->refined ? rank_by_refinements(search, &kth) : rank_by_code(search, &kth)))
        return false;
    bool all = true;
    for (int i = 0; i < search->part_count; ++i) {
        const JointPart& part = search->parts[i];
        Answered& answered = search->answered[i];
        const MemoryContext before = MemoryContextSwitchTo(part.s->context);
        if (has_lists(part)) {
            leave_answer(part.scan, part.s, answered.taken);
            free_answer(&answered.plan.answer);
            // The next round, for twice as many, has to find what the device left out.
            part.s->goal.candidates =
                search->refined
                    ? std::max<Size>(answered.plan.wanted, (answered.plan.search.k + 1) / 2)
                    : answered.plan.wanted;
        }
        end_joint_round(part.scan, part.s);
        MemoryContextSwitchTo(before);
        all &= part.s->progress.finished;
    }
    return (!std::isinf(kth) && (search->refined || has_enough(search))) || all;
}

}  // namespace

JointResult search_answers(JointScan* scans, int count, double k, bool beyond, bool* asked) {
    Search search = {};
    const auto most = static_cast<Size>(count);
    search.parts = static_cast<JointPart*>(palloc0(most * sizeof(JointPart)));
    search.answered = static_cast<Answered*>(palloc0(most * sizeof(Answered)));
    search.beyond = beyond;
    JointResult result = JointResult::impossible;
    *asked = begin(scans, count, &search);
    if (*asked) {
        choose_limits(&search, static_cast<Size>(k));
        if (ask_parts(&search) && are_alike(&search))
            result = find_rows(&search) ? JointResult::found : JointResult::too_few;
    }
    if (search.numbers) pfree(search.numbers);
    pfree(search.answered);
    pfree(search.parts);
    return result;
}

}  // namespace pgwarp
