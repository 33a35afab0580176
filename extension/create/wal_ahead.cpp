// A backend that inserts a WAL record and finds the WAL buffers full writes out one page of them
// and continues: with several processes that insert much, each page means handing over a lock. One
// process that writes all complete pages, as soon as there are a few, keeps buffers free for the
// others. That is the WAL writer's job, but it wakes up five times a second, and here the buffers
// fill every few milliseconds.
//
// The end of a segment is synced under the same lock. The kernel is told early to write back what
// was written, so that the sync has little left to wait for.

#include <fcntl.h>

#include "extension/util/stopwatch.h"
#include "extension/create/wal_ahead.h"

extern "C" {
#include "access/xlog.h"
#include "access/xlog_internal.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/walwriter.h"
#include "storage/fd.h"
#include "storage/latch.h"
}

namespace pgwarp {

namespace {

struct WalAhead {
    WalAheadFigures figures;
    // The kernel has been asked to write back WAL up to here; the segment's file:
    XLogRecPtr writeback;
    XLogSegNo segment;
    int file;  // negative: not open
};

void close_segment(WalAhead* ahead) {
    if (ahead->file >= 0) CloseTransientFile(ahead->file);
    ahead->file = -1;
}

void open_segment(WalAhead* ahead, XLogSegNo segment) {
    close_segment(ahead);
    char path[MAXPGPATH];
    XLogFilePath(path, compat_wal_timeline(), segment, wal_segment_size);
    // Without the file the kernel is not told, and nothing is lost.
    ahead->file = OpenTransientFile(path, O_RDWR | PG_BINARY);
    ahead->segment = segment;
}

// Starts writeback in the kernel. Neither waits for the disk nor checks for its errors: the later
// sync does both.
void start_writeback(WalAhead* ahead, XLogRecPtr written) {
    constexpr uint64 min_bytes = 2 << 20;
    if (!enableFsync) return;
    // A partly filled page will be written again.
    written -= written % XLOG_BLCKSZ;
    const XLogRecPtr segment_start = written - XLogSegmentOffset(written, wal_segment_size);
    // Earlier segments are synced already.
    if (ahead->writeback < segment_start) ahead->writeback = segment_start;
    if (written < ahead->writeback + min_bytes) return;
    const XLogSegNo segment = segment_start / wal_segment_size;
    if (ahead->file < 0 || ahead->segment != segment) open_segment(ahead, segment);
#ifdef HAVE_SYNC_FILE_RANGE
    // Not by pg_flush_data(), which may turn an error into a PANIC.
    if (ahead->file >= 0)
        (void)sync_file_range(
            ahead->file, static_cast<off_t>(XLogSegmentOffset(ahead->writeback, wal_segment_size)),
            static_cast<off_t>(written - ahead->writeback), SYNC_FILE_RANGE_WRITE);
#endif
    ahead->writeback = written;
}

WalAhead begin_wal_ahead() {
    // By default XLogBackgroundFlush() syncs after each megabyte written, which takes more than
    // half as long as syncing a whole segment and blocks all inserting processes. The settings are
    // the server's, changed in this process only: nothing else here reads them, and no reload
    // happens here.
    WalWriterFlushAfter = INT_MAX;
    WalWriterDelay = INT_MAX;
    WalAhead ahead = {};
    ahead.writeback = GetXLogWriteRecPtr();
    ahead.writeback -= ahead.writeback % XLOG_BLCKSZ;
    ahead.file = -1;
    return ahead;
}

// False: too little to be worth a write.
bool write_pages(WalAhead* ahead) {
    // Less than the pages of one record is not worth a write.
    constexpr uint64 min_bytes = 16 * XLOG_BLCKSZ;
    const XLogRecPtr before = GetXLogWriteRecPtr();
    if (GetInsertRecPtr() < before + min_bytes) return false;
    Stopwatch watch;
    XLogBackgroundFlush();
    const XLogRecPtr written = GetXLogWriteRecPtr();
    ++ahead->figures.writes;
    ahead->figures.bytes += written - before;
    start_writeback(ahead, written);
    ahead->figures.seconds += watch.lap();
    return true;
}

}  // namespace

WalAheadFigures write_wal_ahead(bool (*is_done)(void* state), void* state) {
    // WAL buffers take several times this long to fill.
    constexpr long nap_milliseconds = 1;
    WalAhead ahead = begin_wal_ahead();
    while (!is_done(state)) {
        CHECK_FOR_INTERRUPTS();
        if (write_pages(&ahead)) continue;
        WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, nap_milliseconds,
                  WAIT_EVENT_PARALLEL_CREATE_INDEX_SCAN);
        ResetLatch(MyLatch);
    }
    close_segment(&ahead);
    return ahead.figures;
}

}  // namespace pgwarp
