// Owned streams and events.
#pragma once

#include "kernels/cuda/base/check.h"

#include <utility>

namespace pgwarp::gpu {

class Event {
  public:
    explicit Event(unsigned flags = cudaEventDisableTiming) {
        check(cudaEventCreateWithFlags(&event_, flags), "cudaEventCreate");
    }
    ~Event() {
        if (event_) cudaEventDestroy(event_);
    }
    Event(Event&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
    Event& operator=(Event&& other) noexcept {
        std::swap(event_, other.event_);
        return *this;
    }
    operator cudaEvent_t() const { return event_; }

    void record(cudaStream_t stream) { check(cudaEventRecord(event_, stream), "cudaEventRecord"); }
    void synchronize() { check(cudaEventSynchronize(event_), "cudaEventSynchronize"); }
    bool done() {
        const cudaError_t state = cudaEventQuery(event_);
        if (state == cudaErrorNotReady) return false;
        check(state, "cudaEventQuery");
        return true;
    }

  private:
    cudaEvent_t event_ = nullptr;
};

class Stream {
  public:
    // The device dispatches waiting blocks of urgent streams before those of ordinary streams.
    enum class Priority { ordinary, urgent };
    explicit Stream(Priority priority = Priority::ordinary) {
        int least = 0, greatest = 0;
        check(cudaDeviceGetStreamPriorityRange(&least, &greatest),
              "cudaDeviceGetStreamPriorityRange");
        check(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking,
                                           priority == Priority::urgent ? greatest : least),
              "cudaStreamCreate");
    }
    ~Stream() {
        if (stream_) cudaStreamDestroy(stream_);
    }
    Stream(const Stream&) = delete;
    Stream& operator=(const Stream&) = delete;
    operator cudaStream_t() const { return stream_; }

    void synchronize() { check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize"); }
    void wait(const Event& event) {
        check(cudaStreamWaitEvent(stream_, event), "cudaStreamWaitEvent");
    }

  private:
    cudaStream_t stream_ = nullptr;
};

// A place in a stream that other streams wait for. Once it is reached, no wait is enqueued: a wait
// takes time on the device even then.
class Milestone {
  public:
    void record(cudaStream_t stream) {
        event_.record(stream);
        reached_ = false;
    }
    // A failure of the device shows at the next call that throws.
    bool reached() noexcept {
        if (!reached_) reached_ = cudaEventQuery(event_) == cudaSuccess;
        return reached_;
    }
    void hold_back(Stream& stream) {
        if (!reached()) stream.wait(event_);
    }

  private:
    Event event_;
    bool reached_ = true;  // never recorded: nothing to wait for
};

// When a kernel's blocks may start: after the kernels before it in its stream, or while the last
// blocks of these still run, where the device can do that. For kernels that begin with
// wait_for_kernels_before() (launch.cuh), and right behind another kernel: not behind the wait for
// another stream.
enum class Start { after, early };

// Where a kernel is launched, and when it may start.
struct Turn {
    Turn(cudaStream_t in, Start when = Start::after) : stream(in), start(when) {}
    Turn(const Stream& in, Start when = Start::after) : stream(in), start(when) {}

    cudaStream_t stream;
    Start start;
};

// Synchronizes the stream in its destructor, also while an exception unwinds. Declare it after the
// buffers of an operation, so that no buffer is freed while the device still uses it.
class FinishStream {
  public:
    explicit FinishStream(cudaStream_t stream) : stream_(stream) {}
    ~FinishStream() { cudaStreamSynchronize(stream_); }
    FinishStream(const FinishStream&) = delete;
    FinishStream& operator=(const FinishStream&) = delete;

  private:
    cudaStream_t stream_;
};

template <typename T>
void copy_async(T* to, const T* from, size_t count, cudaStream_t stream) {
    if (count == 0) return;
    check(cudaMemcpyAsync(to, from, count * sizeof(T), cudaMemcpyDefault, stream),
          "cudaMemcpyAsync");
}

template <typename T>
void clear_async(T* to, size_t count, cudaStream_t stream) {
    if (count == 0) return;
    check(cudaMemsetAsync(to, 0, count * sizeof(T), stream), "cudaMemsetAsync");
}

}  // namespace pgwarp::gpu
