// Matrix products for several threads.
//
// The serial OpenBLAS takes its scratch memory from a table without a lock, unless it was built
// with USE_LOCKING=1, which Debian's is not. Two threads that enter it at the same moment may get
// the same memory, and one of them, now and then, a wrong product. (The threaded build has a lock,
// but starts threads when it is loaded, which the postmaster must not have.)
#pragma once

#include <mutex>

#include <cblas.h>

namespace pgwarp {

inline std::mutex blas_mutex;

template <typename... Arguments>
void sgemm(Arguments... arguments) {
    std::lock_guard lock(blas_mutex);
    cblas_sgemm(arguments...);
}

}  // namespace pgwarp
