// Writing WAL ahead of those who fill its buffers.
#pragma once

#include "extension/compat.h"

extern "C" {
#include "access/xlogdefs.h"
}

namespace pgwarp {

struct WalAheadFigures {
    uint32 writes;
    uint64 bytes;
    double seconds;
};

struct WalAhead {
    WalAheadFigures figures;
    // What the kernel was told to bring to disk, and the segment's file where it is:
    XLogRecPtr told;
    XLogSegNo segment;
    int file;  // negative: none
};

// For a process that does nothing else meanwhile, and ends soon: it leaves syncing to the ends of
// segments from here on.
WalAhead begin_wal_ahead();
// Writes what is complete, and says whether that was enough to write at all.
bool write_wal_ahead(WalAhead* ahead);
void end_wal_ahead(WalAhead* ahead);

}  // namespace pgwarp
