#include <cstring>
#include <memory>
#include <utility>

#include "kernels/fallback_graph_builder.h"
#include "extension/graph/device.h"
#include "extension/guard.h"

namespace pgwarp {

GraphMaker open_graph_maker(double work, int threads) {
    GraphMaker maker = {};
    SessionDevice* session = maker.session =
        begin_session_device(DeviceUse::graph_builder, wants_device(work), threads);
    maker.device = has_opened(session);
    const auto make_cpu = [threads] { return make_cpu_graph_builder(threads, query_interrupts()); };
    guarded([&] {
        if (!maker.device) {
            session->builder = make_cpu();
        } else if (!must_use_device()) {
            auto fallback = std::make_unique<FallbackGraphBuilder>(
                std::move(session->builder), make_cpu, [session] { session->device.reset(); });
            maker.fallback = fallback.get();
            session->builder = std::move(fallback);
        }
    });
    maker.builder = session->builder.get();
    ereport(DEBUG1, (errmsg_internal("graph on %s", maker.builder->name())));
    return maker;
}

void close_graph_maker(GraphMaker* maker) {
    char failure[256] = "";
    if (maker->fallback) strlcpy(failure, maker->fallback->failure().c_str(), sizeof(failure));
    close_session_device(maker->session, failure[0] == '\0');
    maker->builder = nullptr;
    maker->fallback = nullptr;
    if (failure[0] != '\0') warn_of_device(failure);
}

}  // namespace pgwarp
