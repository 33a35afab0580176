// The part of a scan's state that limit.cpp has.
#pragma once

namespace pgwarp {

// IndexScanDesc::opaque is a ScanState (state.h), which begins with this.
struct NotedScan {
    void* note;  // what the plan says of the scan; null: not looked up, or nothing
};

}  // namespace pgwarp
