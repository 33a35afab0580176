#include <csignal>
#include <cstring>
#include <memory>

#include "kernels/fallback_graph_builder.h"
#include "extension/device/executor.h"
#include "extension/device/build_memory.h"
#include "extension/graph/device.h"
#include "extension/guard.h"
#include "extension/settings.h"

extern "C" {
#include "miscadmin.h"
}

namespace pgwarp {

// Members are destroyed in reverse order: the builder before its device.
struct GraphDevice {
    std::unique_ptr<Device> device;
    std::unique_ptr<GraphBuilder> builder;
    FallbackGraphBuilder* fallback;  // the builder, if the CPU may replace a failed device; or null
};

namespace {

void open_builder(GraphDevice* graph, int threads, char* error, size_t error_size) {
    // The driver's threads inherit the mask: they must not receive this process's signals.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
        graph->device = open_device(threads, error, error_size);
        if (graph->device) graph->builder = graph->device->make_graph_builder();
    } catch (const std::exception& failure) {
        strlcpy(error, failure.what(), error_size);
    } catch (...) {
        strlcpy(error, "unknown exception", error_size);
    }
    if (!graph->builder) graph->device.reset();
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

}  // namespace

GraphMaker open_graph_maker(double work, int threads) {
    Owned<GraphDevice>* owned = owned_by<GraphDevice>(CurrentMemoryContext);
    guarded([&] { owned->object = new GraphDevice{}; });
    GraphDevice* graph = owned->object;
    const auto make_cpu = [threads] { return make_cpu_graph_builder(threads, query_interrupts()); };
    const bool must = settings.build_executor == static_cast<int>(BuildExecutorChoice::gpu);
    if (wants_device(work)) {
        build_charge();
        char error[256] = "";
        open_builder(graph, threads, error, sizeof(error));
        if (!graph->builder) {
            if (must)
                ereport(ERROR,
                        (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
                         errmsg("pgwarp.build_executor is gpu, but there is no device: %s", error),
                         errhint("Set pgwarp.build_executor to auto or cpu.")));
            ereport(DEBUG1, (errmsg_internal("graph on the CPU: %s", error)));
        }
    }
    const bool device = graph->builder != nullptr;
    guarded([&] {
        if (!device) {
            graph->builder = make_cpu();
        } else if (!must) {
            auto fallback = std::make_unique<FallbackGraphBuilder>(
                std::move(graph->builder), make_cpu, [graph] { graph->device.reset(); });
            graph->fallback = fallback.get();
            graph->builder = std::move(fallback);
        }
    });
    ereport(DEBUG1, (errmsg_internal("graph on %s", graph->builder->name())));
    return {graph->builder.get(), device, graph};
}

void close_graph_maker(GraphMaker* maker) {
    GraphDevice* graph = maker->owned;
    char failure[256] = "";
    if (graph->fallback) strlcpy(failure, graph->fallback->failure().c_str(), sizeof(failure));
    guarded([&] {
        graph->fallback = nullptr;
        graph->builder.reset();
        graph->device.reset();
    });
    maker->builder = nullptr;
    if (failure[0] != '\0') warn_of_device(failure);
}

}  // namespace pgwarp
