// Whether this backend finds pages in shared buffers, or has to read them. Reading ahead costs a
// lookup for each page, which slows searches of pages that are all there by a twentieth.
#pragma once

#include "extension/compat.h"

extern "C" {
#include "executor/instrument.h"
}

namespace pgwarp {

// One for each walk over pages.
class DiskReads {
  public:
    DiskReads() : start_(count()), needed_(count() != last_start_) { last_start_ = start_; }

    // Whether a page had to be read in this walk, or in the one before it.
    bool needed() {
        if (!needed_) needed_ = count() != start_;
        return needed_;
    }

  private:
    static int64 count() { return pgBufferUsage.shared_blks_read; }

    static inline int64 last_start_ = 0;
    int64 start_;
    bool needed_;
};

}  // namespace pgwarp
