// The rows of a table by scans of it and of its children, one after another.
#pragma once

#include "extension/table/open_member.h"

extern "C" {
#include "utils/snapshot.h"
}

namespace pgwarp {

// A table whose rows belong to the table that is read.
struct TableMember {
    Oid table;
    BlockNumber blocks;
};

class MemberScan final : public RowSource {
  public:
    // Locks the table's children, unless `only` its own rows are read. Null: the table, or a child,
    // can only be read by a query.
    static MemberScan* open(const ReadColumns& columns, bool only, Snapshot snapshot);

    // In physical order: two passes over an unchanged table return the same sequence.
    bool next(SourceRow* row) override;
    void rewind() override;

    double estimated_rows() const;
    // The members with their current numbers of blocks, for workers that read with this snapshot.
    // Returns how many; 0: workers cannot read them.
    int list(TableMember** members) const;

  private:
    explicit MemberScan(const ReadColumns& columns, Snapshot snapshot)
        : columns_(columns), snapshot_(snapshot) {}
    bool find_members(bool only);
    void begin_next();

    MemoryContext context_ = CurrentMemoryContext;
    const ReadColumns& columns_;
    Snapshot snapshot_;
    Oid* members_ = nullptr;
    int count_ = 0;
    int next_ = 0;
    OpenMember member_ = {};  // the one that is being scanned
};

}  // namespace pgwarp
