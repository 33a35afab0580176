// A TID as a 48-bit number in the order of TIDs: kernels identify rows by it.
#pragma once

#include "extension/compat.h"

extern "C" {
#include "storage/itemptr.h"
}

namespace pgwarp {

inline uint64 tid_number(const ItemPointerData& tid) {
    return (static_cast<uint64>(ItemPointerGetBlockNumberNoCheck(&tid)) << 16) |
           ItemPointerGetOffsetNumberNoCheck(&tid);
}
inline ItemPointerData number_tid(uint64 number) {
    ItemPointerData tid;
    ItemPointerSet(&tid, static_cast<BlockNumber>(number >> 16),
                   static_cast<OffsetNumber>(number & 0xffff));
    return tid;
}

}  // namespace pgwarp
