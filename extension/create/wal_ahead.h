// Writing WAL ahead of the processes that fill its buffers.
#pragma once

#include "extension/compat.h"

namespace pgwarp {

struct WalAheadFigures {
    uint32 writes;
    uint64 bytes;
    double seconds;
};

// Writes out complete WAL pages until all is done. Only for a process that does nothing else
// meanwhile and ends soon: from here on it syncs at the ends of segments only.
WalAheadFigures write_wal_ahead(bool (*is_done)(void* state), void* state);

}  // namespace pgwarp
