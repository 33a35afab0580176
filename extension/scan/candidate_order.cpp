#include <algorithm>

#include "extension/scan/candidate_order.h"

extern "C" {
#include "catalog/pg_operator_d.h"
#include "catalog/pg_type_d.h"
#include "executor/tuptable.h"
#include "utils/memutils.h"
#include "utils/tuplesort.h"
}

namespace pgwarp {

struct CandidateOrder {
    MemoryContext context;
    Size bytes;

    // Candidates in memory, until `bytes` are full.
    Candidate* items;
    Size count;
    Size room;
    CandidateQueue queue;

    // After that, a tuplesort of (distance, id) has them all.
    Tuplesortstate* sort;
    TupleTableSlot* in;
    TupleTableSlot* out;
    Candidate last;  // the candidate taken last, to drop duplicates

    bool taking;
};

namespace {

void put_tuple(CandidateOrder* order, const Candidate& candidate) {
    TupleTableSlot* slot = order->in;
    ExecClearTuple(slot);
    slot->tts_values[0] = Float8GetDatum(candidate.distance);
    slot->tts_values[1] = Int64GetDatum(static_cast<int64>(candidate.id));
    slot->tts_isnull[0] = slot->tts_isnull[1] = false;
    ExecStoreVirtualTuple(slot);
    tuplesort_puttupleslot(order->sort, slot);
}

void move_to_sort(CandidateOrder* order) {
    const MemoryContext before = MemoryContextSwitchTo(order->context);
    TupleDesc descriptor = CreateTemplateTupleDesc(2);
    TupleDescInitEntry(descriptor, 1, "distance", FLOAT8OID, -1, 0);
    TupleDescInitEntry(descriptor, 2, "id", INT8OID, -1, 0);
    compat_finalize(descriptor);
    AttrNumber attributes[2] = {1, 2};
    Oid operators[2] = {Float8LessOperator, Int8LessOperator};
    Oid collations[2] = {};
    bool nulls_first[2] = {};
    const int kilobytes = std::max(64, static_cast<int>(order->bytes / 1024));
    order->sort = tuplesort_begin_heap(descriptor, 2, attributes, operators, collations,
                                       nulls_first, kilobytes, nullptr, 0);
    order->in = MakeSingleTupleTableSlot(descriptor, &TTSOpsVirtual);
    order->out = MakeSingleTupleTableSlot(descriptor, &TTSOpsMinimalTuple);
    for (Size i = 0; i < order->count; ++i) put_tuple(order, order->items[i]);
    pfree(order->items);
    order->items = nullptr;
    order->count = 0;
    MemoryContextSwitchTo(before);
}

void start_taking(CandidateOrder* order) {
    order->taking = true;
    order->last = no_floor;
    if (order->sort)
        tuplesort_performsort(order->sort);
    else
        order->queue = CandidateQueue(order->items, order->count);
}

bool next_tuple(CandidateOrder* order, Candidate* candidate) {
    do {
        if (!tuplesort_gettupleslot(order->sort, true, false, order->out, nullptr)) return false;
        slot_getallattrs(order->out);
        *candidate = {DatumGetFloat8(order->out->tts_values[0]),
                      static_cast<uint64>(DatumGetInt64(order->out->tts_values[1]))};
    } while (*candidate == order->last);
    order->last = *candidate;
    return true;
}

}  // namespace

CandidateOrder* open_candidate_order(Size bytes) {
    auto* order = static_cast<CandidateOrder*>(palloc0(sizeof(CandidateOrder)));
    order->context = CurrentMemoryContext;
    order->bytes = bytes;
    return order;
}

void put_candidate(CandidateOrder* order, const Candidate& candidate) {
    Assert(!order->taking);
    if (order->sort) {
        put_tuple(order, candidate);
        return;
    }
    if (order->count == order->room) {
        const Size most = std::max<Size>(order->bytes / sizeof(Candidate), 64);
        if (order->room == most) {
            move_to_sort(order);
            put_tuple(order, candidate);
            return;
        }
        order->room = std::min(most, std::max<Size>(64, 2 * order->room));
        const Size bytes = order->room * sizeof(Candidate);
        order->items =
            static_cast<Candidate*>(order->items ? repalloc_huge(order->items, bytes)
                                                 : MemoryContextAllocHuge(order->context, bytes));
    }
    order->items[order->count++] = candidate;
}

Size take_candidates(CandidateOrder* order, Candidate* to, Size most) {
    if (!order->taking) start_taking(order);
    if (!order->sort) {
        const CandidateQueue::Part part = order->queue.take(most);
        std::copy_n(part.items, part.count, to);
        return part.count;
    }
    Size count = 0;
    while (count < most && next_tuple(order, &to[count])) ++count;
    return count;
}

void close_candidate_order(CandidateOrder* order) {
    if (order->sort) {
        ExecDropSingleTupleTableSlot(order->in);
        ExecDropSingleTupleTableSlot(order->out);
        tuplesort_end(order->sort);
    }
    if (order->items) pfree(order->items);
    pfree(order);
}

}  // namespace pgwarp
