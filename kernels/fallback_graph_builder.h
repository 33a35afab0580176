// A graph builder on a device that may fail, with the CPU behind it.
#pragma once

#include "kernels/device.h"
#include "kernels/knn_graph.h"

#include <functional>
#include <memory>
#include <string>

namespace pgwarp {

// Works on `device` until that fails or has no room; then does the call again, and all later ones,
// on what `make_cpu` makes. A failure is nothing to throw any more, and can be asked for. The
// device's builder ends then, and `leave` may let go of more.
class FallbackGraphBuilder final : public GraphBuilder {
  public:
    using MakeBuilder = std::function<std::unique_ptr<GraphBuilder>()>;
    FallbackGraphBuilder(std::unique_ptr<GraphBuilder> device, MakeBuilder make_cpu,
                         std::function<void()> leave = {});

    // Empty: the device still works.
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
    std::unique_ptr<GraphBuilder> cpu_;  // once the device has failed
    std::string failure_;
};

}  // namespace pgwarp
