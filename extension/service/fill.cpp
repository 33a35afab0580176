#include "kernels/mirror.h"
#include "extension/index/change_counts.h"
#include "extension/index/place.h"
#include "extension/service/client.h"
#include "extension/service/fill.h"
#include "extension/service/rate_limit.h"

extern "C" {
#include "access/xlog.h"
#include "miscadmin.h"
}

namespace pgwarp {

namespace {

// As the mirror counts it, which leaves some room to lists that are searched.
bool has_room(const ServiceDevice* device) {
    uint64 bytes = 0;
    for (const HeldIndex& held : device->held)
        bytes += pg_atomic_read_u64(&const_cast<HeldIndex*>(&held)->bytes);
    const auto budget = static_cast<uint64>(Max(device->info.list_budget, int64{0}));
    return bytes + budget / 16 <= budget;
}

void fill(ServiceDevice* device, Relation index, const MetaPage& meta, const MirrorKey& key,
          const ListRange& range, bool models) {
    MissingLists missing;
    if (!ask_for_missing(device, key, range, &missing)) return;
    if (missing.unknown) {
        Deadline deadline = search_deadline();
        set_device(&deadline, device, OtherDevices::none);
        bring_model(device, index, meta, missing.bring_model && models, false, &deadline);
        return;
    }
    ListToSend lists[service_most_missing];
    uint32 count = 0;
    for (uint32 i = 0; i < missing.count; ++i)
        if (missing.lists[i] < meta.lists) lists[count++] = {missing.lists[i], {}};
    if (count > 0) send_lists(device, index, meta, lists, count, nullptr, LoadKind::to_fill);
}

}  // namespace

void fill_copies(Relation index, const MetaPage& meta, const MirrorKey& key, uint32 devices,
                 const Shards* shards, bool models) {
    // Spread by process ID, so that sessions with a single search take part, too.
    static auto turn = static_cast<uint32>(MyProcPid);
    if (devices == 0) return;
    ++turn;
    for (int i = 0; i < service->devices; ++i) {
        const int number = static_cast<int>((turn + static_cast<uint32>(i)) %
                                            static_cast<uint32>(service->devices));
        ServiceDevice* device = service_device(number);
        // Lists that were sent before are on their way.
        if ((devices >> number & 1) == 0 || !is_available(device) ||
            ring_count(load_ring(device)) > 0 || !may_send(device, key, any_list, missing_lists) ||
            !has_room(device))
            continue;
        fill(device, index, meta, key,
             shards ? shards->range(shards->part_of[number]) : ListRange{}, models);
        return;
    }
}

void send_outdated(ServiceDevice* device, Relation index, const MetaPage& meta,
                   const MirrorKey& key, const MirrorProbe& probe) {
    if (!probe.version.resident || !change_counts || RecoveryInProgress()) return;
    const bool grown = read_place(index, meta, probe.list).generation == probe.version.generation;
    // The worker asks one backend.
    if (!grown && !may_send(device, key, probe.list, whole_list)) return;
    const ListToSend what{probe.list, grown ? probe.version : MirrorVersion{}, true};
    send_lists(device, index, meta, &what, 1, nullptr);
}

void drop_foreign(Relation index, const MetaPage& meta, const MirrorKey& key, uint32 devices,
                  const Shards& shards) {
    for (int i = 0; i < service->devices; ++i) {
        ServiceDevice* device = service_device(i);
        if ((devices >> i & 1) == 0 || !may_send(device, key, any_list, foreign_lists)) continue;
        auto* lists = static_cast<ListToSend*>(palloc(meta.lists * sizeof(ListToSend)));
        uint32 count = 0;
        for (uint32 list = 0; list < meta.lists; ++list) {
            if (shards.owns(i, list)) continue;
            lists[count] = {list, {}};
            lists[count++].drop = true;
        }
        send_lists(device, index, meta, lists, count, nullptr);
        pfree(lists);
    }
}

}  // namespace pgwarp
