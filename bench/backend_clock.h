// Processor time of a connection's server process. On a machine with other work it tells more than
// the time on the wall does. Known only where the server runs beside us.
#pragma once

#include <optional>
#include <string>

#include "bench/connection.h"

namespace pgwarp::bench {

class BackendClock {
  public:
    explicit BackendClock(Connection& connection);

    // Seconds on a processor since the process began; nothing if they cannot be known.
    std::optional<double> seconds() const;

  private:
    std::string path_;
};

// Milliseconds an event took between two readings.
std::optional<double> milliseconds_each(std::optional<double> start, std::optional<double> end,
                                        size_t events);

}  // namespace pgwarp::bench
