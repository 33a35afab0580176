// Candidates for many queries at once, from the service.
//
// Many searches are in progress at once, and each answer is verified against the pages, as that of
// a scan is (service/completion.h). A query whose answer lacks something is left to a scan, which
// knows what to do about it; and so are all others, where hardly any answer is whole: the service
// does not have the index, or not yet.

#include <algorithm>

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

// Whether the answer, and appended entries, are all that the lists hold.
bool is_whole(const KnnBatch* batch, const ServiceAnswer& answer, Completion* completion) {
    bool lacks = false;
    *completion = complete_answer(batch->index->index, batch->meta, answer,
                                  {note_lack, pass_over, &lacks, {}});
    return completion->current && !lacks;
}

// Asks for some queries. Those that would take more lists become the first of `queries`; returns
// how many these are. *whole: answers that were of use.
uint32 ask(const Served& served, uint32* queries, uint32 count, const ServedSink& sink,
           uint32* whole) {
    const bool decides =
        served.wants->effort.threshold > 0 && served.probes < served.batch->meta.lists;
    SearchAhead* searches = alloc_array<SearchAhead>(count);
    ask_ahead(searches, static_cast<int>(count), {plan_query, const_cast<Served*>(&served)});
    uint32 more = 0;
    for (uint32 i = 0; i < count; ++i) {
        if (!searches[i].answered) continue;
        ServiceAnswer* answer = &searches[i].answer;
        Completion completion;
        if (!is_whole(served.batch, *answer, &completion)) {
            free_answer(answer);
            continue;
        }
        ++*whole;
        if (decides && answer->would_take_more) {
            queries[more++] = queries[i];
        } else {
            std::sort(answer->found, answer->found + answer->found_count,
                      [](const Neighbor& a, const Neighbor& b) {
                          return a.distance < b.distance ||
                                 (a.distance == b.distance && a.id < b.id);
                      });
            sink.put(sink.state, queries[i], answer->found, answer->found_count,
                     completion.appended, completion.appended_count);
        }
        pfree(completion.appended);
        free_answer(answer);
    }
    pfree(searches);
    return more;
}

}  // namespace

bool asks_service(const KnnBatch* batch, uint32 count) {
    const char* reason;
    if (batch->meta.lists == 0 || !batch->pending_known || batch->effort.candidates > max_list_k ||
        !service_usable(batch->index->index, &reason))
        return false;
    // A service on this machine's processors is no faster than lists that are worth reading.
    const bool worth_reading = Size{count} * batch->effort.probes >= 2 * Size{batch->meta.lists};
    return insists_on_service() || service_look_up_cost() < 1 || !worth_reading;
}

void search_service(const KnnBatch* batch, const ListWants& wants, const ServedSink& sink) {
    constexpr uint32 first = 32;
    constexpr uint32 at_once = 1024;  // answers in memory
    constexpr uint32 times = 8;
    const uint32 most = std::min(wants.probes, service_most_lists);
    uint32* queries = alloc_array<uint32>(wants.count);
    for (uint32 begin = 0, end; begin < wants.count; begin = end) {
        CHECK_FOR_INTERRUPTS();
        end = std::min(wants.count, begin + (begin == 0 ? first : at_once));
        uint32 count = end - begin;
        for (uint32 i = 0; i < count; ++i) queries[i] = begin + i;
        Served served = {batch, &wants, queries, 0};
        served.probes = wants.effort.threshold > 0
                            ? std::min(offered_lists(batch->meta, batch->effort.probes), most)
                            : most;
        uint32 whole = 0;
        while (count > 0) {
            const bool last = served.probes == most;
            count = ask(served, queries, count, sink, &whole);
            if (last) break;
            served.probes = std::min(times * served.probes, most);
        }
        count_served(batch->index->index, whole);
        if (2 * whole < end - begin) break;
    }
    pfree(queries);
}

}  // namespace pgwarp
