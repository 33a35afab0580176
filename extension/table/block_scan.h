// The rows of ranges of blocks, in a parallel worker: see parallel_reader.h.
#pragma once

#include "extension/table/open_member.h"

extern "C" {
#include "utils/snapshot.h"
}

namespace pgwarp {

class BlockScan final : public RowSource {
  public:
    BlockScan(const ReadColumns& columns, Snapshot snapshot);

    // Begins a range of one member's blocks, whose rows next() returns.
    void begin(Oid member, BlockNumber first, BlockNumber end);

    bool next(SourceRow* row) override;
    // Ends the range.
    void rewind() override;

  private:
    MemoryContext context_ = CurrentMemoryContext;
    const ReadColumns& columns_;
    Snapshot snapshot_;
    OpenMember member_ = {};
};

}  // namespace pgwarp
