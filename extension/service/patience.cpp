#include <algorithm>

#include "kernels/mirror.h"
#include "extension/service/patience.h"
#include "extension/settings.h"

extern "C" {
#include "access/xact.h"
#include "miscadmin.h"
}

namespace pgwarp {

namespace {

// Start of the last statement with a search that timed out.
TimestampTz vain_statement = 0;

Patience begin(int timeout, bool while_alive) {
    const TimestampTz now = GetCurrentTimestamp();
    return {timeout, while_alive, now, pg_atomic_read_u32(&service->turns), now};
}

// PostgreSQL checks for a closed connection only if client_connection_check_interval is set, and a
// backend that waits for the worker does not use its connection.
void check_client(Patience* patience, TimestampTz now) {
    constexpr int interval_ms = 1000;
    if (!MyProcPort || !TimestampDifferenceExceeds(patience->client_seen, now, interval_ms)) return;
    patience->client_seen = now;
    if (pq_check_connection()) return;
    ClientConnectionLost = true;
    InterruptPending = true;
    CHECK_FOR_INTERRUPTS();
}

void suspect_worker() {
    service->suspected_at = GetCurrentTimestamp();
    pg_memory_barrier();
    pg_atomic_write_u32(&service->suspect, 1);
    // A worker that merely sleeps clears the flag when it wakes.
    wake_worker();
}

}  // namespace

Patience search_patience() {
    return begin(settings.service_timeout,
                 settings.executor == static_cast<int>(ExecutorChoice::service));
}

Patience load_patience() {
    constexpr int least = 60000;
    return begin(std::max(least, settings.service_timeout), true);
}

bool patience_ends(Patience* patience) {
    // A shorter silence says nothing about the worker.
    constexpr int min_patience = 500;
    if (!worker_serves()) return true;
    if (!patience->while_alive && pg_atomic_read_u32(&service->suspect) != 0) return true;
    const TimestampTz now = GetCurrentTimestamp();
    check_client(patience, now);
    const uint32 turns = pg_atomic_read_u32(&service->turns);
    const bool alive = turns != patience->turns;
    if (alive && patience->while_alive) {
        patience->turns = turns;
        patience->began = now;
    }
    if (!TimestampDifferenceExceeds(patience->began, now, patience->timeout)) return false;
    if (!alive && TimestampDifferenceExceeds(patience->began, now, min_patience)) suspect_worker();
    if (!patience->while_alive) vain_statement = GetCurrentStatementStartTimestamp();
    return true;
}

long wait_milliseconds(const Patience& patience) {
    constexpr long interval = 100;
    const long left = TimestampDifferenceMilliseconds(
        GetCurrentTimestamp(),
        TimestampTzPlusMilliseconds(patience.began, int64{patience.timeout}));
    // One more than is left: patience ends when more than the timeout has passed.
    return std::clamp(left + 1, 1L, interval);
}

bool statement_waited_in_vain() {
    return vain_statement != 0 && vain_statement == GetCurrentStatementStartTimestamp();
}

}  // namespace pgwarp
