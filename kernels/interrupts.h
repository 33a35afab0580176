// Flags that end a job early. They belong to the caller; a signal handler raises them.
#pragma once

#include <csignal>
#include <exception>

namespace pgwarp {

// Thrown from a job when a flag was raised. What the job was to write is unspecified, except where
// a function says otherwise.
struct Interrupted : std::exception {
    const char* what() const noexcept override { return "interrupted"; }
};

// Up to two flags, either of which ends the job; without any the job runs to its end. A copy polls
// the same flags.
class Interrupts {
  public:
    using Flag = const volatile std::sig_atomic_t;
    Interrupts() = default;
    // A null flag is never raised.
    Interrupts(Flag* one, Flag* other = nullptr) noexcept : flags_{one, other} {}

    bool pending() const noexcept { return (flags_[0] && *flags_[0]) || (flags_[1] && *flags_[1]); }
    void check() const {
        if (pending()) throw Interrupted();
    }

  private:
    Flag* flags_[2] = {nullptr, nullptr};
};

}  // namespace pgwarp
