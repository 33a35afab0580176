#include <algorithm>

#include "kernels/mirror.h"
#include "extension/service/deadline.h"
#include "extension/settings.h"

extern "C" {
#include "access/xact.h"
#include "miscadmin.h"
}

namespace pgwarp {

namespace {

// A wait that timed out: when, and the start of its statement.
struct VainWait {
    TimestampTz statement;
    TimestampTz at;
};
VainWait vain_wait = {};                 // for all devices
VainWait vain_waits[most_devices] = {};  // for one of them

VainWait vain_now() {
    return {GetCurrentStatementStartTimestamp(), GetCurrentTimestamp()};
}

// Whether the timeout still keeps the statement from asking. A statement may last for hours: it
// asks again after ten timeouts, and so spends a tenth of its time waiting at most.
bool holds(const VainWait& wait) {
    constexpr int times = 10;
    return wait.at != 0 && wait.statement == GetCurrentStatementStartTimestamp() &&
           TimestampDifferenceMilliseconds(wait.at, GetCurrentTimestamp()) <
               int64{times} * settings.service_timeout;
}

Deadline begin(int timeout, bool while_alive) {
    const TimestampTz now = GetCurrentTimestamp();
    return {nullptr, timeout, while_alive, now, 0, now, 0, now, false};
}

// PostgreSQL checks for a closed connection only if client_connection_check_interval is set, and a
// backend that waits for the worker does not use its connection.
void check_client(Deadline* deadline, TimestampTz now) {
    constexpr int interval_ms = 1000;
    if (!MyProcPort || !TimestampDifferenceExceeds(deadline->client_seen, now, interval_ms)) return;
    deadline->client_seen = now;
    if (pq_check_connection()) return;
    ClientConnectionLost = true;
    InterruptPending = true;
    CHECK_FOR_INTERRUPTS();
}

void suspect_worker(ServiceDevice* device) {
    device->suspected_at = GetCurrentTimestamp();
    pg_memory_barrier();
    pg_atomic_write_u32(&device->suspect, 1);
    // A worker that merely sleeps clears the flag when it wakes.
    wake_worker(device);
}

// Milliseconds until more than `timeout` will have passed.
long left_of(TimestampTz began, int timeout) {
    return TimestampDifferenceMilliseconds(GetCurrentTimestamp(),
                                           TimestampTzPlusMilliseconds(began, int64{timeout} + 1));
}

}  // namespace

Deadline search_deadline() {
    return begin(settings.service_timeout,
                 settings.executor == static_cast<int>(ExecutorChoice::service));
}

Deadline load_deadline() {
    constexpr int least = 60000;
    return begin(std::max(least, settings.service_timeout), true);
}

void set_device(Deadline* deadline, ServiceDevice* device, OtherDevices others) {
    deadline->device = device;
    deadline->device_began = GetCurrentTimestamp();
    deadline->device_timeout =
        others == OtherDevices::next || others == OtherDevices::both
            ? std::max(static_cast<int>(left_of(deadline->began, deadline->timeout) / 2), 1)
            : 0;
    deadline->together = others == OtherDevices::together || others == OtherDevices::both;
    deadline->turns = pg_atomic_read_u32(&device->turns);
}

bool is_over(const Deadline& deadline) {
    return TimestampDifferenceExceeds(deadline.began, GetCurrentTimestamp(), deadline.timeout);
}

bool must_stop_waiting(Deadline* deadline) {
    // A shorter silence says nothing about the worker.
    constexpr int min_silence_ms = 500;
    ServiceDevice* device = deadline->device;
    if (!worker_serves(device)) return true;
    if (!deadline->while_alive && is_suspect(device)) return true;
    const TimestampTz now = GetCurrentTimestamp();
    check_client(deadline, now);
    const uint32 turns = pg_atomic_read_u32(&device->turns);
    const bool alive = turns != deadline->turns;
    if (alive && deadline->while_alive) {
        deadline->turns = turns;
        deadline->began = deadline->device_began = now;
    }
    const bool over = TimestampDifferenceExceeds(deadline->began, now, deadline->timeout);
    const bool next =
        deadline->device_timeout > 0 &&
        TimestampDifferenceExceeds(deadline->device_began, now, deadline->device_timeout);
    if (!over && !next) return false;
    if (!alive && TimestampDifferenceExceeds(deadline->device_began, now, min_silence_ms))
        suspect_worker(device);
    if (!deadline->while_alive) {
        vain_waits[device_number(device)] = vain_now();
        // With `together`, other devices may still give their parts to the statement.
        if (over && !deadline->together) vain_wait = vain_now();
    }
    return true;
}

long wait_milliseconds(const Deadline& deadline) {
    constexpr long interval = 100;
    long left = left_of(deadline.began, deadline.timeout);
    if (deadline.device_timeout > 0)
        left = std::min(left, left_of(deadline.device_began, deadline.device_timeout));
    return std::clamp(left, 1L, interval);
}

bool waited_in_vain_for(const ServiceDevice* device) {
    return holds(vain_waits[device_number(device)]);
}

bool statement_waited_in_vain() {
    return holds(vain_wait);
}

}  // namespace pgwarp
