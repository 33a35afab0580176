// A step of the Leiden algorithm: nodes move to the community that raises the quality most.
#pragma once

#include "kernels/common.h"
#include "kernels/cpu/community_graph.h"
#include "kernels/interrupts.h"
#include "kernels/workers.h"

#include <vector>

namespace pgwarp {

// Moves nodes until no single move raises the quality. `community`, (nodes), has numbers below the
// number of nodes, before and after.
void move_nodes(Workers& workers, const CommunityGraph& graph, const Objective& objective,
                uint64_t seed, std::vector<uint32_t>& community, const Interrupts& interrupts);

}  // namespace pgwarp
