// Whoever inserts a record and finds WAL's buffers full writes one page of them, and goes on: with
// several who insert much, each page is a lock that is handed over. One process that writes all
// there is, whenever it is some pages, keeps buffers free for them. That is what the WAL writer is
// for, but it comes around five times a second, and the buffers are full every few milliseconds.
//
// The end of a segment is synced under the same lock. The kernel is told early to bring to disk
// what is written, so that little is left to wait for.

#include <fcntl.h>

#include "extension/util/stopwatch.h"
#include "extension/build/wal_ahead.h"

extern "C" {
#include "access/xlog.h"
#include "access/xlog_internal.h"
#include "postmaster/walwriter.h"
#include "storage/fd.h"
}

namespace pgwarp {

namespace {

void close_segment(WalAhead* ahead) {
    if (ahead->file >= 0) CloseTransientFile(ahead->file);
    ahead->file = -1;
}

void open_segment(WalAhead* ahead, XLogSegNo segment) {
    close_segment(ahead);
    char path[MAXPGPATH];
    XLogFilePath(path, compat_wal_timeline(), segment, wal_segment_size);
    // Without it there is nothing to tell, and nothing lost.
    ahead->file = OpenTransientFile(path, O_RDWR | PG_BINARY);
    ahead->segment = segment;
}

// It neither waits for the disk nor takes note of its errors: that is left to who syncs.
void tell_kernel(WalAhead* ahead, XLogRecPtr written) {
    constexpr uint64 least_bytes = 2 << 20;
    if (!enableFsync) return;
    // A page that is not full will be written again.
    written -= written % XLOG_BLCKSZ;
    const XLogRecPtr segment_start = written - XLogSegmentOffset(written, wal_segment_size);
    // What lies before is synced.
    if (ahead->told < segment_start) ahead->told = segment_start;
    if (written < ahead->told + least_bytes) return;
    const XLogSegNo segment = segment_start / wal_segment_size;
    if (ahead->file < 0 || ahead->segment != segment) open_segment(ahead, segment);
        // Not by PostgreSQL's function, for which an error is the server's end.
#ifdef HAVE_SYNC_FILE_RANGE
    if (ahead->file >= 0)
        (void)sync_file_range(ahead->file,
                              static_cast<off_t>(XLogSegmentOffset(ahead->told, wal_segment_size)),
                              static_cast<off_t>(written - ahead->told), SYNC_FILE_RANGE_WRITE);
#endif
    ahead->told = written;
}

}  // namespace

WalAhead begin_wal_ahead() {
    // By default the WAL writer syncs each megabyte that it has written, which takes more than half
    // as long as a whole segment, and has everybody wait. The settings are the server's: nothing
    // else in this process looks at them, and nothing reads them anew here.
    WalWriterFlushAfter = INT_MAX;
    WalWriterDelay = INT_MAX;
    WalAhead ahead = {};
    ahead.told = GetXLogWriteRecPtr();
    ahead.told -= ahead.told % XLOG_BLCKSZ;
    ahead.file = -1;
    return ahead;
}

bool write_wal_ahead(WalAhead* ahead) {
    // Less than the pages of one record: they can wait for more.
    constexpr uint64 least_bytes = 16 * XLOG_BLCKSZ;
    const XLogRecPtr before = GetXLogWriteRecPtr();
    if (GetInsertRecPtr() < before + least_bytes) return false;
    Stopwatch watch;
    XLogBackgroundFlush();
    const XLogRecPtr written = GetXLogWriteRecPtr();
    ++ahead->figures.writes;
    ahead->figures.bytes += written - before;
    tell_kernel(ahead, written);
    ahead->figures.seconds += watch.lap();
    return true;
}

void end_wal_ahead(WalAhead* ahead) {
    close_segment(ahead);
}

}  // namespace pgwarp
