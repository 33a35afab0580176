// A graph builder on a device that falls back to the CPU when the device fails.
#pragma once

#include "kernels/device.h"
#include "kernels/knn_graph.h"

#include <functional>
#include <memory>
#include <string>

namespace pgwarp {

// Works on `device` until it fails or runs out of memory. Then the call is repeated, and all later
// ones run, on the builder that `make_cpu` makes. The failure is not thrown; failure() returns it.
// The device's builder is destroyed then, and `leave` may free more.
class FallbackGraphBuilder final : public GraphBuilder {
  public:
    using MakeBuilder = std::function<std::unique_ptr<GraphBuilder>()>;
    FallbackGraphBuilder(std::unique_ptr<GraphBuilder> device, MakeBuilder make_cpu,
                         std::function<void()> leave = {});

    // Empty while the device works.
    const std::string& failure() const noexcept { return failure_; }

    const char* name() const noexcept override { return now().name(); }
    DescentOptions default_options(uint32_t k) const noexcept override {
        return now().default_options(k);
    }
    size_t most_rows(uint32_t dims, const DescentOptions& options) const noexcept override {
        return now().most_rows(dims, options);
    }
    void exact(const GraphRows& rows, uint32_t degree, Edge* lists) override;
    void exact_merge(const GraphRows& rows, size_t first, uint32_t degree, Edge* lists) override;
    DescentReport descend(const GraphRows& rows, const DescentOptions& options,
                          Edge* lists) override;
    DescentReport merge(const GraphRows& rows, size_t first, const DescentOptions& options,
                        Edge* lists) override;
    DescentReport append(const GraphRows& rows, size_t first, const DescentOptions& options,
                         Edge* lists) override;

  private:
    const GraphBuilder& now() const { return cpu_ ? *cpu_ : *device_; }
    template <typename Work>
    auto run(Work&& work);

    std::unique_ptr<GraphBuilder> device_;
    MakeBuilder make_cpu_;
    std::function<void()> leave_;
    std::unique_ptr<GraphBuilder> cpu_;  // set once the device has failed
    std::string failure_;
};

}  // namespace pgwarp
