// An order for long sorts, which looks at interrupts now and then. Algorithms copy their orders:
// they get std::ref() of it.
#pragma once

#include "kernels/interrupts.h"

#include <cstdint>
#include <utility>

namespace pgwarp {

// Throws Interrupted in the middle of a sort: values may be lost then, and others be there twice.
template <typename Less>
class PollingOrder {
  public:
    PollingOrder(const Interrupts& interrupts, Less less)
        : interrupts_(interrupts), less_(std::move(less)) {}

    template <typename Value>
    bool operator()(const Value& a, const Value& b) {
        if (++compared_ % between_polls == 0) interrupts_.check();
        return less_(a, b);
    }

  private:
    static constexpr uint32_t between_polls = 1 << 16;

    Interrupts interrupts_;
    Less less_;
    uint32_t compared_ = 0;
};

}  // namespace pgwarp
