// Tells the workers of indexes that are gone: dropped, or created by a transaction that was rolled
// back. Indexes that a worker is not told of, as on a standby, are evicted when it needs the
// memory.

#include "kernels/mirror.h"
#include "extension/index/options.h"
#include "extension/service/client.h"
#include "extension/service/shards.h"

extern "C" {
#include "access/amapi.h"
#include "access/htup_details.h"
#include "access/xact.h"
#include "catalog/objectaccess.h"
#include "catalog/pg_class.h"
#include "catalog/pg_database.h"
#include "miscadmin.h"
#include "utils/syscache.h"
}

namespace pgwarp {

namespace {

object_access_hook_type previous_hook = nullptr;

// Indexes that this transaction has created and the worker knows. The worker is not told of more
// than max_new.
constexpr int max_new = 64;
Oid new_indexes[max_new];
int new_count = 0;

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

// Runs before commit: a drop that is rolled back only costs loading the lists again.
void note_drop(ObjectAccessType access, Oid class_id, Oid object, int sub, void* argument) {
    if (previous_hook) previous_hook(access, class_id, object, sub, argument);
    if (access != OAT_DROP || !service || sub != 0) return;
    if (class_id == RelationRelationId) {
        if (!is_ivfpq(object)) return;
        post_forget(MyDatabaseId, object);
        forget_statistics(MyDatabaseId, object);
    } else if (class_id == DatabaseRelationId) {
        post_forget(object, InvalidOid);
        forget_statistics(object, InvalidOid);
    }
}

void forget_new() {
    for (int i = 0; i < new_count; ++i) post_forget(MyDatabaseId, new_indexes[i]);
    new_count = 0;
}

void at_transaction_end(XactEvent event, void*) {
    if (event == XACT_EVENT_ABORT) forget_new();
    if (event == XACT_EVENT_COMMIT || event == XACT_EVENT_PREPARE) new_count = 0;
}

// Forgets all new indexes, not only those of the subtransaction: that only costs loading the others
// again.
void at_subtransaction_end(SubXactEvent event, SubTransactionId, SubTransactionId, void*) {
    if (event == SUBXACT_EVENT_ABORT_SUB) forget_new();
}

}  // namespace

void forget_at_abort(Relation index) {
    if (index->rd_createSubid == InvalidSubTransactionId) return;
    static bool registered = false;
    if (!registered) {
        RegisterXactCallback(at_transaction_end, nullptr);
        RegisterSubXactCallback(at_subtransaction_end, nullptr);
        registered = true;
    }
    for (int i = 0; i < new_count; ++i)
        if (new_indexes[i] == RelationGetRelid(index)) return;
    if (new_count < max_new) new_indexes[new_count++] = RelationGetRelid(index);
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
    // One that waits for loads which were never submitted is due as well.
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
}

}  // namespace pgwarp
