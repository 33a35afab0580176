#include "kernels/additive.h"
#include "extension/guard.h"
#include "extension/index/additive.h"
#include "extension/index/model.h"

extern "C" {
#include "miscadmin.h"
#include "utils/memutils.h"
}

namespace pgwarp {

namespace {

struct Kept {
    uint64 build_id;  // unique to a build; 0: an empty place
    uint64 used;      // number of the call that used it last
    Size bytes;
    MemoryContext context;  // of the encoder
    Owned<LsqEncoder>* encoder;
};
constexpr int max_kept = 4;
Kept kept[max_kept];
uint64 calls = 0;

void forget(Kept* place) {
    if (place->context) MemoryContextDelete(place->context);
    *place = {};
}

// A free place for tables of `bytes`. Evicts the least recently used encoders until a place is free
// and all tables together fit maintenance_work_mem.
Kept* make_room(Size bytes) {
    while (true) {
        Kept* oldest = nullptr;
        Kept* empty = nullptr;
        Size sum = bytes;
        for (Kept& place : kept) {
            sum += place.bytes;
            if (!place.context)
                empty = &place;
            else if (!oldest || place.used < oldest->used)
                oldest = &place;
        }
        if (!oldest || (empty && sum / 1024 <= static_cast<Size>(maintenance_work_mem)))
            return empty;
        forget(oldest);
    }
}

Kept* make_encoder(Relation index, const MetaPage& meta) {
    const LsqShape shape = lsq_shape(shape_of(meta));
    const Size floats = shape.words() * shape.dims;
    Kept* place = make_room(LsqEncoder::bytes(shape));
    const MemoryContext context =
        AllocSetContextCreate(TopMemoryContext, "ivfpq additive codes", ALLOCSET_SMALL_SIZES);
    place->context = context;
    place->encoder = owned_by<LsqEncoder>(context);
    float* codebook =
        static_cast<float*>(MemoryContextAllocHuge(CurrentMemoryContext, floats * sizeof(float)));
    float* words =
        static_cast<float*>(MemoryContextAllocHuge(CurrentMemoryContext, floats * sizeof(float)));
    read_codebook(index, meta, codebook);
    guarded([&] {
        words_of_codebook(shape, codebook, words);
        Workers alone(1);
        place->encoder->object = new LsqEncoder(alone, shape, words);
    });
    pfree(codebook);
    pfree(words);
    place->bytes = LsqEncoder::bytes(shape);
    place->build_id = meta.build_id;
    return place;
}

Kept* find_encoder(Relation index, const MetaPage& meta) {
    for (Kept& place : kept)
        if (place.context && place.build_id == meta.build_id) return &place;
    return make_encoder(index, meta);
}

}  // namespace

float encode_additive(Relation index, const MetaPage& meta, const float* residual,
                      const float* centroid, uint8* code) {
    Kept* place = find_encoder(index, meta);
    place->used = ++calls;
    const LsqEncoder& encoder = *place->encoder->object;
    float* decoded = static_cast<float*>(palloc(meta.code_dims * sizeof(float)));
    float offset = 0;
    guarded([&] {
        LsqSearch search;
        search.rounds = meta.search_rounds;
        encoder.encode(search, residual, 1, false, code);
        offset =
            additive_offset(encoder.shape(), meta.metric, encoder.words(), centroid, code, decoded);
    });
    pfree(decoded);
    return offset;
}

}  // namespace pgwarp
