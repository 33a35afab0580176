#include <cmath>

#include "kernels/distance.h"
#include "kernels/vector_range.h"
#include "extension/table/block_filler.h"

namespace pgwarp {

namespace {

void make_ids(BlockFiller* filler, Size count, uint64* ids) {
    for (Size i = 0; i < count; ++i) {
        ids[i] = filler->key_is_null[i] ? null_key_id : key_id(filler->keys[i]);
        filler->odd |= ids[i] == null_key_id && !filler->key_is_null[i];
    }
}

void make_normal(BlockFiller* filler, Size count, float* rows) {
    const uint32 dims = dims_of(filler->table);
    for (Size i = 0; i < count; ++i) {
        float* row = rows + i * dims;
        const double squared = squared_norm(row, dims);
        if (!(squared >= least_squared_norm && squared <= most_squared_norm)) {
            filler->odd = true;
            continue;
        }
        const double norm = std::sqrt(squared);
        for (uint32 d = 0; d < dims; ++d) row[d] = static_cast<float>(row[d] / norm);
    }
}

}  // namespace

RowElements elements_of(const TableReader* table, RowForm form) {
    return form == RowForm::as_stored ? stored_elements(table) : RowElements::float32;
}

BlockFiller new_block_filler(TableReader* table, RowIds ids, RowForm form, uint32 block_rows) {
    BlockFiller filler = {};
    filler.table = table;
    filler.ids = ids;
    filler.normalise = form == RowForm::normalised;
    filler.as_stored = form == RowForm::as_stored;
    if (ids == RowIds::keys) {
        filler.keys = static_cast<int64*>(palloc(block_rows * sizeof(int64)));
        filler.key_is_null = static_cast<bool*>(palloc(block_rows * sizeof(bool)));
    }
    return filler;
}

Size fill_block(BlockFiller* filler, const RowBlock& block, uint32 room) {
    VectorBlock wanted = {filler->as_stored ? nullptr : block.floats(), filler->keys, room};
    wanted.stored = filler->as_stored ? block.rows : nullptr;
    if (filler->ids == RowIds::places) wanted.places = block.tids;
    wanted.key_is_null = filler->key_is_null;
    const Size count = read_block(filler->table, wanted);
    if (filler->ids == RowIds::keys) make_ids(filler, count, block.tids);
    if (filler->normalise) make_normal(filler, count, block.floats());
    *block.count = static_cast<uint32>(count);
    return count;
}

}  // namespace pgwarp
