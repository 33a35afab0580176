// The backend's side of the service.
#pragma once

#include "extension/index/curve.h"
#include "extension/service/service.h"
#include "extension/service/patience.h"

extern "C" {
#include "utils/rel.h"
}

namespace pgwarp {

MirrorKey mirror_key(Relation index, const MetaPage& meta);

// Whether searches of this index may go to the service, by its state and ivfpq.executor; or why not
// (null where the setting says so). Reports an error where the setting insists on a service that is
// not there.
bool service_usable(Relation index, const char** reason);

// Whether there is a service at all; or why not.
bool service_serves(const char** reason);
inline constexpr char silent_reason[] = "the service was silent for too long";

// What a scan by the service costs.
ScanCosts service_costs();

// Submits a search and waits for its answer. The slot, which holds it, is the caller's until
// release_slot(); null where the service did not answer, for whatever reason. Errors of
// PostgreSQL's own (a cancelled query) leave nothing behind.
SearchSlot* ask_service(const MirrorKey& key, const float* query, uint32 dims, uint32 k,
                        uint32 probes, Patience* patience);
// Does nothing where the slot holds no answer.
void release_slot(SearchSlot* slot);

// All of a list; or, where `from` is resident, what was appended to it since that version.
struct ListToSend {
    uint32 list;
    MirrorVersion from;
};

// Hands the model, or lists, over to the worker. Without patience (null) only as far as there are
// free buffers. Returns how many lists went. `kind`: lists or whole_index.
bool send_model(Relation index, const MetaPage& meta, Patience* patience);
uint32 send_lists(Relation index, const MetaPage& meta, const ListToSend* lists, uint32 count,
                  Patience* patience, LoadKind kind = LoadKind::lists);
// Waits until the worker has taken in what this backend sent; false where it did not.
bool wait_for_loads(Patience* patience);

// How many lists of an index are resident; false where the worker does not say.
bool count_resident(const MirrorKey& key, Patience* patience, uint32* lists);

// forget.cpp: to be called where the worker hears of an index. One that this transaction
// has made is forgotten if the transaction is rolled back.
void forget_at_abort(Relation index);

// Makes DROP tell.
void install_drop_hook();

}  // namespace pgwarp
