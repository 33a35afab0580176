#include "kernels/fallback_graph_builder.h"

namespace pgwarp {

FallbackGraphBuilder::FallbackGraphBuilder(std::unique_ptr<GraphBuilder> device,
                                           MakeBuilder make_cpu, std::function<void()> leave)
    : ForwardingGraphBuilder(std::move(device)),
      make_cpu_(std::move(make_cpu)),
      leave_(std::move(leave)) {}

// Repeats `work` on the CPU where the device fails.
DescentReport FallbackGraphBuilder::run(const Lists& lists, const Work& work) {
    if (!on_cpu_) {
        DescentReport report;
        if (ran_on_device([&] { report = forward(work, lists.edges); },
                          [&](const char* failure) { failure_ = failure; }))
            return report;
        // The assignment frees the device's memory for others while the CPU works.
        builder_ = make_cpu_();
        on_cpu_ = true;
        if (leave_) leave_();
    }
    return forward(work, lists.edges);
}

}  // namespace pgwarp
