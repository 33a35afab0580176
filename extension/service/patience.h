// How long a backend waits for the service.
//
// A search has one of these for all its waits: for a load buffer, for the worker to take one in,
// for the answer. With ivfpq.executor 'auto' they are no longer together than
// pgwarp.service_timeout, and end at once where another backend found the worker silent. Who
// insists on the service, or loads a whole index, waits as long as the worker shows that it lives:
// the time begins anew with each sign.
#pragma once

#include "extension/service/service.h"

namespace pgwarp {

struct Patience {
    int timeout;       // milliseconds
    bool while_alive;  // signs of life begin the time anew; and suspicions of others do not count
    TimestampTz began;
    uint32 turns;  // of the worker, when the time began
    TimestampTz client_seen;
};

// For a search, by the session's settings.
Patience search_patience();
// For loading a whole index, of which each step may take the worker a while.
Patience load_patience();

// Whether there is no more to wait for: the worker is gone, the time is over, or another backend
// found the worker silent. To be called every 100 ms or so. Where the worker gave no sign of life
// it is suspected from now on. Ends the session where its client has closed the connection.
bool patience_ends(Patience* patience);

// How long to sleep before the next look at it.
long wait_milliseconds(const Patience& patience);

// Whether a search of this statement has waited in vain before: the next one would as well.
bool statement_waited_in_vain();

}  // namespace pgwarp
