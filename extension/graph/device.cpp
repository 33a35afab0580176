#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/fallback_graph_builder.h"
#include "kernels/graph_builder_group.h"
#include "extension/graph/device.h"
#include "extension/guard.h"

namespace pgwarp {

namespace {

using MakeBuilder = std::function<std::unique_ptr<GraphBuilder>()>;

// One builder from that of a device, or those of several.
void make_of_devices(GraphMaker* maker, const MakeBuilder& make_cpu) {
    SessionDevice* session = maker->session;
    const auto leave = [session](size_t device) { session->devices[device].device.reset(); };
    if (session->devices.size() > 1) {
        std::vector<std::unique_ptr<GraphBuilder>> members;
        for (OpenDeviceOfSession& open : session->devices)
            members.push_back(std::move(open.builder));
        auto group = std::make_unique<GraphBuilderGroup>(
            std::move(members), must_use_device() ? MakeBuilder() : make_cpu, leave);
        maker->group = group.get();
        session->builder = std::move(group);
    } else if (must_use_device()) {
        session->builder = std::move(session->devices[0].builder);
    } else {
        auto fallback = std::make_unique<FallbackGraphBuilder>(
            std::move(session->devices[0].builder), make_cpu, [leave] { leave(0); });
        maker->fallback = fallback.get();
        session->builder = std::move(fallback);
    }
}

}  // namespace

Size rows_on_device(const GraphBuilder& builder, uint32 dims, const DescentOptions& options) {
    return std::max(builder.most_rows(dims, options),
                    2 * std::max<Size>(512, 4 * Size{options.degree}));
}

GraphMaker open_graph_maker(double work, int threads) {
    GraphMaker maker = {};
    SessionDevice* session = maker.session =
        begin_session_device(DeviceUse::graph_builder, devices_for(work), threads);
    maker.device = has_opened(session);
    const auto make_cpu = [threads] { return make_cpu_graph_builder(threads, query_interrupts()); };
    guarded([&] {
        if (maker.device)
            make_of_devices(&maker, make_cpu);
        else
            session->builder = make_cpu();
    });
    maker.builder = session->builder.get();
    ereport(DEBUG1, (errmsg_internal("graph on %s", maker.builder->name())));
    return maker;
}

void close_graph_maker(GraphMaker* maker) {
    char failure[256] = "";
    if (maker->fallback) strlcpy(failure, maker->fallback->failure().c_str(), sizeof(failure));
    const bool others = maker->group && !maker->group->all_failed();
    if (maker->group) strlcpy(failure, maker->group->failure().c_str(), sizeof(failure));
    close_session_device(maker->session, failure[0] == '\0');
    maker->builder = nullptr;
    maker->fallback = nullptr;
    maker->group = nullptr;
    if (failure[0] != '\0') (others ? warn_of_one_device : warn_of_device)(failure);
}

}  // namespace pgwarp
