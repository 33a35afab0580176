// What a round of a scan asks the service for: lists, candidates and refinements.

#include <algorithm>
#include <cmath>

#include "extension/index/effort.h"
#include "extension/scan/limit.h"
#include "extension/scan/service_rounds.h"
#include "extension/scan/tables.h"
#include "extension/service/shards.h"
#include "extension/settings.h"

namespace pgwarp {

namespace {

constexpr char too_many[] = "too many candidates for the service";

// With conditions, it is not known how many lists a search takes.
uint32 most_by_query(const ScanState* s) {
    const uint32 most = s->conditions.count > 0 ? service_most_lists
                                                : offered_lists(s->meta, s->goal.effort.probes);
    return bounded_probes(most, s->meta);
}

// Whether a device scores the candidates of a plain search by their refinements.
bool device_refines(IndexScanDesc scan, const ScanState* s) {
    return refines(s) && s->conditions.count == 0 &&
           keeps_refinements(scan->indexRelation, s->meta);
}

// Whether the next search takes its lists from the nearest on.
bool begins_search(const ScanState* s) {
    return s->walk.stage == GroupStage::first && s->group.begin == 0 && !s->service.resumes;
}

// A search for goal.limit rows.
WantedSearch first_search(IndexScanDesc scan, ScanState* s) {
    WantedSearch search = {};
    search.query = query_form(scan->indexRelation, s);
    search.dims = s->meta.code_dims;
    search.conditions = s->conditions.all();
    search.probes = s->group.end;
    if (!(s->goal.effort.threshold > 0)) return search;
    const Size k = Size{s->goal.limit} + s->asked.passed_over;
    if (k > service_most_k) {
        // A device selects too few for the radius: as many lists as every query needs.
        const uint32 lists = lists_for_all(s->meta, static_cast<double>(k), false);
        search.probes = bounded_probes(lists, s->meta);
        return search;
    }
    search.plan = list_plan(s->goal.effort, k, code_shift(s));
    search.probes = most_by_query(s);
    return search;
}

// A search that goes on behind the lists of the searches before.
WantedSearch next_search(IndexScanDesc scan, ScanState* s) {
    WantedSearch search = {};
    search.query = query_form(scan->indexRelation, s);
    search.dims = s->meta.code_dims;
    search.conditions = s->conditions.all();
    search.first_probe = s->group.begin;
    search.probes = s->group.end;
    search.device = s->service.device;
    search.devices = s->service.devices;
    return search;
}

// For how many rows the device shall name candidates: some more than are wanted, because rows may
// not be visible. All of them, if no further round can find what it leaves out.
uint32 refined_rows(const ScanState* s, uint32 k) {
    if (settings.iterative_scan == static_cast<int>(IterativeScan::off) ||
        settings.max_scan_tuples > 0)
        return k;
    const Size wanted = std::max<Size>(s->goal.least_rows, s->goal.limit) + s->asked.passed_over +
                        s->served.repeated;
    constexpr Size least_more = 8;
    return static_cast<uint32>(
        std::clamp<Size>(wanted + std::max(wanted / 4, least_more), 1, std::max(k, 1u)));
}

}  // namespace

WantedSearch first_part(const ScanState* s, const WantedSearch& search) {
    WantedSearch part = search;
    part.probes = std::min(search.probes, search.first_probe + service_most_lists);
    // Answers that are merged all need versions.
    part.wants_versions =
        search.probes >= service_most_lists && part.probes < bounded_probes(s->meta.lists, s->meta);
    return part;
}

bool plan_search(IndexScanDesc scan, ScanState* s, PlannedSearch* plan) {
    const bool begins = begins_search(s);
    Size left = s->goal.candidates + (s->service.resumes ? 0 : s->served.repeated);
    WantedSearch search = begins ? first_search(scan, s) : next_search(scan, s);
    const bool too_many_passing = Size{s->goal.limit} > service_most_k && s->conditions.count > 0;
    if (left > most_candidates() || too_many_passing) {
        s->report.reason = too_many;
        return false;
    }
    // A plain search is faster. It gives no floor, counts no entries, and does not say whether
    // there is more.
    search.filtered = !begins || !search.conditions.empty() || left > service_most_k ||
                      search.probes > service_most_lists;
    // A filtered search may be continued after its last candidate by code, and a device names few
    // of those that it has refined.
    const bool refined = begins && !search.filtered && device_refines(scan, s);
    const Size wanted = left;
    // A partition has a part of the candidates of all. A device refines at least as many as it
    // selects fast, at the same price; searches for more do not share a batch with these.
    if (begins && !search.filtered && s->service.most_of_first > 0)
        left = std::min(left, std::max({s->service.most_of_first, Size{search.plan.k},
                                        Size{refined ? fast_list_k : 1}}));
    *plan = {search, wanted, left, refined, false, ServiceAnswer{}};
    return true;
}

void begin_search(const ScanState* s, Size left, bool refined, WantedSearch* search) {
    search->k = static_cast<uint32>(std::min<Size>(left, service_most_k));
    search->refined_k = refined ? refined_rows(s, search->k) : 0;
    if (!s->service.resumes) return;
    search->plan = {};
    search->floor = s->service.floor;
    search->device = s->service.device;
    search->devices = s->service.devices;
}

}  // namespace pgwarp
