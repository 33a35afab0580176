// How long a backend waits for the service.
//
// A search has one Deadline for all its waits: for a block, for a load buffer, for the worker to
// load a buffer, for the answer. With ivfpq.executor 'auto' these waits together take no longer
// than pgwarp.service_timeout, whichever devices were asked, and end at once if another backend
// found the worker silent. With ivfpq.executor 'service', or when it loads a whole index, a backend
// waits as long as the worker gives signs of life (ServiceDevice::turns): each sign restarts the
// timeout.
//
// Where another device could answer, too, each device has a part of the time that is left
// (set_device()). A search that asks several devices at once waits for all of them together.
#pragma once

#include "extension/service/service.h"

namespace pgwarp {

struct Deadline {
    ServiceDevice* device;  // whose worker is waited for
    int timeout;            // milliseconds
    bool while_alive;       // signs of life restart the timeout; ServiceDevice::suspect is ignored
    TimestampTz began;
    int device_timeout;  // milliseconds, for this device; 0: all that is left
    TimestampTz device_began;
    uint32 turns;  // of the worker, at `device_began`
    TimestampTz client_seen;
    bool together;  // other devices are asked at the same time: a timeout concerns this one alone
};

// Other devices that a search asks.
enum class OtherDevices {
    none,      // it waits for all of the time that is left
    next,      // after this one, if it does not answer: it waits for half of that
    together,  // at the same time, for other parts of the answer: it waits for all of it
    both,      // for other parts at the same time, for this part after it: it waits for half
};

// For a search, by the session's settings. Call set_device() before it is used.
Deadline search_deadline();
// For loading a whole index: at least a minute between two signs of life.
Deadline load_deadline();
// The device to wait for from now on.
void set_device(Deadline* deadline, ServiceDevice* device, OtherDevices others);

// Whether the backend must stop waiting for the device: its worker has exited, the time is over, or
// another backend found the worker silent. Call it every 100 ms or so. If the worker gave no sign
// of life, sets ServiceDevice::suspect. Ends the session if its client has closed the connection.
bool must_stop_waiting(Deadline* deadline);

// Whether all of the time is over, so that no other device can be asked.
bool is_over(const Deadline& deadline);

// How long to sleep before the next call of must_stop_waiting().
long wait_milliseconds(const Deadline& deadline);

// Whether a search of this statement has timed out lately: the next one probably would, too.
bool statement_waited_in_vain();
// The same for one device that timed out while another could still be asked, or was.
bool waited_in_vain_for(const ServiceDevice* device);

}  // namespace pgwarp
