// Plans ORDER BY distance, column: a scan in the order of the distance below an Incremental Sort.
#pragma once

namespace pgwarp {

void install_order_planner();

}  // namespace pgwarp
