#include "extension/am/callbacks.h"
#include "extension/index/column.h"
#include "extension/index/attributes.h"
#include "extension/index/format.h"
#include "extension/index/model.h"
#include "extension/index/list_changes.h"
#include "extension/index/vector_code.h"
#include "extension/util/pause.h"

extern "C" {
#include "utils/memutils.h"
}

namespace pgwarp {

bool ivfpq_insert(Relation index, Datum* values, bool* nulls, ItemPointer tid, Relation,
                  IndexUniqueCheck, bool, IndexInfo*) {
    if (nulls[0]) return false;
    const MemoryContext context =
        AllocSetContextCreate(CurrentMemoryContext, "ivfpq insert", ALLOCSET_DEFAULT_SIZES);
    const MemoryContext before = MemoryContextSwitchTo(context);

    lock_lists_of_inserts(index, ShareLock);
    const MetaPage meta = read_meta(index);
    pause_at("insert");
    const VectorView vector = type_of(index).view(values[0]);
    if (vector.dims != meta.dims)
        ereport(ERROR, (errcode(ERRCODE_DATA_EXCEPTION),
                        errmsg("expected %u dimensions, not %u", meta.dims, vector.dims)));
    const RowKind kind = kind_of(meta.metric, vector.values, vector.dims);
    if (meta.lists == 0 || kind == RowKind::out_of_range) {
        append_entry(index, meta, pending_list, {*tid, 0, nullptr, nullptr});
    } else if (kind == RowKind::no_direction && meta.has_undirected_list) {
        append_entry(index, meta, undirected_list(meta), {*tid, 0, nullptr, nullptr});
    } else {
        float* form = static_cast<float*>(palloc(meta.code_dims * sizeof(float)));
        uint8* code = static_cast<uint8*>(palloc(meta.m));
        const float dropped = model_form(index, meta, vector.values, form);
        uint8* refinement = static_cast<uint8*>(palloc(refinement_layout(meta).bytes() + 1));
        const EncodedVector encoded = encode_vector(index, meta, form, dropped, code, refinement);
        uint8* attributes = static_cast<uint8*>(palloc(meta.attributes.entry_bytes() + 1));
        pack_attributes(attributes_of(index), values, nulls, attributes);
        append_entry(index, meta, encoded.list,
                     {*tid, encoded.offset, code, attributes, refinement});
    }
    unlock_lists_of_inserts(index, ShareLock);
    MemoryContextSwitchTo(before);
    MemoryContextDelete(context);
    return false;
}

}  // namespace pgwarp
