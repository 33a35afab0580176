// A backend's slots, for what asks the service (client.cpp, ask_for_each.cpp).
#pragma once

#include "extension/service/client.h"

namespace pgwarp {

// Call before a slot or a load buffer is taken: what the backend has is given up when it exits.
void prepare_exit();

// This backend's own slot, with a block if the search needs one, for which it waits. Null: it
// cannot search now.
SearchSlot* prepare_slot(const WantedSearch& wanted, Patience* patience);
// Submits a search to the device, in a slot of prepare_slot() or take_block_slot(). Null slots stay
// null. `silent`: the answer wakes this backend only once wait_for_answer() waits for it.
SearchSlot* submit_search(const MirrorKey& key, const WantedSearch& wanted, ServiceDevice* device,
                          SearchSlot* slot, bool silent);
// False: no answer in time.
bool wait_for_answer(SearchSlot* slot, Patience* patience);
// Gives up a search in any state.
void abandon(SearchSlot* slot);

}  // namespace pgwarp
