// Fills blocks with rows of a TableReader, in the form in which a device takes them.
#pragma once

#include "extension/table/block_pool.h"
#include "extension/table/table_reader.h"

namespace pgwarp {

// What identifies a row, beside its vector.
enum class RowIds {
    none,
    keys,    // key_id() of the key
    places,  // the TID as a number
};

// Ids order as their keys do. Null comes last: it shares its id with the largest key, which is why
// that key is `odd`.
inline uint64 key_id(int64 key) {
    return static_cast<uint64>(key) ^ (uint64{1} << 63);
}
inline int64 id_key(uint64 id) {
    return static_cast<int64>(id ^ (uint64{1} << 63));
}
inline constexpr uint64 null_key_id = ~uint64{0};

struct BlockFiller {
    TableReader* table;
    RowIds ids;
    bool normalise;
    bool as_stored;     // vectors are those of stored_elements(), not floats
    int64* keys;        // (block_rows), where ids are keys
    bool* key_is_null;  // (block_rows)
    // A row that a device cannot order was seen: a vector without direction, or the largest key.
    bool odd;
};
// Vectors that are normalised are floats.
enum class RowForm : uint8 { floats, normalised, as_stored };
BlockFiller new_block_filler(TableReader* table, RowIds ids, RowForm form, uint32 block_rows);
// Of the blocks that it fills.
RowElements elements_of(const TableReader* table, RowForm form);

// Returns fewer rows than `room` only at the end of the table or range.
Size fill_block(BlockFiller* filler, const RowBlock& block, uint32 room);

}  // namespace pgwarp
