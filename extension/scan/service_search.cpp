// What a round of a scan asks the service for: lists, candidates and refinements.

#include <algorithm>
#include <cmath>

#include "extension/index/effort.h"
#include "extension/index/table_rows.h"
#include "extension/scan/limit.h"
#include "extension/scan/service_rounds.h"
#include "extension/scan/tables.h"
#include "extension/service/shards.h"
#include "extension/settings.h"

namespace pgwarp {

double entries_in(IndexScanDesc scan, const ScanState* s, uint32 lists) {
    return table_rows(scan->heapRelation, scan->indexRelation) * lists / s->meta.lists;
}

uint32 probes_for(const ScanState* s, double share) {
    constexpr double margin = 2;
    const uint32 lists = bounded_probes(s->meta.lists, s->meta);
    if (settings.target_recall >= 1) return lists;
    const double nearest = s->goal.limit / share;
    const double wanted =
        std::max(margin * lists_for(s->meta, nearest), expected_lists(s->meta, nearest));
    return static_cast<uint32>(std::clamp<double>(std::ceil(wanted), 1, lists));
}

double first_share(IndexScanDesc scan) {
    // Without an estimate, the first answer gives one.
    constexpr double unknown = 0.1;
    const double share = planned_share(scan);
    return share > 0 ? share : unknown;
}

namespace {

constexpr char too_many[] = "too many candidates for the service";

// Whether the search may decide how many lists it takes: only a plain one does.
ByQuery by_query(const ScanState* s) {
    return s->goal.threshold > 0 || s->goal.margin > 0 ? ByQuery::yes : ByQuery::no;
}

// Lists among which such a search takes its own: hardly any takes more, and each costs a little, or
// its pages where the service does not have it yet.
uint32 most_by_query(const ScanState* s, const Effort& effort) {
    constexpr uint32 times = 4;
    const uint32 least = std::clamp(s->meta.lists / 8, 8u, 64u);
    return bounded_probes(std::max(times * effort.probes, least), s->meta);
}

// Whether a device scores the candidates of a plain search by their refinements.
bool device_refines(IndexScanDesc scan, const ScanState* s) {
    return refines(s) && s->conditions.count == 0 &&
           keeps_refinements(scan->indexRelation, s->meta);
}

// The first search of the scan, for `wanted` candidates.
WantedSearch first_search(IndexScanDesc scan, ScanState* s, bool refined, Size* wanted) {
    WantedSearch search = {};
    search.query = query_form(scan->indexRelation, s);
    search.dims = s->meta.code_dims;
    search.conditions = s->conditions.all();
    const Effort effort =
        s->conditions.count > 0
            ? choose_effort(s->meta, s->goal.limit, visiting_costs(s->meta))
            : choose_effort(s->meta, s->goal.planned, service_costs(refined), by_query(s));
    *wanted = Size{std::max(effort.candidates, 1u)} + s->asked.passed_over;
    // Where the scan sees how many rows pass its filters, the plan's estimate need not be trusted
    // far.
    if (s->goal.filtered > 0 && settings.candidates == 0)
        *wanted = std::min<Size>(*wanted, service_most_k);
    search.probes = bounded_probes(effort.probes, s->meta);
    s->goal.promised = effort.promised;
    s->goal.margin = effort.margin;
    if (effort.threshold > 0) {
        search.threshold = effort.threshold * static_cast<float>(std::sqrt(s->goal.growth));
        search.radius_k = s->goal.planned + s->asked.passed_over;
        search.first_entries = entries_for_radius(s, search.radius_k);
        search.first_lists = bounded_probes(effort.first_lists, s->meta);
        search.wider_k = effort.wider_k;
        search.probes = std::min(most_by_query(s, effort), service_most_lists);
        if (search.first_lists > service_most_lists) {
            // Asked for in parts, where no query decides.
            search.threshold = 0;
            search.probes = search.first_lists;
        }
    }
    if (!widens(s)) return search;
    const double share = first_share(scan);
    const uint32 all = bounded_probes(s->meta.lists, s->meta);
    const double lists = probes_for(s, share) * list_width(s->meta.build_id, share);
    search.probes = std::max(search.probes, static_cast<uint32>(std::min<double>(lists, all)));
    search.probes = std::min(search.probes, service_most_lists);
    return search;
}

// The first search of a later round.
WantedSearch next_search(IndexScanDesc scan, ScanState* s, Size* wanted) {
    WantedSearch search = {};
    search.query = query_form(scan->indexRelation, s);
    search.dims = s->meta.code_dims;
    search.conditions = s->conditions.all();
    search.first_probe = s->group.begin;
    search.probes = s->group.end;
    search.device = s->service.device;
    search.devices = s->service.devices;
    *wanted = s->goal.candidates + (s->service.resumes ? 0 : s->served.repeated);
    return search;
}

// Candidates of a search whose device scores them by their refinements: as many as a scan of pages
// may score, of which a device selects 512 in half the time of 1,000.
Size refined_candidates(const ScanState* s, Size wanted) {
    constexpr Size fast = 512;
    if (settings.candidates > 0) return wanted;
    const Size most = s->goal.margin > 0 ? most_ranked_of(wanted, true, 0) : wanted;
    const Size taken = std::clamp<Size>(most, fast_list_k, std::max(wanted, fast));
    return std::min({taken, Size{service_most_k}, most_candidates()});
}

// For how many rows the device shall name candidates: some more than are wanted, because rows may
// not be visible. All of them, if no further round can find what it leaves out.
uint32 refined_rows(const ScanState* s, uint32 k) {
    if (settings.iterative_scan == static_cast<int>(IterativeScan::off) ||
        settings.max_scan_tuples > 0)
        return k;
    const Size wanted = std::max<Size>(s->goal.least_rows, s->goal.limit) + s->asked.passed_over;
    constexpr Size least_more = 8;
    return static_cast<uint32>(
        std::clamp<Size>(wanted + std::max(wanted / 4, least_more), 1, std::max(k, 1u)));
}

}  // namespace

WantedSearch first_part(const ScanState* s, const WantedSearch& search) {
    WantedSearch part = search;
    part.probes = std::min(search.probes, search.first_probe + service_most_lists);
    // Answers that become one all have versions.
    part.wants_versions =
        search.probes >= service_most_lists && part.probes < bounded_probes(s->meta.lists, s->meta);
    return part;
}

bool plan_search(IndexScanDesc scan, ScanState* s, PlannedSearch* plan) {
    const bool first = !s->report.by_service;
    Size left;
    bool refined = first && device_refines(scan, s);
    WantedSearch search =
        first ? first_search(scan, s, refined, &left) : next_search(scan, s, &left);
    if (left > most_candidates()) {
        s->report.reason = too_many;
        return false;
    }
    // A plain search is faster. It gives no floor, counts no near entries, and does not say whether
    // there is more.
    search.narrowed = !first || !search.conditions.empty() || widens(s) || left > service_most_k ||
                      search.probes > service_most_lists;
    if (search.narrowed) search.threshold = 0;
    const Size wanted = left;
    if (search.narrowed) s->goal.margin = 0;
    // A narrowed search may be continued after its last candidate by code, and a device names few
    // of those that it has refined.
    refined &= !search.narrowed;
    if (refined)
        left = refined_candidates(s, left);
    else if (s->goal.margin > 0)
        left = std::min(
            {most_ranked_of(left, false, search.wider_k), Size{service_most_k}, most_candidates()});
    // One of several partitions has few of those that all have. A device refines no fewer than it
    // selects fast; with more, its searches would not share a batch.
    if (first && !search.narrowed && s->service.most_of_first > 0)
        left = std::min(left, std::max({s->service.most_of_first, Size{search.radius_k},
                                        Size{search.wider_k}, Size{refined ? fast_list_k : 1}}));
    *plan = {search, wanted, left, refined, false, ServiceAnswer{}};
    return true;
}

void begin_search(const ScanState* s, Size left, bool refined, WantedSearch* search) {
    search->k = static_cast<uint32>(std::min<Size>(left, service_most_k));
    search->refined_k = refined ? refined_rows(s, search->k) : 0;
    const bool begins = search->first_probe == 0 && !s->service.resumes;
    search->near_k = widens(s) && begins && search->probes <= service_most_lists
                         ? std::min(s->goal.limit, search->k)
                         : 0;
    if (!s->service.resumes) return;
    search->floor = s->service.floor;
    search->device = s->service.device;
    search->devices = s->service.devices;
}

}  // namespace pgwarp
