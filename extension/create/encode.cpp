#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/rotation.h"
#include "kernels/row_pass.h"
#include "extension/guard.h"
#include "extension/index/column.h"
#include "extension/create/encode.h"
#include "extension/index/lists.h"
#include "extension/util/stopwatch.h"

extern "C" {
#include "miscadmin.h"
#include "utils/memutils.h"
}

namespace pgwarp {

namespace {

// A block that the device is encoding.
struct BlockInFlight {
    const void* rows;  // of the pass's elements
    const uint64* tids;
    const uint8* attributes;
    BlockPool* pool;  // null: the pass's own rows
    RowBlock block;
};

}  // namespace

struct EncodePass {
    EncodeInput input;
    Executor* executor;
    Executor* searcher;
    RowSink sink;
    MemoryContext row_context;

    uint32 batch;  // rows encoded together
    uint32 count;
    RowElements elements;  // of `rows`; halves on a device only
    void* rows;            // (batch)(table's dims)
    float* rotated;        // (batch)(dims), where the model has a rotation: the rotated rows
    uint64* tids;          // (batch)
    uint8* attributes;     // (batch)(entry_bytes)
    uint32* lists;         // (batch)
    uint8* codes;          // (batch)(m); on a device (m)
    float* offsets;        // (batch)
    uint8* refinements;    // (batch)(refinement.bytes())

    Neighbor* neighbors;  // kept_neighbors(query_count)
    double total;

    // On a device:
    Owned<RowPass>* device;
    BlockInFlight* in_flight;  // (most_in_flight), the oldest first
    uint32 most_in_flight;
    uint32 in_flight_count;
    // For DEBUG1: blocks started, and seconds that this process spent:
    uint32 blocks;
    double starting;
    double finishing;
    double putting;
};

namespace {

template <typename T>
T* alloc_array(Size count) {
    return static_cast<T*>(MemoryContextAllocHuge(CurrentMemoryContext, count * sizeof(T)));
}

// Enough rows for a matrix product to pay off, within four megabytes.
uint32 batch_rows(uint32 dims) {
    return static_cast<uint32>(
        std::clamp<Size>((Size{4} << 20) / (dims * sizeof(float)), 32, 1024));
}

}  // namespace

namespace {

uint32 number_for(const EncodePass* pass, RowKind kind) {
    const uint32 lists = pass->input.model.shape.lists;
    return kind == RowKind::no_direction ? undirected_rows(lists) : out_of_range_rows(lists);
}

void put_rows(EncodePass* pass, const EncodedRows& rows) {
    pass->sink.put(pass->sink.state, rows);
    pass->total += static_cast<double>(rows.count);
}

// Refinements are made by this process, also of rows that a device encodes. `rows` are in model
// form.
void refine_rows(EncodePass* pass, const float* rows, const uint32* lists, Size count) {
    const EncodeInput& input = pass->input;
    const Size bytes = input.refinement.bytes();
    if (bytes == 0) return;
    const uint32 dims = input.model.shape.dims;
    for (Size i = 0; i < count; ++i) {
        uint8* to = pass->refinements + i * bytes;
        const RefinementHead head =
            encode_refinement(input.model.shape.metric, rows + i * dims,
                              input.model.centroids + Size{lists[i]} * dims, dims,
                              reinterpret_cast<int8*>(to + sizeof(RefinementHead)));
        memcpy(to, &head, sizeof(head));
    }
}

// On the CPU. An interrupted search cannot run again: see add_neighbors().
void search_rows(EncodePass* pass, const float* rows, const uint64* tids, Size count) {
    const EncodeInput& input = pass->input;
    guarded([&] {
        add_neighbors(pass->searcher,
                      {input.queries, input.query_count, rows, count, tids,
                       input.model.table_dims(), input.model.shape.metric},
                      pass->neighbors);
    });
}

// Passes on a row that belongs into no list. Its code is not looked at.
void put_without_code(EncodePass* pass, RowKind kind, uint64 tid, const uint8* attributes) {
    const uint32 list = number_for(pass, kind);
    const float offset = 0;
    memset(pass->codes, 0, pass->input.model.shape.m);
    memset(pass->refinements, 0, pass->input.refinement.bytes());
    put_rows(pass, {1, &list, &tid, &offset, pass->codes, attributes, pass->refinements});
}

// Encodes the rows of a batch, which are in index form, on the CPU.
void encode_batch(EncodePass* pass) {
    const float* rows = static_cast<const float*>(pass->rows);
    const uint32 count = pass->count;
    if (count == 0) return;
    const EncodeInput& input = pass->input;
    const Rotation& rotation = input.model.rotation;
    CHECK_FOR_INTERRUPTS();
    guarded_interruptibly([&] {
        if (rotation.matrix) pass->executor->rotate(rotation, rows, count, pass->rotated);
        pass->executor->encode(input.model, {rotation.matrix ? pass->rotated : rows, count,
                                             pass->lists, pass->codes, pass->offsets});
    });
    if (rotation.matrix && has_norms(input.model.shape.metric))
        for (uint32 i = 0; i < count; ++i)
            pass->offsets[i] += dropped_norm(rows + Size{i} * rotation.from, rotation.from,
                                             pass->rotated + Size{i} * rotation.to, rotation.to);
    search_rows(pass, rows, pass->tids, count);
    refine_rows(pass, rotation.matrix ? pass->rotated : rows, pass->lists, count);
    put_rows(pass, {count, pass->lists, pass->tids, pass->offsets, pass->codes, pass->attributes,
                    pass->refinements});
}

// Makes the refinements of a block that the device has encoded.
void refine_passed_block(EncodePass* pass, const BlockInFlight& block, const uint32* lists,
                         Size count) {
    const Rotation& rotation = pass->input.model.rotation;
    const uint32 from = pass->input.model.table_dims();
    if (pass->input.refinement.dims == 0) return;
    if (pass->elements == RowElements::float32 && !rotation.matrix) {
        refine_rows(pass, static_cast<const float*>(block.rows), lists, count);
        return;
    }
    float* floats = alloc_array<float>(count * from + 1);
    if (pass->elements == RowElements::float16)
        to_floats(block.rows, count * from, floats);
    else
        memcpy(floats, block.rows, count * from * sizeof(float));
    if (rotation.matrix) {
        float* rotated = alloc_array<float>(count * rotation.to + 1);
        guarded([&] { pass->searcher->rotate(rotation, floats, count, rotated); });
        pfree(floats);
        floats = rotated;
    }
    refine_rows(pass, floats, lists, count);
    pfree(floats);
}

// Waits for the device's oldest block.
void finish_block(EncodePass* pass) {
    const BlockInFlight done = pass->in_flight[0];
    PassedBlock passed;
    Stopwatch watch;
    guarded_interruptibly([&] { passed = pass->device->object->finish(); });
    pass->finishing += watch.lap();
    refine_passed_block(pass, done, passed.lists, passed.count);
    put_rows(pass, {passed.count, passed.lists, done.tids, passed.offsets, passed.codes,
                    done.attributes, pass->refinements});
    pass->putting += watch.lap();
    if (done.pool) give_back(done.pool, done.block);
    for (uint32 i = 1; i < pass->in_flight_count; ++i) pass->in_flight[i - 1] = pass->in_flight[i];
    --pass->in_flight_count;
}

void start_block(EncodePass* pass, uint32 count, const BlockInFlight& block) {
    CHECK_FOR_INTERRUPTS();
    if (pass->in_flight_count == pass->most_in_flight) finish_block(pass);
    Stopwatch watch;
    guarded_interruptibly([&] { pass->device->object->start(block.rows, block.tids, count); });
    pass->starting += watch.lap();
    ++pass->blocks;
    pass->in_flight[pass->in_flight_count++] = block;
}

// Passes on the rows of a block that belong into no list. The last rows take their places.
void take_rows_without_code(EncodePass* pass, const RowBlock& block) {
    // Halves are always in range, and under cosine, where zero vectors have no direction, rows are
    // floats.
    if (pass->elements == RowElements::float16) return;
    const Metric metric = pass->input.model.shape.metric;
    const Size dims = pass->input.model.table_dims();
    const Size bytes = pass->input.row().other_bytes;
    const auto form = [&](uint32 row) { return block.floats() + row * dims; };
    const auto attributes = [&](uint32 row) { return block.others + row * bytes; };
    for (uint32 i = 0; i < *block.count;) {
        const RowKind kind = kind_of_form(metric, form(i));
        if (kind == RowKind::in_lists) {
            ++i;
            continue;
        }
        put_without_code(pass, kind, block.tids[i], attributes(i));
        const uint32 last = --*block.count;
        if (i == last) break;
        memcpy(form(i), form(last), dims * sizeof(float));
        if (bytes > 0) memcpy(attributes(i), attributes(last), bytes);
        block.tids[i] = block.tids[last];
    }
}

}  // namespace

void encode_block(EncodePass* pass, BlockPool* pool, const RowBlock& block) {
    take_rows_without_code(pass, block);
    if (*block.count == 0) {
        give_back(pool, block);
        return;
    }
    start_block(pass, *block.count, {block.rows, block.tids, block.others, pool, block});
}

void flush_encode(EncodePass* pass) {
    if (!pass->device) {
        encode_batch(pass);
    } else {
        if (pass->count > 0)
            start_block(pass, pass->count, {pass->rows, pass->tids, pass->attributes, nullptr, {}});
        while (pass->in_flight_count > 0) finish_block(pass);
    }
    pass->count = 0;
    MemoryContextReset(pass->row_context);
}

namespace {

EncodePass* begin_pass(uint32 batch, const EncodeInput& input, const RowSink& sink,
                       RowElements elements) {
    EncodePass* pass = static_cast<EncodePass*>(palloc0(sizeof(EncodePass)));
    pass->input = input;
    pass->sink = sink;
    pass->row_context =
        AllocSetContextCreate(CurrentMemoryContext, "ivfpq encode row", ALLOCSET_DEFAULT_SIZES);
    pass->batch = batch;
    pass->elements = elements;
    pass->rows =
        alloc_array<char>(Size{pass->batch} * input.model.table_dims() * bytes_of(elements));
    pass->tids = alloc_array<uint64>(pass->batch);
    pass->attributes = alloc_array<uint8>(Size{pass->batch} * input.row().other_bytes + 1);
    pass->refinements = alloc_array<uint8>(Size{pass->batch} * input.refinement.bytes() + 1);
    pass->neighbors = alloc_array<Neighbor>(kept_neighbors(input.query_count) + 1);
    clear_neighbors(input.query_count, pass->neighbors);
    // An interrupted search cannot run again, so it is not interruptible. It is short: a search has
    // few queries, where encoding has many lists.
    Owned<Executor>* searcher = owned_by<Executor>(CurrentMemoryContext);
    guarded([&] { searcher->object = make_cpu_executor(1, {}).release(); });
    pass->searcher = searcher->object;
    return pass;
}

}  // namespace

EncodePass* begin_encode(const EncodeInput& input, const RowSink& sink) {
    // One thread: a build is parallel by processes. With many lists a batch takes seconds to
    // encode; an interrupted batch is encoded again.
    Owned<Executor>* executor = owned_by<Executor>(CurrentMemoryContext);
    guarded([&] { executor->object = make_cpu_executor(1, query_interrupts()).release(); });
    const QuantizerShape& shape = input.model.shape;
    EncodePass* pass =
        begin_pass(batch_rows(input.model.table_dims()), input, sink, RowElements::float32);
    pass->executor = executor->object;
    if (input.model.rotation.matrix)
        pass->rotated = alloc_array<float>(Size{pass->batch} * shape.dims);
    pass->lists = alloc_array<uint32>(pass->batch);
    pass->codes = alloc_array<uint8>(Size{pass->batch} * shape.m);
    pass->offsets = alloc_array<float>(pass->batch);
    return pass;
}

EncodePass* begin_encode_on(Executor* device, uint32 batch, const EncodeInput& input,
                            const RowSink& sink) {
    EncodePass* pass = begin_pass(batch, input, sink, input.elements());
    pass->codes = alloc_array<uint8>(input.model.shape.m);
    pass->device = owned_by<RowPass>(CurrentMemoryContext);
    pass->most_in_flight = static_cast<uint32>(device->most_in_flight());
    pass->in_flight = alloc_array<BlockInFlight>(pass->most_in_flight);
    guarded_interruptibly([&] {
        RowPassInput wanted;
        wanted.quantizer = &pass->input.model;
        wanted.dims = input.model.table_dims();
        wanted.metric = input.model.shape.metric;
        wanted.elements = pass->elements;
        wanted.block_rows = batch;
        wanted.queries = input.queries;
        wanted.query_count = input.query_count;
        wanted.k = neighbors_kept;
        wanted.wide_count = wide_queries(input.query_count);
        wanted.wide_k = wide_neighbors_kept;
        pass->device->object = device->begin_pass(wanted).release();
    });
    return pass;
}

namespace {

// The form of a stored vector. Halves are widened where they are wanted, without a copy.
RowKind put_form(Metric metric, const float* stored, uint32 dims, float* to) {
    return row_form(metric, stored, dims, to);
}

RowKind put_form(Metric metric, const float16* stored, uint32 dims, float* to) {
    to_floats(stored, dims, to);
    return normalizes(metric) ? row_form(metric, to, dims, to) : RowKind::in_lists;
}

}  // namespace

void encode_one_row(EncodePass* pass, uint64 tid, const StoredVector& vector, const Datum* values,
                    const bool* nulls) {
    const Quantizer& model = pass->input.model;
    const uint32 dims = model.table_dims();
    const MemoryContext before = MemoryContextSwitchTo(pass->row_context);
    uint8* attributes = pass->attributes + Size{pass->count} * pass->input.row().other_bytes;
    pack_attributes(*pass->input.attributes, values, nulls, attributes);
    MemoryContextSwitchTo(before);
    const Size before_it = Size{pass->count} * dims;
    RowKind kind = RowKind::in_lists;
    if (pass->elements == RowElements::float16)
        memcpy(static_cast<float16*>(pass->rows) + before_it, vector.elements,
               dims * sizeof(float16));
    else
        vector.visit([&](const auto* stored) {
            kind = put_form(model.shape.metric, stored, dims,
                            static_cast<float*>(pass->rows) + before_it);
        });
    if (kind == RowKind::no_direction && !pass->input.has_undirected_list) {
        std::fill_n(static_cast<float*>(pass->rows) + before_it, dims, 0.0f);
        kind = RowKind::in_lists;
    }
    if (kind != RowKind::in_lists) {
        put_without_code(pass, kind, tid, attributes);
        return;
    }
    pass->tids[pass->count] = tid;
    if (++pass->count == pass->batch) flush_encode(pass);
}

void encode_row(Relation, ItemPointer tid, Datum* values, bool* nulls, bool, void* argument) {
    if (nulls[0]) return;
    EncodePass* pass = static_cast<EncodePass*>(argument);
    MemoryContextReset(pass->row_context);
    const MemoryContext before = MemoryContextSwitchTo(pass->row_context);
    const varlena* value = pg_detoast_datum(reinterpret_cast<varlena*>(DatumGetPointer(values[0])));
    MemoryContextSwitchTo(before);
    encode_one_row(pass, tid_number(*tid), pass->input.type.stored(value), values, nulls);
}

const Neighbor* neighbors_of(EncodePass* pass) {
    if (pass->device && pass->device->object)
        guarded([&] {
            if (pass->input.query_count > 0) pass->device->object->nearest(pass->neighbors);
            // The device may be closed before the memory context ends.
            delete std::exchange(pass->device->object, nullptr);
        });
    if (pass->blocks > 0)
        ereport(DEBUG1,
                (errmsg_internal(
                    "%u blocks of at most %u rows: %.3f s to start them, %.3f s to wait "
                    "for the device, %.3f s to take entries",
                    pass->blocks, pass->batch, pass->starting, pass->finishing, pass->putting)));
    pass->blocks = 0;
    return pass->neighbors;
}

double rows_of(const EncodePass* pass) {
    return pass->total;
}

CurveQuery* make_curve_queries(const EncodeInput& input, const uint64* query_tids,
                               const Neighbor* neighbors, uint32 participants) {
    const Rotation& rotation = input.model.rotation;
    const float** vectors = alloc_array<const float*>(input.query_count + 1);
    for (uint32 q = 0; q < input.query_count; ++q) {
        vectors[q] = input.queries + Size{q} * input.model.table_dims();
        if (!rotation.matrix) continue;
        float* rotated = alloc_array<float>(rotation.to);
        rotate_one(rotation, vectors[q], rotated);
        vectors[q] = rotated;
    }
    return merge_neighbors({vectors, query_tids, input.query_count}, neighbors, participants);
}

}  // namespace pgwarp
