// What a scan does with the service's answer: the scan verifies it against the index pages.
//
// If the mirror had every list as it was when the search started, by the counts of changes
// (change_counts.h), the answer is complete, and the scan reads nothing. The search was submitted
// after the snapshot was taken and after the pending list was read: all that these saw was counted.
//
// Otherwise it names the lists that it covers, and the mirror's version of each. For each list:
//
//     same version on the pages      the mirror is current
//     only appended to since         the scan reads the appended entries from pages
//     not resident                   the scan reads the list from pages
//     lost or moved an entry         the whole answer is invalid: the entry may be anywhere in it
#pragma once

#include "extension/service/client.h"
#include "extension/service/service.h"
#include "extension/service/service_answer.h"

extern "C" {
#include "utils/rel.h"
}

namespace pgwarp {

// Asks the service for the k nearest entries by code. False if it has no answer; answer->why tells
// the reason. If a worker asks for the model, this backend sends it.
bool ask_for_candidates(Relation index, const MetaPage& meta, const WantedSearch& wanted,
                        ServiceAnswer* answer);

// A search of one index, for ask_ahead().
struct SearchAhead {
    Relation index;
    const MetaPage* meta;
    WantedSearch wanted;
    MemoryContext context;  // of the answer
    // Of ask_ahead():
    ServiceAnswer answer;
    bool answered;
};
// Fills in the search of this number. False: it is not asked for.
struct SearchPlanner {
    bool (*plan)(void* state, int number, SearchAhead* search);
    void* state;
};
// The same for searches of several indexes, all in progress at once. Those that are not answered
// may be asked for again, one by one. searches: (count), of any contents.
void ask_ahead(SearchAhead* searches, int count, const SearchPlanner& planner);

// Callbacks for entries that the answer lacks and that are read from pages.
struct CompletionVisitor {
    // Called before the first visit, with no lock held.
    void (*prepare)(void* state);
    // Called for the entries of a page from `first` on, under its share lock. A page may be visited
    // twice. Checks the conditions, too.
    void (*visit)(void* state, uint32 list, Page page, const EntryLayout& layout, uint32 first);
    void* state;
    std::span<const Condition> conditions;  // of the search
};
struct Completion {
    bool current;  // answer, `appended` and visited entries together are what the lists hold
    // TIDs of appended entries that pass and were not visited: rank these rows directly.
    uint64* appended;
    uint32 appended_count;
    uint32 read_lists;  // lists that were not resident and were read from pages
    bool visited;       // appended entries were visited, because they were many
    uint32 grown_lists;
    const char* because;  // why the answer is not current
};
inline constexpr uint32 most_appended = 64;
Completion complete_answer(Relation index, const MetaPage& meta, const ServiceAnswer& answer,
                           const CompletionVisitor& visitor);

}  // namespace pgwarp
