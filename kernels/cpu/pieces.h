// A loop cut into pieces of fixed length, so that results do not depend on the number of threads.
#pragma once

#include "kernels/common.h"
#include "kernels/workers.h"

#include <algorithm>
#include <atomic>

namespace pgwarp {

// Calls use(begin, end, thread). One piece alone runs in the calling thread, without waking others.
template <typename Use>
void for_pieces(Workers& workers, size_t count, size_t piece, const Use& use) {
    if (count == 0) return;
    if (count <= piece) {
        use(size_t{0}, count, 0);
        return;
    }
    workers.run((count + piece - 1) / piece, [&](size_t i, int thread) {
        use(i * piece, std::min(count, (i + 1) * piece), thread);
    });
}

// Adds to a counter that threads share; returns what it was.
template <typename Count>
Count add_to(Count& counter, Count count) {
    return std::atomic_ref(counter).fetch_add(count, std::memory_order_relaxed);
}

}  // namespace pgwarp
