// CPU time of a connection's backend. On a busy machine it is steadier than wall-clock time. Known
// only if the server runs on this machine.
#pragma once

#include <optional>
#include <string>

#include "bench/connection.h"

namespace pgwarp::bench {

class BackendClock {
  public:
    explicit BackendClock(Connection& connection);

    // CPU seconds since the backend started; nothing if unknown.
    std::optional<double> seconds() const;

  private:
    std::string path_;
};

// Milliseconds per event between two readings.
std::optional<double> milliseconds_each(std::optional<double> start, std::optional<double> end,
                                        size_t events);

}  // namespace pgwarp::bench
