#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>
#include <csignal>
#include <ctime>

#include <pthread.h>
#include <sys/time.h>
#include <unistd.h>

#include "kernels/mirror.h"
#include "extension/service/service.h"
#include "extension/service/watchdog.h"
#include "extension/settings.h"

extern "C" {
#include "miscadmin.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
}

namespace pgwarp {

namespace {

// Limit for a call in progress when the worker is told to exit, and for each step of the exit.
constexpr int exit_timeout_ms = 5000;

enum class Leaving : int { no, with_shared_memory, without };

pthread_t main_thread;
// Written by the main thread and by the handler, which runs in the main thread.
volatile sig_atomic_t in_call = 0;
volatile sig_atomic_t armed = 0;
volatile sig_atomic_t leaving = static_cast<int>(Leaving::no);
volatile sig_atomic_t exit_code = 1;
volatile sig_atomic_t timeout_factor = 1;
std::atomic<int64_t> call_began;  // milliseconds; lock-free, as the handler reads it
std::atomic<int64_t> end_asked;   // 0: not yet
static_assert(std::atomic<int64_t>::is_always_lock_free);

int64_t milliseconds() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return int64_t{now.tv_sec} * 1000 + now.tv_nsec / 1000000;
}

void arm(int64_t after_ms) {
    armed = 1;
    itimerval timer = {};
    timer.it_value.tv_sec = after_ms / 1000;
    timer.it_value.tv_usec = after_ms % 1000 * 1000;
    setitimer(ITIMER_REAL, &timer, nullptr);
}

int64_t next_look_ms() {
    const int64_t timeout = settings.watchdog_timeout > 0 ? settings.watchdog_timeout : INT_MAX;
    return std::clamp<int64_t>(std::min<int64_t>(timeout, exit_timeout_ms) / 4, 10, 1000);
}

// Ends the process from the signal handler, in the middle of a call. If shmem_exit() hangs, the
// next SIGALRM ends the process.
[[noreturn]] void leave_call() {
    leaving = static_cast<int>(Leaving::with_shared_memory);
    sigset_t alarm_only;
    sigemptyset(&alarm_only);
    sigaddset(&alarm_only, SIGALRM);
    sigprocmask(SIG_UNBLOCK, &alarm_only, nullptr);
    arm(exit_timeout_ms);
    shmem_exit(1);
    _exit(1);
}

bool end_is_asked() {
    if (ShutdownRequestPending) return true;
    sigset_t pending;
    return sigpending(&pending) == 0 && sigismember(&pending, SIGTERM) == 1;
}

void look() {
    if (leaving == static_cast<int>(Leaving::with_shared_memory)) _exit(2);
    if (leaving == static_cast<int>(Leaving::without)) _exit(exit_code);
    const int64_t now = milliseconds();
    if (end_is_asked() && end_asked == 0) end_asked = now;
    if (in_call) {
        if (end_asked != 0 && now - end_asked >= exit_timeout_ms) leave_call();
        const int64_t timeout = int64_t{settings.watchdog_timeout} * timeout_factor;
        if (timeout > 0 && now - call_began >= timeout) {
            // No ereport() here: it allocates. The next worker logs the reason.
            char why[service_text];
            snprintf(why, sizeof(why), "its device gave no sign of life for %d ms",
                     static_cast<int>(now - call_began));
            note_service_failure(own_device, why);
            leave_call();
        }
        arm(next_look_ms());
    } else if (end_asked != 0) {
        arm(next_look_ms());
    }
}

void on_alarm(SIGNAL_ARGS) {
    const int saved_errno = errno;
    // A thread of the driver, started while SIGALRM was not blocked.
    if (!pthread_equal(pthread_self(), main_thread)) {
        pthread_kill(main_thread, postgres_signal_arg);
    } else {
        armed = 0;
        look();
    }
    errno = saved_errno;
}

// The driver's atexit() functions may hang, too: limits their time.
void watch_exit(int code, Datum) {
    exit_code = code;
    leaving = static_cast<int>(Leaving::without);
    arm(exit_timeout_ms);
}

}  // namespace

void start_watchdog() {
    main_thread = pthread_self();
    call_began = 0;
    end_asked = 0;
    pqsignal(SIGALRM, on_alarm);
    sigset_t alarm_only;
    sigemptyset(&alarm_only);
    sigaddset(&alarm_only, SIGALRM);
    sigprocmask(SIG_UNBLOCK, &alarm_only, nullptr);
    on_proc_exit(watch_exit, Datum{0});
}

void request_service_end(SIGNAL_ARGS) {
    SignalHandlerForShutdownRequest(COMPAT_SIGNAL_ARGUMENTS);
    if (leaving == static_cast<int>(Leaving::no)) arm(next_look_ms());
}

WatchedCall::WatchedCall(int factor) {
    call_began = milliseconds();
    timeout_factor = factor;
    in_call = 1;
    // An armed timer is not set again: on_alarm() looks at the call in progress when it fires.
    if (!armed) arm(next_look_ms());
}

WatchedCall::~WatchedCall() {
    in_call = 0;
}

}  // namespace pgwarp
