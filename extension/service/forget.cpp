// Tells the workers of indexes that are gone: dropped, or created by a transaction that was rolled
// back. Indexes that a worker is not told of, as on a standby, are evicted when it needs the
// memory; no search finds them, since its key is another (MirrorKey).
//
// A drop is told when it is certain: at the commit. Until then the index may stay, with its
// counters, and others may bring it back: DROP DATABASE and DROP INDEX CONCURRENTLY wait for
// sessions that still search.

#include "kernels/mirror.h"
#include "extension/index/options.h"
#include "extension/service/client.h"
#include "extension/service/shards.h"

extern "C" {
#include "access/amapi.h"
#include "access/htup_details.h"
#include "access/xact.h"
#include "catalog/dependency.h"
#include "catalog/objectaccess.h"
#include "catalog/pg_class.h"
#include "catalog/pg_database.h"
#include "miscadmin.h"
#include "utils/memutils.h"
#include "utils/syscache.h"
}

namespace pgwarp {

namespace {

object_access_hook_type previous_hook = nullptr;

// An index, or a whole database (index 0).
struct GoneIndex {
    Oid database;
    Oid index;
    bool concurrently;  // dropped by several transactions, of which the last removes it
    bool gone;          // if this transaction commits
};

// A list that outlives transactions.
struct GoneIndexes {
    GoneIndex* items;
    int count;
    int room;

    void add(const GoneIndex& item) {
        for (int i = 0; i < count; ++i)
            if (items[i].database == item.database && items[i].index == item.index) return;
        if (!items) {
            constexpr int first_room = 16;
            items = static_cast<GoneIndex*>(
                MemoryContextAlloc(TopMemoryContext, first_room * sizeof(GoneIndex)));
            room = first_room;
        } else if (count == room) {
            items = static_cast<GoneIndex*>(
                repalloc_huge(items, 2 * static_cast<Size>(room) * sizeof(GoneIndex)));
            room *= 2;
        }
        items[count++] = item;
    }
};

// Created by this transaction, and a worker knows them.
GoneIndexes created = {};
GoneIndexes dropped = {};

bool is_ivfpq(Oid relation) {
    const HeapTuple tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(relation));
    if (!HeapTupleIsValid(tuple)) return false;
    const auto* form = reinterpret_cast<Form_pg_class>(GETSTRUCT(tuple));
    const bool is_index = form->relkind == RELKIND_INDEX;
    const Oid method = form->relam;
    ReleaseSysCache(tuple);
    // PostgreSQL's built-in access methods have lower OIDs.
    if (!is_index || method < FirstNormalObjectId) return false;
    const IndexAmRoutine* routine = GetIndexAmRoutineByAmId(method, true);
    const bool ours = routine && routine->amoptions == ivfpq_options;
    if (routine) compat_free_access_method(routine);
    return ours;
}

void note_drop(ObjectAccessType access, Oid class_id, Oid object, int sub, void* argument) {
    if (previous_hook) previous_hook(access, class_id, object, sub, argument);
    if (access != OAT_DROP || !service || sub != 0) return;
    const auto* drop = static_cast<const ObjectAccessDrop*>(argument);
    if (class_id == RelationRelationId) {
        const bool concurrently = drop && (drop->dropflags & PERFORM_DELETION_CONCURRENTLY) != 0;
        if (is_ivfpq(object)) dropped.add({MyDatabaseId, object, concurrently, false});
    } else if (class_id == DatabaseRelationId) {
        dropped.add({object, InvalidOid, false, false});
    }
}

// A subtransaction that dropped an index may have been rolled back.
void find_gone() {
    int kept = 0;
    for (int i = 0; i < dropped.count; ++i) {
        GoneIndex item = dropped.items[i];
        // No subtransaction drops a database.
        item.gone =
            !OidIsValid(item.index) || !SearchSysCacheExists1(RELOID, ObjectIdGetDatum(item.index));
        if (item.gone || item.concurrently) dropped.items[kept++] = item;
    }
    dropped.count = kept;
}

void tell_gone() {
    int kept = 0;
    for (int i = 0; i < dropped.count; ++i) {
        const GoneIndex& item = dropped.items[i];
        if (!item.gone) {
            dropped.items[kept++] = item;
            continue;
        }
        post_forget(item.database, item.index);
        forget_statistics(item.database, item.index);
    }
    dropped.count = kept;
}

void forget_all(GoneIndexes* indexes) {
    for (int i = 0; i < indexes->count; ++i)
        post_forget(indexes->items[i].database, indexes->items[i].index);
    indexes->count = 0;
}

void at_transaction_end(XactEvent event, void*) {
    switch (event) {
        case XACT_EVENT_PRE_COMMIT:
            find_gone();
            break;
        case XACT_EVENT_COMMIT:
            tell_gone();
            created.count = 0;
            break;
        case XACT_EVENT_ABORT:
            forget_all(&created);
            dropped.count = 0;
            break;
        case XACT_EVENT_PREPARE:
            // COMMIT PREPARED runs in any session, so the worker is told now. Until then no other
            // session can open these indexes; if they stay, they are loaded again.
            forget_all(&created);
            forget_all(&dropped);
            break;
        case XACT_EVENT_PARALLEL_COMMIT:
        case XACT_EVENT_PARALLEL_ABORT:
        case XACT_EVENT_PARALLEL_PRE_COMMIT:
        case XACT_EVENT_PRE_PREPARE:
            break;
    }
}

// Forgets all new indexes, not only those of the subtransaction: that only costs loading the others
// again.
void at_subtransaction_end(SubXactEvent event, SubTransactionId, SubTransactionId, void*) {
    if (event == SUBXACT_EVENT_ABORT_SUB) forget_all(&created);
}

}  // namespace

void forget_at_abort(Relation index) {
    if (index->rd_createSubid == InvalidSubTransactionId) return;
    created.add({MyDatabaseId, RelationGetRelid(index), false, false});
}

// Under the lock.
static void make_sound(ForgetQueue* queue) {
    if (queue->head < ForgetQueue::size && queue->count <= ForgetQueue::size) return;
    queue->head = queue->count = 0;
}

void post_forget_to(ServiceDevice* device, Oid database, Oid index) {
    if (!worker_serves(device)) return;
    // Read before the queue is locked: the worker must load all buffers that this backend has seen
    // submitted before it forgets the index.
    const uint64 loads = ring_pushed(load_ring(device));
    ForgetQueue* queue = &device->forgets;
    SpinLockAcquire(&queue->mutex);
    make_sound(queue);
    if (queue->count < ForgetQueue::size) {
        Forget* forget = &queue->forgets[(queue->head + queue->count++) % ForgetQueue::size];
        forget->database = database;
        forget->index = index;
        forget->loads = loads;
    }
    SpinLockRelease(&queue->mutex);
    wake_worker(device);
}

void post_forget(Oid database, Oid index) {
    forget_shards(database, index);
    for (int i = 0; i < service->devices; ++i) post_forget_to(service_device(i), database, index);
}

bool take_forget(ServiceDevice* device, Forget* forget) {
    ForgetQueue* queue = &device->forgets;
    // The worker polls; see ring_pop().
    if (*static_cast<volatile uint32*>(&queue->count) == 0) return false;
    const uint64 loads = ring_popped(load_ring(device));
    const uint64 pushed = ring_pushed(load_ring(device));
    SpinLockAcquire(&queue->mutex);
    make_sound(queue);
    // A request that waits for loads which were never submitted is due as well.
    const uint64 waits_for = queue->forgets[queue->head].loads;
    const bool due = queue->count > 0 && (waits_for <= loads || waits_for > pushed);
    if (due) {
        *forget = queue->forgets[queue->head];
        queue->head = (queue->head + 1) % ForgetQueue::size;
        --queue->count;
    }
    SpinLockRelease(&queue->mutex);
    return due;
}

void install_drop_hook() {
    previous_hook = object_access_hook;
    object_access_hook = note_drop;
    RegisterXactCallback(at_transaction_end, nullptr);
    RegisterSubXactCallback(at_subtransaction_end, nullptr);
}

}  // namespace pgwarp
