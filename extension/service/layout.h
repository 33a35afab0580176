// Where the parts of the service's shared memory lie (service.h). Tests that damage it read this,
// too.
#pragma once

#include "kernels/mirror.h"
#include "extension/index/change_counts.h"
#include "extension/service/service.h"

namespace pgwarp {

// Decided by the postmaster. All but `devices` are of each device.
struct ServiceCounts {
    int devices;
    int slots;  // one for each backend, then one for each block
    int blocks;
    int load_buffers;
};

inline Size ring_bytes(int numbers) {
    return MAXALIGN(offsetof(NumberRing, numbers) + static_cast<Size>(numbers) * sizeof(uint32));
}

// A slot fills whole cache lines: no false sharing between backends.
inline constexpr Size slot_bytes = TYPEALIGN(PG_CACHE_LINE_SIZE, sizeof(SearchSlot));
inline constexpr Size block_bytes = MAXALIGN(sizeof(SearchBlock));
inline constexpr Size load_buffer_bytes = MAXALIGN(sizeof(LoadBuffer));

// Byte offsets of the area's parts: changes and the first device from the beginning of the area,
// the others from the beginning of their device.
struct ServiceLayout {
    Size changes, first_device;
    Size search_ring, load_ring, block_ring, block_owners, in_hand, slots, blocks, load_buffers,
        device_end;
    Size end;
};

inline ServiceLayout service_layout(const ServiceCounts& of) {
    ServiceLayout made;
    made.changes = MAXALIGN(sizeof(ServiceShared));
    made.first_device =
        TYPEALIGN(PG_CACHE_LINE_SIZE, made.changes + (of.blocks > 0 ? sizeof(ChangeCounts) : 0));
    made.search_ring = MAXALIGN(sizeof(ServiceDevice));
    made.load_ring = made.search_ring + ring_bytes(of.slots);
    made.block_ring = made.load_ring + ring_bytes(of.load_buffers);
    made.block_owners = made.block_ring + ring_bytes(of.blocks);
    made.in_hand = made.block_owners + static_cast<Size>(of.blocks) * sizeof(uint64);
    made.slots =
        TYPEALIGN(PG_CACHE_LINE_SIZE, made.in_hand + static_cast<Size>(of.slots) * sizeof(uint32));
    made.blocks = made.slots + static_cast<Size>(of.slots) * slot_bytes;
    made.load_buffers = made.blocks + static_cast<Size>(of.blocks) * block_bytes;
    made.device_end =
        TYPEALIGN(PG_CACHE_LINE_SIZE,
                  made.load_buffers + static_cast<Size>(of.load_buffers) * load_buffer_bytes);
    made.end = made.first_device + static_cast<Size>(of.devices) * made.device_end;
    return made;
}

}  // namespace pgwarp
