#include "extension/service/rate_limit.h"

extern "C" {
#include "utils/timestamp.h"
}

namespace pgwarp {

bool may_send(const ServiceDevice* device, const MirrorKey& key, uint32 list,
              const Sending& sending) {
    const uint32 hash = (key.index * 2654435761u) ^ (list * 2246822519u) ^ key.database ^
                        static_cast<uint32>(key.build) ^ (sending.number * 3266489917u) ^
                        (static_cast<uint32>(device_number(device)) * 668265263u);
    pg_atomic_uint32* sent_at = &service->sent_at[hash % ServiceShared::send_times];
    const auto now = static_cast<uint32>(GetCurrentTimestamp() / 1000);
    uint32 before = pg_atomic_read_u32(sent_at);
    return now - before >= sending.interval_ms &&
           pg_atomic_compare_exchange_u32(sent_at, &before, now);
}

}  // namespace pgwarp
