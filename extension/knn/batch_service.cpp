// Candidates for many queries at once, from the service.
//
// Many searches are in progress at once, and each answer is verified against the pages, as that of
// a scan is (service/completion.h). A query whose answer lacks something is left to a scan, which
// completes it. If hardly any answer is whole, all queries are left to scans: the service does not
// have the index, or not yet.

#include <algorithm>

#include "kernels/mirror.h"
#include "extension/knn/batch_state.h"
#include "extension/scan/report.h"
#include "extension/service/completion.h"
#include "extension/settings.h"

namespace pgwarp {

namespace {

struct Served {
    const KnnBatch* batch;
    const ListWants* wants;
    const uint32* queries;  // numbers in `wants`, of those that are asked for
    uint32 probes;
    uint32 all;  // lists that a query may take
};

bool plan_query(void* state, int number, SearchAhead* search) {
    const auto* served = static_cast<const Served*>(state);
    const ListWants& wants = *served->wants;
    const MetaPage& meta = served->batch->meta;
    const uint32 query = served->queries[number];
    WantedSearch wanted = {};
    wanted.query = wants.forms + Size{query} * meta.code_dims;
    wanted.dims = meta.code_dims;
    wanted.k = wants.candidates;
    wanted.probes = served->probes;
    wanted.plan = list_plan(wants.effort, std::min(wants.k, wants.candidates),
                            code_shift(meta, wanted.query));
    if (wants.radii) wanted.plan.radius = wants.radii[query];
    *search = {served->batch->index->index, &meta, wanted, CurrentMemoryContext, {}, false};
    return true;
}

// Notes that an answer lacks entries.
void note_lack(void* state) {
    *static_cast<bool*>(state) = true;
}
void pass_over(void*, uint32, Page, const EntryLayout&, uint32) {}

bool is_resident(const MirrorProbe& probe) {
    return probe.version.resident != 0;
}

// Whether the answer, and appended entries, are all that the lists hold. Lists that the service
// lacks are sent to it for the first answers only: each time, their pages are walked.
bool is_whole(const KnnBatch* batch, const ServiceAnswer& answer, int* lacking,
              Completion* completion) {
    constexpr int sent = 4;
    *completion = {};
    if (!answer.complete &&
        !std::all_of(answer.probed, answer.probed + answer.probed_count, is_resident) &&
        ++*lacking > sent)
        return false;
    bool lacks = false;
    *completion = complete_answer(batch->index->index, batch->meta, answer,
                                  {note_lack, pass_over, &lacks, {}});
    return completion->current && !lacks;
}

void put_answer(ServiceAnswer* answer, const Completion& completion, uint32 query,
                const ServedSink& sink) {
    std::sort(answer->found, answer->found + answer->found_count,
              [](const Neighbor& a, const Neighbor& b) {
                  return a.distance < b.distance || (a.distance == b.distance && a.id < b.id);
              });
    sink.put(sink.state, query, answer->found, answer->found_count, completion.appended,
             completion.appended_count);
}

// Asks for some queries. The ones that would take more lists become the first *count of `queries`.
// False: hardly any answer is whole; the first time, put() is then called for none.
bool ask(const Served& served, uint32* queries, uint32* count, bool first, const ServedSink& sink) {
    SearchAhead* searches = alloc_array<SearchAhead>(*count);
    Completion* completions = alloc_array<Completion>(*count);
    ask_ahead(searches, static_cast<int>(*count), {plan_query, const_cast<Served*>(&served)});
    uint32 whole = 0;
    int lacking = 0;
    for (uint32 i = 0; i < *count; ++i) {
        completions[i] = {};
        if (!searches[i].answered) continue;
        if (is_whole(served.batch, searches[i].answer, &lacking, &completions[i])) {
            ++whole;
            continue;
        }
        if (completions[i].appended) pfree(completions[i].appended);
        free_answer(&searches[i].answer);
        searches[i].answered = false;
    }
    const bool useful = 2 * whole >= *count;
    uint32 more = 0;
    uint32 put = 0;
    for (uint32 i = 0; i < *count; ++i) {
        if (!searches[i].answered) continue;
        ServiceAnswer* answer = &searches[i].answer;
        if (served.probes < served.all && answer->would_take_more &&
            served.wants->effort.threshold > 0) {
            queries[more++] = queries[i];
        } else if (useful || !first) {
            put_answer(answer, completions[i], queries[i], sink);
            ++put;
        }
        if (completions[i].appended) pfree(completions[i].appended);
        free_answer(answer);
    }
    count_served(served.batch->index->index, put);
    pfree(completions);
    pfree(searches);
    *count = more;
    return useful;
}

}  // namespace

bool asks_service(const KnnBatch* batch, uint32 count) {
    const char* reason;
    if (batch->meta.lists == 0 || batch->effort.candidates > max_list_k ||
        !service_usable(batch->index->index, &reason))
        return false;
    // A service on this machine's CPU is no faster than reading the lists, where that pays.
    const bool worth_reading = Size{count} * batch->effort.probes >= 2 * Size{batch->meta.lists} &&
                               (!batch->lists_tried || batch->lists);
    return insists_on_service() || service_look_up_cost() < 1 || !worth_reading;
}

bool search_service(const KnnBatch* batch, const ListWants& wants, const ServedSink& sink) {
    constexpr uint32 first = 32;
    constexpr uint32 most_at_once = 1024;
    constexpr uint32 times = 8;
    // Answers in memory.
    const auto at_once = static_cast<uint32>(std::clamp<Size>(
        batch->memory.queries / 4 / (wants.candidates * sizeof(Neighbor)), first, most_at_once));
    const bool decides = wants.effort.threshold > 0;
    const uint32 bound =
        settings.max_probes > 0 ? static_cast<uint32>(settings.max_probes) : batch->meta.lists;
    const uint32 all = std::min(decides ? bound : wants.probes, batch->meta.lists);
    const uint32 most = std::min(all, service_most_lists);
    // More candidates than one search may have: left to scans.
    if (!decides && most < all) return false;
    uint32* queries = alloc_array<uint32>(wants.count);
    bool useful = true;
    for (uint32 begin = 0, end; useful && begin < wants.count; begin = end) {
        CHECK_FOR_INTERRUPTS();
        end = std::min(wants.count, begin + (begin == 0 ? first : at_once));
        uint32 count = end - begin;
        for (uint32 i = 0; i < count; ++i) queries[i] = begin + i;
        Served served = {batch, &wants, queries, most, all};
        if (decides)
            served.probes = std::min(offered_lists(batch->meta, batch->effort.probes), most);
        useful = ask(served, queries, &count, begin == 0, sink);
        if (!useful && begin == 0) {
            pfree(queries);
            return false;
        }
        while (count > 0 && served.probes < most) {
            served.probes = std::min(times * served.probes, most);
            ask(served, queries, &count, false, sink);
        }
    }
    pfree(queries);
    return true;
}

}  // namespace pgwarp
