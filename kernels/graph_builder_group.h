// One graph builder from those of several devices: exact graphs are dealt out to them.
//
// Each device gets all rows and makes the lists of a part of them. A distance depends on its two
// rows only, so the lists are those of one device. NN-Descent is the work of one device: the merge
// of two halves takes half of the time of the whole, so two devices would gain nothing.
#pragma once

#include "kernels/device.h"

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace pgwarp {

// The others do the work of a device that fails or runs out of memory; where none is left, the
// builder that `make_cpu` makes. The failure is not thrown then; failure() returns it.
class GraphBuilderGroup final : public GraphBuilder {
  public:
    using MakeBuilder = std::function<std::unique_ptr<GraphBuilder>()>;
    // At least one member. Without `make_cpu`, the failure of the last device is thrown.
    // leave(member) is called once the member's builder is destroyed.
    GraphBuilderGroup(std::vector<std::unique_ptr<GraphBuilder>> members, MakeBuilder make_cpu,
                      std::function<void(size_t member)> leave = {});
    ~GraphBuilderGroup() override;

    // That of the first device that failed; empty while all work.
    const std::string& failure() const noexcept;
    // Whether the CPU has taken over.
    bool all_failed() const noexcept;

    const char* name() const noexcept override;
    DescentOptions default_options(uint32_t k) const noexcept override;
    size_t most_rows(uint32_t dims, const DescentOptions& options) const noexcept override;
    void exact(const GraphRows& rows, uint32_t degree, Edge* lists) override;
    void exact_merge(const GraphRows& rows, size_t first, uint32_t degree, Edge* lists) override;
    void exact_part(const GraphRows& rows, size_t first, const RowSpan& part, uint32_t degree,
                    Edge* lists) override;
    DescentReport descend(const GraphRows& rows, const DescentOptions& options,
                          Edge* lists) override;
    DescentReport merge(const GraphRows& rows, size_t first, const DescentOptions& options,
                        Edge* lists) override;
    DescentReport append(const GraphRows& rows, size_t first, const DescentOptions& options,
                         Edge* lists) override;

  private:
    struct State;
    const std::unique_ptr<State> state_;
};

}  // namespace pgwarp
