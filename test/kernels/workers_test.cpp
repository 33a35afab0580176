// Workers: every task once, whatever happens to some of them.

#include "kernels/workers.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <barrier>
#include <csignal>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace pgwarp {
namespace {

constexpr int thread_counts[] = {1, 2, 4, 9};

struct Wrong {
    size_t task;
};

std::vector<int> hits_of_a_run(Workers& workers, size_t count) {
    std::vector<std::atomic<int>> hits(count);
    workers.run(count, [&](size_t i, int thread) {
        EXPECT_GE(thread, 0);
        EXPECT_LT(thread, workers.threads());
        ++hits[i];
    });
    return {hits.begin(), hits.end()};
}

TEST(Workers, EveryTaskRunsOnce) {
    for (const int threads : thread_counts) {
        Workers workers(threads);
        EXPECT_EQ(workers.threads(), threads);
        for (const size_t count : {0, 1, 2, 3, 8, 100, 5000})
            EXPECT_EQ(hits_of_a_run(workers, count), std::vector<int>(count, 1))
                << threads << " threads, " << count << " tasks";
    }
}

TEST(Workers, ThereIsAlwaysTheCaller) {
    for (const int threads : {0, -3}) {
        Workers workers(threads);
        EXPECT_EQ(workers.threads(), 1);
        EXPECT_EQ(hits_of_a_run(workers, 5), std::vector<int>(5, 1));
    }
}

TEST(Workers, EndWithoutHavingWorked) {
    for (int i = 0; i < 50; ++i) Workers workers(4);
}

TEST(Workers, ManySmallRuns) {
    Workers workers(4);
    for (size_t run = 0; run < 3000; ++run) {
        std::atomic<size_t> sum{0};
        workers.run(run % 5, [&](size_t i, int) { sum += i + 1; });
        const size_t tasks = run % 5;
        ASSERT_EQ(sum, tasks * (tasks + 1) / 2);
    }
}

TEST(Workers, WorkInTwoSteps) {
    for (const int threads : thread_counts) {
        Workers workers(threads);
        for (int run = 0; run < 100; ++run) {
            std::vector<std::atomic<int>> hits(40);
            workers.begin(hits.size(), [&](size_t i, int) { ++hits[i]; });
            // With threads, they come to the end by themselves.
            for (size_t i = 0; threads > 1 && i < hits.size(); ++i)
                while (hits[i] == 0) std::this_thread::yield();
            workers.end();
            for (const auto& hit : hits) ASSERT_EQ(hit, 1);
        }
        workers.begin(3, [](size_t, int) { throw Wrong{0}; });
        EXPECT_THROW(workers.end(), Wrong);
        EXPECT_EQ(hits_of_a_run(workers, 64), std::vector<int>(64, 1));
    }
}

// What a task uses may go when the object is gone.
TEST(Workers, EndInTheMiddleOfTheirWork) {
    for (const int threads : thread_counts) {
        std::atomic<size_t> inside{0}, begun{0};
        {
            Workers workers(threads);
            workers.begin(1'000'000'000, [&](size_t, int) {
                ++inside;
                ++begun;
                --inside;
            });
            while (threads > 1 && begun == 0) std::this_thread::yield();
        }
        EXPECT_EQ(inside, 0u);
        EXPECT_LT(begun, 1'000'000'000u);
    }
}

// Each thread has the number it is called with to itself, or scratch spaces would be shared.
TEST(Workers, NoTwoTasksShareAThreadNumberAtOnce) {
    Workers workers(4);
    std::vector<std::atomic<int>> inside(4);
    workers.run(2000, [&](size_t, int thread) {
        EXPECT_EQ(++inside[static_cast<size_t>(thread)], 1);
        --inside[static_cast<size_t>(thread)];
    });
}

TEST(Workers, SumsInTaskOrderDoNotDependOnThreads) {
    std::vector<float> sums;
    for (const int threads : thread_counts) {
        Workers workers(threads);
        std::vector<float> parts(1000);
        workers.run(parts.size(),
                    [&](size_t i, int) { parts[i] = 1.0f / static_cast<float>(i + 1); });
        sums.push_back(std::accumulate(parts.begin(), parts.end(), 0.0f));
    }
    for (const float sum : sums) EXPECT_EQ(sum, sums[0]);
}

TEST(Workers, AnExceptionArrivesAndThePoolWorksOn) {
    for (const int threads : thread_counts) {
        Workers workers(threads);
        for (int again = 0; again < 3; ++again) {
            std::atomic<size_t> done{0};
            try {
                workers.run(100000, [&](size_t i, int) {
                    if (i == 37) throw Wrong{i};
                    ++done;
                });
                FAIL() << "no exception";
            } catch (const Wrong& wrong) {
                EXPECT_EQ(wrong.task, 37u);
            }
            if (threads == 1) {
                EXPECT_EQ(done, 37u);
            }
            EXPECT_EQ(hits_of_a_run(workers, 64), std::vector<int>(64, 1));
        }
    }
}

TEST(Workers, OneOfManyExceptionsArrives) {
    for (const int threads : thread_counts) {
        Workers workers(threads);
        EXPECT_THROW(workers.run(1000, [](size_t i, int) { throw Wrong{i}; }), Wrong);
        EXPECT_NO_THROW(workers.run(10, [](size_t, int) {}));
    }
}

TEST(Workers, TheInterruptFlagEndsTheRun) {
    for (const int threads : thread_counts) {
        volatile std::sig_atomic_t interrupt = 0;
        Workers workers(threads, &interrupt);
        constexpr size_t count = 10'000'000;
        std::atomic<size_t> done{0};
        EXPECT_THROW(workers.run(count,
                                 [&](size_t, int) {
                                     if (++done == 100) interrupt = 1;
                                 }),
                     Interrupted);
        EXPECT_GE(done, 100u);
        EXPECT_LT(done, count);

        done = 0;
        EXPECT_THROW(workers.run(10, [&](size_t, int) { ++done; }), Interrupted);
        EXPECT_EQ(done, 0u);
        EXPECT_NO_THROW(workers.run(0, [](size_t, int) {}));

        interrupt = 0;
        EXPECT_EQ(hits_of_a_run(workers, 100), std::vector<int>(100, 1));
    }
}

TEST(Workers, InterruptedIsAnExceptionWithAMessage) {
    const Interrupted interrupted;
    EXPECT_EQ(static_cast<const std::exception&>(interrupted).what(), std::string("interrupted"));
}

sigset_t signals_blocked() {
    sigset_t now;
    sigemptyset(&now);
    pthread_sigmask(SIG_SETMASK, nullptr, &now);
    return now;
}

TEST(Workers, SignalsAreBlockedInTheirThreadsOnly) {
    constexpr int threads = 4;
    const sigset_t before = signals_blocked();
    Workers workers(threads);
    std::barrier everybody(threads);  // so that each thread takes one task
    workers.run(threads, [&](size_t, int thread) {
        everybody.arrive_and_wait();
        const sigset_t here = signals_blocked();
        for (const int signal : {SIGINT, SIGTERM, SIGQUIT, SIGHUP, SIGUSR1, SIGUSR2, SIGALRM,
                                 SIGCHLD, SIGPIPE, SIGURG}) {
            const int expected = thread == 0 ? sigismember(&before, signal) : 1;
            EXPECT_EQ(sigismember(&here, signal), expected) << "signal " << signal;
        }
    });
    const sigset_t after = signals_blocked();
    for (int signal = 1; signal < 32; ++signal)
        EXPECT_EQ(sigismember(&after, signal), sigismember(&before, signal));
}

pthread_t main_thread;
std::atomic<int> signals_on_main{0}, signals_elsewhere{0};

TEST(Workers, ASignalReachesTheCaller) {
    main_thread = pthread_self();
    signals_on_main = signals_elsewhere = 0;
    struct sigaction handler = {}, before = {};
    handler.sa_handler = [](int) {
        ++(pthread_equal(pthread_self(), main_thread) ? signals_on_main : signals_elsewhere);
    };
    ASSERT_EQ(sigaction(SIGUSR1, &handler, &before), 0);
    Workers workers(4);
    for (int i = 1; i <= 100; ++i) {
        workers.run(8, [&](size_t task, int) {
            if (task == 3) kill(getpid(), SIGUSR1);
        });
        while (signals_on_main + signals_elsewhere < i) usleep(10);
    }
    EXPECT_EQ(signals_on_main, 100);
    EXPECT_EQ(signals_elsewhere, 0);
    sigaction(SIGUSR1, &before, nullptr);
}

TEST(Workers, ScratchIsOneSpaceAThread) {
    Workers workers(3);
    const auto scratch = workers.scratch(17);
    ASSERT_EQ(scratch.size(), 3u);
    for (const auto& space : scratch) EXPECT_EQ(space.size(), 17u);
}

}  // namespace
}  // namespace pgwarp
