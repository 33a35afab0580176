// Whoever inserts a record and finds WAL's buffers full writes one page of them, and goes on: with
// several who insert much, each page is a lock that is handed over. One process that writes all
// there is, whenever it is some pages, keeps buffers free for them. That is what the WAL writer is
// for, but it comes around five times a second, and its buffers are full every few milliseconds.

#include "extension/stopwatch.h"
#include "extension/wal_ahead.h"

extern "C" {
#include "access/xlog.h"
#include "postmaster/walwriter.h"
}

namespace pgwarp {

WalAhead begin_wal_ahead() {
    // By default the WAL writer syncs each megabyte that it has written, which takes nearly as long
    // as a whole segment, and has everybody wait. The setting is one of the server's: nothing else
    // in this process looks at it, and nothing reads it anew here.
    WalWriterFlushAfter = INT_MAX;
    return {};
}

bool write_wal_ahead(WalAhead* ahead) {
    // Less than the pages of one record: they can wait for more.
    constexpr uint64 least_bytes = 16 * XLOG_BLCKSZ;
    const XLogRecPtr written = GetXLogWriteRecPtr();
    if (GetInsertRecPtr() < written + least_bytes) return false;
    Stopwatch watch;
    XLogBackgroundFlush();
    ++ahead->writes;
    ahead->bytes += GetXLogWriteRecPtr() - written;
    ahead->seconds += watch.lap();
    return true;
}

}  // namespace pgwarp
