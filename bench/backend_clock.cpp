#include "bench/backend_clock.h"

#include <fstream>

namespace pgwarp::bench {

BackendClock::BackendClock(Connection& connection) {
    // Over TCP the server may be on another machine, where its PID means another process.
    const char* host = PQhost(connection.raw());
    if (host == nullptr || host[0] != '/') return;
    const std::string process = "/proc/" + std::to_string(PQbackendPID(connection.raw()));
    std::string name;
    std::getline(std::ifstream(process + "/comm"), name);
    if (name == "postgres") path_ = process + "/schedstat";
}

std::optional<double> BackendClock::seconds() const {
    if (path_.empty()) return {};
    double nanoseconds = 0;
    if (!(std::ifstream(path_) >> nanoseconds)) return {};
    return nanoseconds / 1e9;
}

std::optional<double> milliseconds_each(std::optional<double> start, std::optional<double> end,
                                        size_t events) {
    if (!start || !end || events == 0) return {};
    return 1000 * (*end - *start) / static_cast<double>(events);
}

}  // namespace pgwarp::bench
