// Ends a worker whose device hangs.
//
// A device's driver may block for ever in a call, or at process exit. While the worker is in a
// call, a timer interrupts it now and then (SIGALRM, in the worker's main thread). The signal
// handler ends the process if the call takes longer than pgwarp.watchdog_timeout, or longer than a
// few seconds after the worker was told to exit. The handler interrupts the device's library, never
// code of PostgreSQL. So it can run shmem_exit(): to the postmaster, the worker has exited with
// code 1 and is to be restarted, and has not crashed.
//
// That cleanup may need a lock that the library holds, such as the heap's. If the cleanup does not
// finish within some seconds, the process exits all the same, and the postmaster treats that as a
// crash. A process in uninterruptible sleep (state D) can be neither ended nor restarted.
#pragma once

namespace pgwarp {

// Called once, when the worker starts, with all signals blocked. Unblocks SIGALRM. During a call,
// the watchdog notices SIGTERM, blocked or not.
void start_watchdog();

// The handler for SIGTERM.
void request_service_end(SIGNAL_ARGS);

// Lives around each call of a device. No code of PostgreSQL may be called while one exists. The
// call may take `factor` times pgwarp.watchdog_timeout.
class WatchedCall {
  public:
    explicit WatchedCall(int factor = 1);
    ~WatchedCall();
    WatchedCall(const WatchedCall&) = delete;
    WatchedCall& operator=(const WatchedCall&) = delete;
};

}  // namespace pgwarp
