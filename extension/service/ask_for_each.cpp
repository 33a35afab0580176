// Searches of several indexes at once.

#include "kernels/mirror.h"
#include "extension/service/client.h"

namespace pgwarp {

namespace {

// Whether a backend with this many searches in progress may take another block. A quarter of the
// blocks is left to others.
bool may_take_block(const ServiceDevice* device, int searches) {
    return searches < searches_at_once ||
           (searches < most_searches_at_once &&
            ring_count(block_ring(device)) > static_cast<uint32>(service->blocks) / 4);
}

// Submits planned searches from `begin` on, until there is no room for another. Returns behind the
// last of them, and sets *last to the one that was submitted last; -1: none.
int submit_group(AskedSearch* searches, int begin, int count, const SearchesToAsk& calls,
                 int* planned, int* last) {
    int submitted = 0;
    bool waits = true;
    *last = -1;
    int i = begin;
    for (; i < count; ++i) {
        AskedSearch* search = &searches[i];
        if (i == *planned) {
            ++*planned;
            search->planned = calls.plan(calls.state, i, search);
        }
        if (!search->planned) continue;
        prepare_exit();  // there is a service
        ServiceDevice* device = search->deadline.device;
        // Only the first search waits for a block. After its timeout, others would wait in vain.
        SearchSlot* slot = nullptr;
        if (waits)
            slot = prepare_slot(search->wanted, &search->deadline);
        else if (may_take_block(device, submitted))
            slot = take_block_slot(device);
        waits = false;
        if (!slot && submitted > 0) break;
        search->slot = submit_search(search->key, search->wanted, device, slot, true);
        if (!slot) continue;
        ++submitted;
        *last = i;
    }
    return i;
}

}  // namespace

void ask_for_each(AskedSearch* searches, int count, const SearchesToAsk& calls) {
    for (int i = 0; i < count; ++i) searches[i].slot = nullptr;
    PG_TRY();
    {
        int planned = 0;
        for (int begin = 0; begin < count;) {
            int last;
            const int end = submit_group(searches, begin, count, calls, &planned, &last);
            // The last one is answered last, or nearly so: its answer alone wakes this backend.
            const bool answered =
                last >= 0 && wait_for_answer(searches[last].slot, &searches[last].deadline);
            for (int i = begin; i < end; ++i) {
                AskedSearch* search = &searches[i];
                if (!search->slot) continue;
                if (i == last ? answered : wait_for_answer(search->slot, &search->deadline)) {
                    calls.take(calls.state, i, search->slot);
                    release_slot(search->slot);
                } else {
                    abandon(search->slot);
                }
                search->slot = nullptr;
            }
            begin = end;
        }
    }
    PG_CATCH();
    {
        for (int i = 0; i < count; ++i)
            if (searches[i].slot) abandon(searches[i].slot);
        PG_RE_THROW();
    }
    PG_END_TRY();
}

}  // namespace pgwarp
