// A graph builder on a device that falls back to the CPU when the device fails.
#pragma once

#include "kernels/device.h"
#include "kernels/forwarding_graph_builder.h"

#include <functional>
#include <memory>
#include <string>

namespace pgwarp {

// Works on `device` until it fails or runs out of memory. Then the call is repeated, and all later
// ones run, on the builder that `make_cpu` makes. The failure is not thrown; failure() returns it.
// The device's builder is destroyed then, and `leave` may free more.
class FallbackGraphBuilder final : public ForwardingGraphBuilder {
  public:
    using MakeBuilder = std::function<std::unique_ptr<GraphBuilder>()>;
    FallbackGraphBuilder(std::unique_ptr<GraphBuilder> device, MakeBuilder make_cpu,
                         std::function<void()> leave = {});

    // Empty while the device works.
    const std::string& failure() const noexcept { return failure_; }

  protected:
    DescentReport run(const Lists& lists, const Work& work) override;

  private:
    MakeBuilder make_cpu_;
    std::function<void()> leave_;
    bool on_cpu_ = false;  // builder_ is the CPU's: the device has failed
    std::string failure_;
};

}  // namespace pgwarp
