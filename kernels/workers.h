// A thread pool for one heavy job: training, encoding, exact search.
//
// The threads belong to the caller's object and end with it. They run with all signals blocked, so
// that in a PostgreSQL backend signals reach the main thread only. Work is cut into tasks whose
// number never depends on the number of threads: with results combined in task order, a job gives
// the same answer on one thread and on sixteen.
#pragma once

#include "kernels/common.h"
#include "kernels/interrupts.h"

#include <functional>
#include <memory>
#include <vector>

namespace pgwarp {

class Workers {
  public:
    // Interrupts are polled before each task.
    explicit Workers(int threads, const Interrupts& interrupts = {});
    ~Workers();
    Workers(const Workers&) = delete;
    Workers& operator=(const Workers&) = delete;

    int threads() const;

    // Calls task(i, thread) for i in 0 .. count - 1, in any order, on the pool's threads and the
    // calling one; `thread`, below threads(), selects a scratch space. Returns when all are done.
    // Rethrows the first exception of a task.
    using Task = std::function<void(size_t i, int thread)>;
    void run(size_t count, const Task& task);

    // run() in two steps: between them the pool's threads work, if there are any, and the caller
    // does something else. Where end() is never called, the destructor waits for tasks that have
    // started and starts no others.
    void begin(size_t count, Task task);
    void end();

    // Scratch space for each thread of a run.
    std::vector<std::vector<float>> scratch(size_t floats) const {
        return std::vector<std::vector<float>>(static_cast<size_t>(threads()),
                                               std::vector<float>(floats));
    }

  private:
    struct Pool;
    std::unique_ptr<Pool> pool_;
};

}  // namespace pgwarp
