// A step of the Leiden algorithm: communities are refined into parts that hang together well, which
// become the nodes of the next graph.
#pragma once

#include "kernels/common.h"
#include "kernels/cpu/community_graph.h"
#include "kernels/workers.h"

#include <vector>

namespace pgwarp {

// (nodes): parts of the communities, named by one of their nodes. A node joins a part with a
// probability that grows with what the quality gains.
std::vector<uint32_t> refine_communities(Workers& workers, const CommunityGraph& graph,
                                         const Objective& objective, uint64_t seed,
                                         const std::vector<uint32_t>& community);

}  // namespace pgwarp
