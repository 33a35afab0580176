// How long a backend waits for the service.
//
// A search has one Patience for all its waits: for a block, for a load buffer, for the worker to
// load a buffer, for the answer. With ivfpq.executor 'auto' these waits together take no longer
// than pgwarp.service_timeout, and end at once if another backend found the worker silent. With
// ivfpq.executor 'service', or when it loads a whole index, a backend waits as long as the worker
// gives signs of life (ServiceShared::turns): each sign restarts the timeout.
#pragma once

#include "extension/service/service.h"

namespace pgwarp {

struct Patience {
    int timeout;       // milliseconds
    bool while_alive;  // signs of life restart the timeout; ServiceShared::suspect is ignored
    TimestampTz began;
    uint32 turns;  // of the worker, at `began`
    TimestampTz client_seen;
};

// For a search, by the session's settings.
Patience search_patience();
// For loading a whole index: at least a minute between two signs of life.
Patience load_patience();

// Whether the backend must stop waiting: the worker has exited, the timeout has passed, or another
// backend found the worker silent. Call it every 100 ms or so. If the worker gave no sign of life,
// sets ServiceShared::suspect. Ends the session if its client has closed the connection.
bool patience_ends(Patience* patience);

// How long to sleep before the next call of patience_ends().
long wait_milliseconds(const Patience& patience);

// Whether a search of this statement has timed out before: the next one probably would, too.
bool statement_waited_in_vain();

}  // namespace pgwarp
