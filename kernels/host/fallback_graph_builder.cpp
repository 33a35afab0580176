#include "kernels/fallback_graph_builder.h"

namespace pgwarp {

FallbackGraphBuilder::FallbackGraphBuilder(std::unique_ptr<GraphBuilder> device,
                                           MakeBuilder make_cpu, std::function<void()> leave)
    : device_(std::move(device)), make_cpu_(std::move(make_cpu)), leave_(std::move(leave)) {}

// Calls work(builder), and repeats it on the CPU where the device fails.
template <typename Work>
auto FallbackGraphBuilder::run(Work&& work) {
    if (!cpu_) {
        try {
            device_->progress = progress;
            return work(*device_);
        } catch (const DeviceFailure& failure) {
            failure_ = failure.what();
        } catch (const OutOfDeviceMemory& failure) {
            failure_ = failure.what();
        } catch (const OutOfHostMemory& failure) {
            failure_ = failure.what();
        }
        cpu_ = make_cpu_();
        // Frees the device's memory for others while the CPU works.
        device_.reset();
        if (leave_) leave_();
    }
    cpu_->progress = progress;
    return work(*cpu_);
}

void FallbackGraphBuilder::exact(const GraphRows& rows, uint32_t degree, Edge* lists) {
    run([&](GraphBuilder& builder) { builder.exact(rows, degree, lists); });
}

void FallbackGraphBuilder::exact_merge(const GraphRows& rows, size_t first, uint32_t degree,
                                       Edge* lists) {
    run([&](GraphBuilder& builder) { builder.exact_merge(rows, first, degree, lists); });
}

DescentReport FallbackGraphBuilder::descend(const GraphRows& rows, const DescentOptions& options,
                                            Edge* lists) {
    return run([&](GraphBuilder& builder) { return builder.descend(rows, options, lists); });
}

DescentReport FallbackGraphBuilder::merge(const GraphRows& rows, size_t first,
                                          const DescentOptions& options, Edge* lists) {
    return run([&](GraphBuilder& builder) { return builder.merge(rows, first, options, lists); });
}

DescentReport FallbackGraphBuilder::append(const GraphRows& rows, size_t first,
                                           const DescentOptions& options, Edge* lists) {
    return run([&](GraphBuilder& builder) { return builder.append(rows, first, options, lists); });
}

}  // namespace pgwarp
