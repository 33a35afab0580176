// Runs numbered pieces of work on several threads; a free thread takes the next piece.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace pgwarp::bench {

// OpenBLAS has about 50 work buffers, one per calling thread, and terminates the program when all
// are taken.
inline unsigned default_threads() {
    return std::clamp(std::thread::hardware_concurrency(), 1u, 32u);
}

// Runs work(thread, piece) for each piece. The first exception stops all and is thrown again.
template <typename Work>
void parallel_pieces(size_t pieces, unsigned threads, Work work) {
    std::atomic<size_t> next{0};
    std::exception_ptr failure;
    std::mutex failure_lock;
    auto loop = [&](unsigned thread) {
        try {
            for (size_t piece = next++; piece < pieces; piece = next++) work(thread, piece);
        } catch (...) {
            next = pieces;
            const std::lock_guard guard(failure_lock);
            if (!failure) failure = std::current_exception();
        }
    };
    std::vector<std::thread> others;
    for (unsigned thread = 1; thread < threads; thread++) others.emplace_back(loop, thread);
    loop(0);
    for (std::thread& other : others) other.join();
    if (failure) std::rethrow_exception(failure);
}

}  // namespace pgwarp::bench
