// Times of the phases of a task, for DEBUG1 messages.
#pragma once

#include "extension/compat.h"

extern "C" {
#include "portability/instr_time.h"
}

namespace pgwarp {

inline double seconds_now() {
    instr_time time;
    INSTR_TIME_SET_CURRENT(time);
    return INSTR_TIME_GET_DOUBLE(time);
}

class Stopwatch {
  public:
    Stopwatch() : last_(seconds_now()) {}
    // Seconds since the last lap, or since construction.
    double lap() {
        const double now = seconds_now();
        const double seconds = now - last_;
        last_ = now;
        return seconds;
    }

  private:
    double last_;
};

}  // namespace pgwarp
