// The end of a worker whose device does not come back.
//
// The driver of a device may keep a call for ever, or the end of the process. While the worker is
// in a call, a timer interrupts it now and then (SIGALRM, in the worker's main thread); a call that
// takes longer than pgwarp.watchdog_timeout, or longer than a few seconds once the worker has been
// told to end, ends the process from the signal handler. What is interrupted there is the device's
// library and no code of PostgreSQL, so shared memory can be put in order: for the postmaster this
// is a worker that ended with code 1 and is to be started again, and no crash.
//
// What the library holds locked, such as the heap, may be wanted for that: after another while the
// process ends all the same, and then the postmaster does take it for a crash. A process that
// sleeps in the kernel and takes no signal (state D) cannot be ended by anyone, nor started again.
#pragma once

namespace pgwarp {

// Once, when the worker begins, with all signals blocked. From here on SIGALRM is not; SIGTERM is
// noticed while a call is under way, blocked or not.
void start_watchdog();

// The handler for SIGTERM.
void request_service_end(int signal);

// Around each call of a device: nothing of PostgreSQL is called while one of these exists.
// `patience` is how many times pgwarp.watchdog_timeout the call may take.
class WatchedCall {
  public:
    explicit WatchedCall(int patience = 1);
    ~WatchedCall();
    WatchedCall(const WatchedCall&) = delete;
    WatchedCall& operator=(const WatchedCall&) = delete;
};

}  // namespace pgwarp
