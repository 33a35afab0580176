// Writing WAL ahead of those who fill its buffers.
#pragma once

#include "extension/compat.h"

namespace pgwarp {

struct WalAhead {
    uint32 writes;
    uint64 bytes;
    double seconds;
};

// For a process that does nothing else meanwhile, and ends soon: it leaves syncing to the ends of
// segments from here on.
WalAhead begin_wal_ahead();
// Writes what is complete, and says whether that was enough to write at all.
bool write_wal_ahead(WalAhead* ahead);

}  // namespace pgwarp
