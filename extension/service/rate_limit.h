// Many backends see the same list or model to send: one of them sends it, at most once an interval.
#pragma once

#include "extension/service/service.h"

namespace pgwarp {

// Kinds of sending, each with its minimal interval. Each kind has its own times, by its number:
// sending a list's appended entries must not delay sending the list whole.
struct Sending {
    uint32 number;
    uint32 interval_ms;
};
inline constexpr Sending whole_list{0, 250};  // that lost an entry
inline constexpr Sending appended_entries{1, 20};
inline constexpr Sending few_entries{2, 1000};    // appended to any list of an index
inline constexpr Sending leftover_copy{3, 1000};  // of an index: the device should forget it
inline constexpr Sending repeated_list{4, 250};   // the device should drop it: another has it
inline constexpr Sending missing_lists{5, 20};    // of an index: a copy lacks them
inline constexpr Sending foreign_lists{6, 1000};  // of an index: the device should drop them
inline constexpr Sending model_to_bring{7, 500};  // a worker asks a backend for it
inline constexpr uint32 any_list = PG_UINT32_MAX;

// True for one of the backends, at most once per interval for each device, index and list.
bool may_send(const ServiceDevice* device, const MirrorKey& key, uint32 list,
              const Sending& sending);

}  // namespace pgwarp
