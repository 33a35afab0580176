#include "kernels/workers.h"

#include <atomic>
#include <condition_variable>
#include <csignal>
#include <exception>
#include <mutex>
#include <pthread.h>
#include <thread>
#include <utility>
#include <vector>

namespace pgwarp {

struct Workers::Pool {
    explicit Pool(const Interrupts& polled) : interrupts(polled) {}

    const Interrupts interrupts;
    std::mutex mutex;
    std::condition_variable wake;  // a new job, or shutdown
    std::condition_variable idle;  // a thread left the current job
    std::vector<std::thread> threads;

    // Protected by `mutex`:
    Task task;
    size_t count = 0;
    uint64_t job = 0;  // incremented for every job, so that a thread joins each job once
    int busy = 0;
    bool ending = false;
    std::exception_ptr error;

    std::atomic<size_t> next{0};

    void work(int thread) {
        try {
            for (size_t i = next.fetch_add(1); i < count; i = next.fetch_add(1)) {
                interrupts.check();
                task(i, thread);
            }
        } catch (...) {
            std::lock_guard lock(mutex);
            if (!error) error = std::current_exception();
            next.store(count);
        }
    }

    void thread_main(int thread) {
        uint64_t seen = 0;
        std::unique_lock lock(mutex);
        while (true) {
            wake.wait(lock, [&] { return ending || job != seen; });
            if (ending) return;
            seen = job;
            lock.unlock();
            work(thread);
            lock.lock();
            if (--busy == 0) idle.notify_one();
        }
    }
};

namespace {

// Threads inherit the signal mask of the thread that starts them.
class AllSignalsBlocked {
  public:
    AllSignalsBlocked() {
        sigset_t all;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before_);
    }
    ~AllSignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

  private:
    sigset_t before_;
};

}  // namespace

Workers::Workers(int threads, const Interrupts& interrupts)
    : pool_(std::make_unique<Pool>(interrupts)) {
    AllSignalsBlocked blocked;
    // If the system refuses another thread, or memory for it, the pool works with those it has.
    // (Throwing here would terminate the process: the running threads would be destroyed unjoined.)
    try {
        for (int i = 1; i < threads; ++i)
            pool_->threads.emplace_back([pool = pool_.get(), i] { pool->thread_main(i); });
    } catch (const std::exception&) {
    }
}

Workers::~Workers() {
    {
        std::lock_guard lock(pool_->mutex);
        pool_->ending = true;
        pool_->next.store(pool_->count);
    }
    pool_->wake.notify_all();
    for (std::thread& thread : pool_->threads) thread.join();
}

int Workers::threads() const {
    return static_cast<int>(pool_->threads.size()) + 1;
}

void Workers::run(size_t count, const Task& task) {
    begin(count, std::ref(task));
    end();
}

void Workers::begin(size_t count, Task task) {
    Pool& pool = *pool_;
    {
        std::lock_guard lock(pool.mutex);
        pool.task = std::move(task);
        pool.count = count;
        pool.next.store(0);
        pool.error = nullptr;
        pool.busy = static_cast<int>(pool.threads.size());
        ++pool.job;
    }
    if (!pool.threads.empty()) pool.wake.notify_all();
}

void Workers::end() {
    Pool& pool = *pool_;
    pool.work(0);
    std::unique_lock lock(pool.mutex);
    pool.idle.wait(lock, [&] { return pool.busy == 0; });
    pool.task = nullptr;
    if (pool.error) std::rethrow_exception(std::exchange(pool.error, nullptr));
}

}  // namespace pgwarp
