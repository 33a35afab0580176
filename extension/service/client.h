// The backend's side of the service.
#pragma once

#include "extension/index/effort.h"
#include "extension/service/service.h"
#include "extension/service/deadline.h"

extern "C" {
#include "utils/rel.h"
}

namespace pgwarp {

MirrorKey mirror_key(Relation index, const MetaPage& meta);

// Whether searches of this index may use the service, by its state and ivfpq.executor. If not, sets
// *reason, except for ivfpq.executor = 'cpu'. Reports an error if ivfpq.executor is 'service' and
// no worker serves; one that is silent has pgwarp.service_timeout to give a sign of life.
bool service_usable(Relation index, const char** reason);
// The same for plans: reports no error, and does not wait.
bool service_would_be_used(Relation index);

// Whether ivfpq.executor is 'service'.
bool insists_on_service();
// Whether a worker serves; if not, sets *reason.
bool service_serves(const char** reason);
// Why a device that does not serve does not.
const char* why_not_served(const ServiceDevice* device);
// Whether no worker serves that has not been silent for too long.
bool service_is_silent();
inline constexpr char silent_reason[] = "the service was silent for too long";
inline constexpr char refused_reason[] = "the device has no room for the model of the index";

// How many lists to offer to searches that take `probes` on average: hardly any search takes more
// than that. Each list offered costs a little, or its pages if the service does not have it yet.
inline uint32 offered_lists(const MetaPage& meta, uint32 probes) {
    constexpr uint32 times = 4;
    return std::min({std::max(times * probes, std::clamp(meta.lists / 8, 8u, 64u)), meta.lists,
                     service_most_lists});
}

// What a device takes to look up a byte of a code, where this CPU takes 1.
double service_look_up_cost();

// A search for the service.
struct WantedSearch {
    const float* query;  // as the model sees it
    uint32 dims;
    uint32 k;  // 0: no search, but a question how many lists are resident
    uint32 probes;
    // With a threshold, the search decides how many of these lists it takes.
    ListPlan plan;
    // Above 0: candidates are scored by their refinements, and the answer names those that may be
    // among this number of nearest rows (list_store.h). Not filtered.
    uint32 refined_k;
    bool filtered;  // list_store.h; needed for all that follows up to `conditions`
    uint32 first_probe;
    Neighbor floor = {-std::numeric_limits<float>::infinity(), 0};
    // The device whose answer the search continues, which is asked first; null: it begins.
    ServiceDevice* device = nullptr;
    uint32 devices = 0;  // the same of an index that is spread over devices: a bit each
    std::span<const Condition> conditions = {};
    bool wants_versions = false;  // of the lists, even if the answer could be complete
    ListRange range = {};         // that the device should have
};

// Whether a search may have these conditions.
inline bool fits_service(std::span<const Condition> conditions) {
    return conditions.size() <= service_most_conditions &&
           count_values(conditions) <= service_most_values;
}

// Submits a search to the deadline's device, and waits for its answer. Returns the slot with the
// answer, which the caller owns until release_slot(), or null if the service did not answer. If
// PostgreSQL reports an error meanwhile (a cancelled query), slot and block are released.
SearchSlot* ask_service(const MirrorKey& key, const WantedSearch& wanted, Deadline* deadline);
// Does nothing if the slot holds no answer.
void release_slot(SearchSlot* slot);

// A search on its deadline's device.
struct AskedSearch {
    MirrorKey key;
    WantedSearch wanted;
    Deadline deadline;
    bool planned;      // of ask_for_each()
    SearchSlot* slot;  // with the answer
};
// Asks several devices at once, each once: submits all searches, then waits for all answers, with
// one wake-up where none is late. Slots are null where there is no answer.
void ask_together(AskedSearch* searches, int count);

// A backend's slots, for the functions that ask the service:

// Call before a slot or a load buffer is taken: what the backend has is given up when it exits.
void prepare_exit();

// This backend's own slot, with a block if the search needs one, for which it waits. Null: it
// cannot search now.
SearchSlot* prepare_slot(const WantedSearch& wanted, Deadline* deadline);
// Submits a search to the device, in a slot of prepare_slot() or take_block_slot(). Null slots stay
// null. `silent`: the answer wakes this backend only once wait_for_answer() waits for it.
SearchSlot* submit_search(const MirrorKey& key, const WantedSearch& wanted, ServiceDevice* device,
                          SearchSlot* slot, bool silent);
// False: no answer in time.
bool wait_for_answer(SearchSlot* slot, Deadline* deadline);
// Gives up a search in any state.
void abandon(SearchSlot* slot);

// Searches of several indexes at once, for which k is above 0. Each is submitted as soon as it is
// planned, so that workers have begun while the next ones are planned; those that find no room
// follow when the ones before are answered.
struct SearchesToAsk {
    // Fills in the search of this number. False: it is not asked for.
    bool (*plan)(void* state, int number, AskedSearch* search);
    // Called with the slot of each answer, in the order of the searches. Must report no error.
    void (*take)(void* state, int number, const SearchSlot* slot);
    void* state;
};
// searches: (count), of any contents. If PostgreSQL reports an error meanwhile, all slots and
// blocks are released.
void ask_for_each(AskedSearch* searches, int count, const SearchesToAsk& calls);

// --- send.cpp

// A whole list; or, if from.resident, the entries appended to it since that version.
struct ListToSend {
    uint32 list;
    MirrorVersion from;
    bool even_same = false;  // tell the mirror that the list still has the version `from`, too
    bool drop = false;       // send no pages: the device should drop the list
};

// Sends the model of an index that a device does not know, if its worker has asked this backend for
// it. A caller that `insists` waits until the device has the model, from any backend. True: it may
// ask again. False: the device does not have the model, or not yet. The deadline has the same
// device.
bool bring_model(ServiceDevice* device, Relation index, const MetaPage& meta, bool asked,
                 bool insists, Deadline* deadline);
// Sends lists to a device; returns their number. With `to_fill`, it ends after some milliseconds.
// The deadline has the same device; null: do not wait for free buffers. `kind`: not model.
uint32 send_lists(ServiceDevice* device, Relation index, const MetaPage& meta,
                  const ListToSend* lists, uint32 count, Deadline* deadline,
                  LoadKind kind = LoadKind::lists);
// Waits until the deadline's device has loaded all buffers of this backend; false if it did not.
bool wait_for_loads(Deadline* deadline);
// After an error, or when this process exits: frees the buffer that it was filling.
void drop_filling();

// --- client.cpp

// The number of resident lists of an index on that device; false if the worker does not answer.
bool count_resident(const MirrorKey& key, Deadline* deadline, uint32* lists);

// Lists of an index that a device lacks and has room for.
struct MissingLists {
    bool unknown;      // the device does not know the index,
    bool bring_model;  // and this backend should send the model
    uint32 count;
    uint32 lists[service_most_missing];
};
// Filling a copy delays the search that does it twice by at most this: for the answer which lists
// the device lacks, and for sending them, whatever has to be read from disk.
inline constexpr double fill_seconds = 0.005;
// Asks the device for such lists of the range. False: it has not answered within fill_seconds.
bool ask_for_missing(ServiceDevice* device, const MirrorKey& key, const ListRange& range,
                     MissingLists* missing);

// forget.cpp: call before a model is sent. If this transaction created the index and is rolled
// back, the worker is told to forget the index.
void forget_at_abort(Relation index);

// Installs the hook that tells the worker of dropped indexes and databases.
void install_drop_hook();

}  // namespace pgwarp
