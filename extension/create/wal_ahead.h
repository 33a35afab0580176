// Writing WAL ahead of the processes that fill its buffers.
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
    // The kernel has been asked to write back WAL up to here; the segment's file:
    XLogRecPtr writeback;
    XLogSegNo segment;
    int file;  // negative: not open
};

// Only for a process that does nothing else meanwhile and ends soon: from here on it syncs at the
// ends of segments only.
WalAhead begin_wal_ahead();
// Writes out complete WAL pages. False: too little to be worth a write.
bool write_wal_ahead(WalAhead* ahead);
void end_wal_ahead(WalAhead* ahead);

}  // namespace pgwarp
