// The one way into PostgreSQL's headers, and the one place for differences between its versions.
// Each difference says which version brought it and why we care.
//
// Include it after every standard and kernel header: postgres.h redefines printf and friends.
// Further PostgreSQL headers go into an extern "C" block after it.
#pragma once

extern "C" {
#include "postgres.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "utils/rel.h"
#include "utils/snapshot.h"
#include "utils/wait_event.h"
}

#if PG_VERSION_NUM < 140000
#error "pgwarp needs PostgreSQL 14 or later"
#endif

// 16 moved the macros over varlena headers out of postgres.h.
#if PG_VERSION_NUM >= 160000
extern "C" {
#include "varatt.h"
}
#endif

// Whether aggregates with an order of their own take rows as they come, where they come in it.
inline constexpr bool compat_sorts_before_aggregates = PG_VERSION_NUM >= 160000;

// Rejects a value. `context` is the fcinfo->context of an input function, or null. From 16 on it
// may ask for soft errors (pg_input_is_valid, COPY with ON_ERROR): the error is then saved there
// and the calling function returns `result`. Before 16, and without a context, it is an ordinary
// error.
#if PG_VERSION_NUM >= 160000
#define PGWARP_REJECT(context, result, ...) ereturn(context, result, __VA_ARGS__)
#else
#define PGWARP_REJECT(context, result, ...) \
    do {                                    \
        (void)(context);                    \
        ereport(ERROR, __VA_ARGS__);        \
    } while (0)
#endif

// 16 exports what is marked PGDLLEXPORT and hides the rest; before it, PGDLLEXPORT is empty on
// this platform while we compile with -fvisibility=hidden. This form works in both.
#define PGWARP_EXPORT __attribute__((visibility("default")))

// Declares a function that SQL calls; its body follows.
#define PGWARP_FUNCTION(name)                                          \
    extern "C" {                                                       \
    _Pragma("GCC visibility push(default)") PG_FUNCTION_INFO_V1(name); \
    Datum name(PG_FUNCTION_ARGS);                                      \
    _Pragma("GCC visibility pop")                                      \
    }                                                                  \
    Datum name([[maybe_unused]] PG_FUNCTION_ARGS)

// 16 renamed RelFileNode to RelFileLocator, and relNode to relNumber.
#if PG_VERSION_NUM >= 160000
#define compat_locator(relation) ((relation)->rd_locator)
#define compat_file_number(relation) ((relation)->rd_locator.relNumber)
#define compat_init_tag(tag, relation, block) \
    InitBufferTag(tag, &(relation)->rd_locator, MAIN_FORKNUM, block)
#define compat_same_tag(a, b) BufferTagsEqual(a, b)
#else
#define compat_locator(relation) ((relation)->rd_node)
#define compat_file_number(relation) ((relation)->rd_node.relNode)
#define compat_init_tag(tag, relation, block) \
    INIT_BUFFERTAG(*(tag), (relation)->rd_node, MAIN_FORKNUM, block)
#define compat_same_tag(a, b) BUFFERTAGS_EQUAL(*(a), *(b))
#endif

// A new page at the end of a relation, exclusively locked. 16 brought ExtendBufferedRel and made
// P_NEW obsolete. `locked` says that the caller holds the extension lock.
static inline Buffer compat_extend(Relation relation, bool locked) {
#if PG_VERSION_NUM >= 160000
    return ExtendBufferedRel(BMR_REL(relation), MAIN_FORKNUM, nullptr,
                             EB_LOCK_FIRST | (locked ? EB_SKIP_EXTENSION_LOCK : 0));
#else
    const bool lock = !locked && !RELATION_IS_LOCAL(relation);
    if (lock) LockRelationForExtension(relation, ExclusiveLock);
    const Buffer buffer =
        ReadBufferExtended(relation, MAIN_FORKNUM, P_NEW, RBM_ZERO_AND_LOCK, nullptr);
    if (lock) UnlockRelationForExtension(relation, ExclusiveLock);
    return buffer;
#endif
}

// 15 replaced EmitWarningsOnPlaceholders by MarkGUCPrefixReserved.
#if PG_VERSION_NUM >= 150000
#define compat_reserve_prefix(prefix) MarkGUCPrefixReserved(prefix)
#else
#define compat_reserve_prefix(prefix) EmitWarningsOnPlaceholders(prefix)
#endif

// What names of libraries end with: 15 put it into its headers.
#if PG_VERSION_NUM < 150000
#define DLSUFFIX ".so"
#endif

// 15 turned the last argument, a boolean for random access, into sort flags; 0 is right for both.
#define compat_sort_begin(descriptor, attribute, operation, collation, nulls_first, memory, coord) \
    tuplesort_begin_heap(descriptor, 1, attribute, operation, collation, nulls_first, memory,      \
                         coord, 0)

// 15 brought InitMaterializedSRF() for what every set-returning function did by hand.
static inline void compat_init_materialized(FunctionCallInfo fcinfo) {
#if PG_VERSION_NUM >= 150000
    InitMaterializedSRF(fcinfo, 0);
#else
    ReturnSetInfo* result = reinterpret_cast<ReturnSetInfo*>(fcinfo->resultinfo);
    if (result == nullptr || !IsA(result, ReturnSetInfo) ||
        !(result->allowedModes & SFRM_Materialize))
        ereport(ERROR, (errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
                        errmsg("set-valued function called in context that cannot accept a set")));
    TupleDesc descriptor;
    const MemoryContext before = MemoryContextSwitchTo(result->econtext->ecxt_per_query_memory);
    if (get_call_result_type(fcinfo, nullptr, &descriptor) != TYPEFUNC_COMPOSITE)
        elog(ERROR, "return type must be a row type");
    result->returnMode = SFRM_Materialize;
    result->setResult = tuplestore_begin_heap(true, false, work_mem);
    result->setDesc = descriptor;
    MemoryContextSwitchTo(before);
#endif
}

// 16 added a copy flag to tuplesort_getdatum(). Before, it always copied. The caller frees a copy
// of a datum that is passed by reference.
#if PG_VERSION_NUM >= 160000
#define compat_get_datum(sort, value, is_null) \
    tuplesort_getdatum(sort, true, false, value, is_null, nullptr)
#define compat_get_datum_copy(sort, value, is_null) \
    tuplesort_getdatum(sort, true, true, value, is_null, nullptr)
#else
#define compat_get_datum_copy(sort, value, is_null) \
    tuplesort_getdatum(sort, true, value, is_null, nullptr)
#define compat_get_datum(sort, value, is_null) \
    tuplesort_getdatum(sort, true, value, is_null, nullptr)
#endif
#define compat_begin_datum_sort(type, operation, memory) \
    tuplesort_begin_datum(type, operation, InvalidOid, false, memory, nullptr, 0)
// The same for a sort that is read several times. 1 is `true` before 15, TUPLESORT_RANDOMACCESS
// from 15 on.
#define compat_begin_rereadable_datum_sort(type, operation, memory) \
    tuplesort_begin_datum(type, operation, InvalidOid, false, memory, nullptr, 1)

// 18 added an argument for extra bytes in front of the tuple.
#if PG_VERSION_NUM >= 180000
#define compat_form_minimal_tuple(descriptor, values, nulls) \
    heap_form_minimal_tuple(descriptor, values, nulls, 0)
#else
#define compat_form_minimal_tuple(descriptor, values, nulls) \
    heap_form_minimal_tuple(descriptor, values, nulls)
#endif

// 18 returns the TOAST snapshot (get_toast_snapshot()); before it, the caller provides the memory
// and init_toast_snapshot() fills it in.
#if PG_VERSION_NUM >= 180000
struct CompatToastSnapshot {};
#define compat_toast_snapshot(memory) ((void)(memory), get_toast_snapshot())
#else
using CompatToastSnapshot = SnapshotData;
#define compat_toast_snapshot(memory) (init_toast_snapshot(memory), (memory))
#endif

// 18 counts the searches of a scan for EXPLAIN as well.
#if PG_VERSION_NUM >= 180000
#define compat_count_search(scan)                                \
    do {                                                         \
        pgstat_count_index_scan((scan)->indexRelation);          \
        if ((scan)->instrument) ++(scan)->instrument->nsearches; \
    } while (0)
#else
#define compat_count_search(scan) pgstat_count_index_scan((scan)->indexRelation)
#endif

// 18 compares the number of disabled nodes before costs: a path with an infinite cost but no
// disabled node would win against a disabled sequential scan. Two disabled nodes are more than any
// other path to the rows has.
#if PG_VERSION_NUM >= 180000
#define compat_disable(index_path) ((index_path)->path.disabled_nodes = 2)
#else
#define compat_disable(index_path) ((void)(index_path))
#endif

// 18 added arguments: index_beginscan() takes a place to count searches in, vacuum_delay_point()
// whether the caller is ANALYZE.
#if PG_VERSION_NUM >= 180000
#define compat_index_beginscan(heap, index, snapshot, keys, order_bys) \
    index_beginscan(heap, index, snapshot, nullptr, keys, order_bys COMPAT_SCAN_FLAGS)
#define compat_vacuum_delay() vacuum_delay_point(false)
#else
#define compat_index_beginscan(heap, index, snapshot, keys, order_bys) \
    index_beginscan(heap, index, snapshot, keys, order_bys)
#define compat_vacuum_delay() vacuum_delay_point()
#endif

// Whether a user may run VACUUM on a table: its owner, and from 17 on a role with the MAINTAIN
// privilege. 16 replaced the ownership checks of each object type by object_ownercheck().
#if PG_VERSION_NUM >= 170000
#define compat_may_maintain(table, user) \
    (pg_class_aclcheck(table, user, ACL_MAINTAIN) == ACLCHECK_OK)
#elif PG_VERSION_NUM >= 160000
#define compat_may_maintain(table, user) object_ownercheck(RelationRelationId, table, user)
#else
#define compat_may_maintain(table, user) pg_class_ownercheck(table, user)
#endif

// 17 replaced the functions that identify a kind of process by tests of MyBackendType.
#if PG_VERSION_NUM >= 170000
#define compat_is_autovacuum() AmAutoVacuumWorkerProcess()
#else
#define compat_is_autovacuum() IsAutoVacuumWorkerProcess()
#endif

// 17 restricts search_path during maintenance, so that it finds no functions in other users'
// schemas.
#if PG_VERSION_NUM >= 170000
#define compat_restrict_search_path() RestrictSearchPath()
#else
#define compat_restrict_search_path() ((void)0)
#endif

// 16 gave the walkers' callbacks a type; before it they are declared as bool (*)(), which in C++
// means a function without arguments.
#if PG_VERSION_NUM >= 160000
#define compat_planstate_walk(node, callback, context) \
    planstate_tree_walker(node, callback, context)
#else
#define compat_planstate_walk(node, callback, context) \
    planstate_tree_walker(                             \
        node, reinterpret_cast<bool (*)()>(reinterpret_cast<void (*)()>(callback)), context)
#endif

// The same for walkers of expressions. Needs nodes/nodeFuncs.h.
#if PG_VERSION_NUM >= 160000
#define compat_expression_walk(node, callback, context) \
    expression_tree_walker(node, callback, context)
#else
#define compat_expression_walk(node, callback, context) \
    expression_tree_walker(                             \
        node, reinterpret_cast<bool (*)()>(reinterpret_cast<void (*)()>(callback)), context)
#endif

// Whether an index's access method has this cost function: its type is whole from 16 on. Needs
// nodes/pathnodes.h.
#define compat_is_cost_function(info, function) \
    (reinterpret_cast<void (*)()>((info)->amcostestimate) == reinterpret_cast<void (*)()>(function))

// Before 15, a custom scan has to be able to project; from then on it says so. Needs
// nodes/extensible.h.
#if PG_VERSION_NUM >= 150000
#define compat_custom_projects CUSTOMPATH_SUPPORT_PROJECTION
#else
#define compat_custom_projects 0
#endif

// 19 tells which strategies of joins are enabled. Needs optimizer/cost.h.
#if PG_VERSION_NUM >= 190000
#define compat_initial_cost_nestloop(root, workspace, type, outer, inner, extra) \
    initial_cost_nestloop(root, workspace, type, PGS_NESTLOOP_PLAIN, outer, inner, extra)
#else
#define compat_initial_cost_nestloop(root, workspace, type, outer, inner, extra) \
    initial_cost_nestloop(root, workspace, type, outer, inner, extra)
#endif

// 18 moved what EXPLAIN's properties are written with to headers of its own.
extern "C" {
#include "commands/explain.h"
#if PG_VERSION_NUM >= 180000
#include "commands/explain_format.h"
#include "commands/explain_state.h"
#endif
}

// 18 lets extensions add properties to any node of EXPLAIN. Before 18, `explain` is never called.
#if PG_VERSION_NUM >= 180000
#define compat_explain_nodes(explain)                                                      \
    do {                                                                                   \
        static explain_per_node_hook_type before;                                          \
        before = explain_per_node_hook;                                                    \
        explain_per_node_hook = [](PlanState* node, List* ancestors, const char* relation, \
                                   const char* name, ExplainState* es) {                   \
            if (before) before(node, ancestors, relation, name, es);                       \
            explain(node, es);                                                             \
        };                                                                                 \
    } while (0)
#else
#define compat_explain_nodes(explain) ((void)(explain))
#endif

// A page of a bitmap. 18 split reading a page's rows from reading the page, and gave iterators of
// one process a name of their own.
struct CompatBitmapPage {
    BlockNumber block;
    int count;  // -1: the page is lossy
    const OffsetNumber* offsets;
};
extern "C" {
#include "access/htup_details.h"
#include "nodes/tidbitmap.h"
}
template <typename Visit>
static inline void compat_walk_bitmap(TIDBitmap* bitmap, Visit&& visit) {
#if PG_VERSION_NUM >= 180000
    OffsetNumber offsets[MaxHeapTuplesPerPage];
    TBMPrivateIterator* iterator = tbm_begin_private_iterate(bitmap);
    for (TBMIterateResult page; tbm_private_iterate(iterator, &page);) {
        int count = -1;
        if (!page.lossy) count = tbm_extract_page_tuple(&page, offsets, MaxHeapTuplesPerPage);
        visit(CompatBitmapPage{page.blockno, count, offsets});
    }
    tbm_end_private_iterate(iterator);
#else
    TBMIterator* iterator = tbm_begin_iterate(bitmap);
    while (const TBMIterateResult* page = tbm_iterate(iterator))
        visit(CompatBitmapPage{page->blockno, page->ntuples, page->offsets});
    tbm_end_iterate(iterator);
#endif
}

// A backend's index in the array of PGPROC structures, below MaxBackends: 17 renamed it and gave it
// a variable.
#if PG_VERSION_NUM >= 170000
#define compat_my_proc_number() MyProcNumber
#else
#define compat_my_proc_number() (MyProc->pgprocno)
#endif

// 17 brought named wait events for extensions; before it, all extensions wait for "Extension".
#if PG_VERSION_NUM >= 170000
#define compat_wait_event(name)                              \
    ([] {                                                    \
        static uint32 event;                                 \
        if (event == 0) event = WaitEventExtensionNew(name); \
        return event;                                        \
    }())
#else
#define compat_wait_event(name) PG_WAIT_EXTENSION
#endif

// A relation's tablespace: 16 renamed the fields.
#if PG_VERSION_NUM >= 160000
#define compat_tablespace(relation) ((relation)->rd_locator.spcOid)
#else
#define compat_tablespace(relation) ((relation)->rd_node.spcNode)
#endif

// Pages and rows of a relation for the planner, which VACUUM has not counted: 15 added two places
// to return something in, 18 the number of frozen pages. Needs commands/vacuum.h.
#if PG_VERSION_NUM >= 180000
#define compat_set_size(relation, pages, rows, has_index)                             \
    vac_update_relstats(relation, pages, rows, 0, 0, has_index, InvalidTransactionId, \
                        InvalidMultiXactId, nullptr, nullptr, true)
#elif PG_VERSION_NUM >= 150000
#define compat_set_size(relation, pages, rows, has_index)                          \
    vac_update_relstats(relation, pages, rows, 0, has_index, InvalidTransactionId, \
                        InvalidMultiXactId, nullptr, nullptr, true)
#else
#define compat_set_size(relation, pages, rows, has_index)                          \
    vac_update_relstats(relation, pages, rows, 0, has_index, InvalidTransactionId, \
                        InvalidMultiXactId, true)
#endif

// 15 brought shmem_request_hook, which runs after MaxBackends is computed. In 14 a library requests
// shared memory while it is loaded, before that: we compute the same sum.
#if PG_VERSION_NUM >= 150000
#define compat_max_backends() MaxBackends
#define compat_request_shared_memory(request)  \
    do {                                       \
        static shmem_request_hook_type before; \
        before = shmem_request_hook;           \
        shmem_request_hook = [] {              \
            if (before) before();              \
            request();                         \
        };                                     \
    } while (0)
#else
#define compat_max_backends() \
    (MaxConnections + autovacuum_max_workers + 1 + max_worker_processes + max_wal_senders)
#define compat_request_shared_memory(request) request()
#endif

// 18 brought virtual generated columns, computed on reading: a tuple on its page lacks them.
#if PG_VERSION_NUM >= 180000
#define compat_is_virtual(attribute) ((attribute)->attgenerated == ATTRIBUTE_GENERATED_VIRTUAL)
#else
#define compat_is_virtual(attribute) ((void)(attribute), false)
#endif

// 16 renamed the function that returns another backend's status entry.
#if PG_VERSION_NUM >= 160000
#define compat_local_status(number) pgstat_get_local_beentry_by_index(number)
#else
#define compat_local_status(number) pgstat_fetch_stat_local_beentry(number)
#endif

// Reads exactly this many bytes of a temporary file, or reports an error. 16 brought
// BufFileReadExact(), and made the argument of BufFileWrite() const.
#if PG_VERSION_NUM >= 160000
#define compat_read_temporary(file, to, bytes) BufFileReadExact(file, to, bytes)
#define compat_write_temporary(file, from, bytes) BufFileWrite(file, from, bytes)
#else
#define compat_read_temporary(file, to, bytes)                                                    \
    do {                                                                                          \
        const size_t wanted_bytes = (bytes);                                                      \
        if (BufFileRead(file, to, wanted_bytes) != wanted_bytes)                                  \
            ereport(ERROR, (errcode_for_file_access(), errmsg("could not read temporary file"))); \
    } while (0)
#define compat_write_temporary(file, from, bytes) \
    BufFileWrite(file, const_cast<void*>(static_cast<const void*>(from)), bytes)
#endif

// The timeline that WAL is written to: 15 replaced the variable by a function. Needs access/xlog.h.
#if PG_VERSION_NUM >= 150000
#define compat_wal_timeline() GetWALInsertionTimeLine()
#else
#define compat_wal_timeline() ThisTimeLineID
#endif

// Whether the client is still connected. Declared here: libpq/libpq.h includes headers of libraries
// that PostgreSQL was built with (gssapi), which need not be installed.
extern "C" bool pq_check_connection(void);

// 17 removed old_snapshot_threshold. Before it, a scan reports a snapshot that is too old for a
// page it reads. Needs utils/snapmgr.h.
#if PG_VERSION_NUM < 170000
#define compat_old_snapshots_end() (old_snapshot_threshold >= 0)
#define compat_check_snapshot(snapshot, relation, page) TestForOldSnapshot(snapshot, relation, page)
#else
#define compat_old_snapshots_end() false
#define compat_check_snapshot(snapshot, relation, page) \
    ((void)(snapshot), (void)(relation), (void)(page))
#endif

// 18 has steps of their own for strict functions of one and of two arguments. Needs
// executor/execExpr.h.
#if PG_VERSION_NUM >= 180000
#define compat_is_strict_call(operation) \
    ((operation) == EEOP_FUNCEXPR_STRICT || (operation) == EEOP_FUNCEXPR_STRICT_2)
#else
#define compat_is_strict_call(operation) ((operation) == EEOP_FUNCEXPR_STRICT)
#endif

// 19 added the flags of a scan, none of which we set, and the blocks that a parallel scan is
// limited to. Needs access/tableam.h.
#if PG_VERSION_NUM >= 190000
#define COMPAT_SCAN_FLAGS , 0
#define compat_index_fetch_begin(heap) table_index_fetch_begin(heap, SO_NONE)
#define compat_start_parallel(heap, own, shared)                                    \
    table_block_parallelscan_startblock_init(heap, own, shared, InvalidBlockNumber, \
                                             InvalidBlockNumber)
#define compat_beginscan(heap, snapshot) table_beginscan(heap, snapshot, 0, nullptr, SO_NONE)
#define compat_beginscan_parallel(heap, parallel) table_beginscan_parallel(heap, parallel, SO_NONE)
#define compat_beginscan_tidrange(heap, snapshot, from, to) \
    table_beginscan_tidrange(heap, snapshot, from, to, SO_NONE)
#else
#define COMPAT_SCAN_FLAGS
#define compat_index_fetch_begin(heap) table_index_fetch_begin(heap)
#define compat_start_parallel(heap, own, shared) \
    table_block_parallelscan_startblock_init(heap, own, shared)
#define compat_beginscan(heap, snapshot) table_beginscan(heap, snapshot, 0, nullptr)
#define compat_beginscan_parallel(heap, parallel) table_beginscan_parallel(heap, parallel)
#define compat_beginscan_tidrange(heap, snapshot, from, to) \
    table_beginscan_tidrange(heap, snapshot, from, to)
#endif

// What heapam's index fetch does with a page that it has just pinned: 19 notes the block's number
// where earlier versions ask the buffer, and pruning needs a pin on the visibility map. Needs
// access/heapam.h.
#if PG_VERSION_NUM >= 190000
#define compat_note_pinned(fetch, heap, block) \
    ((fetch)->xs_blk = (block),                \
     heap_page_prune_opt(heap, (fetch)->xs_cbuf, &(fetch)->xs_vmbuffer, false))
#else
#define compat_note_pinned(fetch, heap, block) \
    ((void)(block), heap_page_prune_opt(heap, (fetch)->xs_cbuf))
#endif

// 19 made a buffer's state 64 bits wide, with the content lock in it. Needs
// storage/buf_internals.h.
#if PG_VERSION_NUM >= 190000
#define compat_buffer_state(descriptor) pg_atomic_read_u64(&(descriptor)->state)
#else
#define compat_buffer_state(descriptor) pg_atomic_read_u32(&(descriptor)->state)
#endif

// Whether this process has a shared buffer's content locked. Needs storage/buf_internals.h.
#if PG_VERSION_NUM >= 190000
#define compat_buffer_is_locked(buffer, mode) BufferIsLockedByMeInMode(buffer, mode)
#else
#define compat_buffer_is_locked(buffer, mode)                                             \
    LWLockHeldByMeInMode(BufferDescriptorGetContentLock(GetBufferDescriptor((buffer)-1)), \
                         (mode) == BUFFER_LOCK_SHARE ? LW_SHARED : LW_EXCLUSIVE)
#endif

// Sets a page's checksum, also in a thread. 19 replaced PageSetChecksumInplace() by a function that
// holds interrupts off: threads must not count these. Needs storage/bufpage.h; from 19 on
// storage/checksum.h and access/xlog.h as well.
#if PG_VERSION_NUM >= 190000
#define compat_set_checksum(page, block)                                \
    do {                                                                \
        if (DataChecksumsNeedWrite())                                   \
            reinterpret_cast<PageHeader>(page)->pd_checksum =           \
                pg_checksum_page(reinterpret_cast<char*>(page), block); \
    } while (0)
#else
#define compat_set_checksum(page, block) PageSetChecksumInplace(page, block)
#endif

// What an access method's handler returns: 19 keeps the pointer and wants it to stay; before it,
// callers copy the struct and free it. Needs access/amapi.h.
#if PG_VERSION_NUM >= 190000
#define compat_access_method(routine) (routine)
#define compat_free_access_method(routine) ((void)(routine))
#else
#define compat_free_access_method(routine) pfree(const_cast<IndexAmRoutine*>(routine))
#define compat_access_method(routine) \
    memcpy(palloc(sizeof(IndexAmRoutine)), routine, sizeof(IndexAmRoutine))
#endif

// How a page is locked: 19 has an enumeration for LockBuffer().
#if PG_VERSION_NUM >= 190000
#define compat_lock_mode(lock) static_cast<BufferLockMode>(lock)
#else
#define compat_lock_mode(lock) (lock)
#endif

// What a signal handler passes on to one of PostgreSQL's: 19 tells handlers who sent the signal.
#if PG_VERSION_NUM >= 190000
#define COMPAT_SIGNAL_ARGUMENTS postgres_signal_arg, pg_siginfo
#else
#define COMPAT_SIGNAL_ARGUMENTS postgres_signal_arg
#endif

// 19 removed fmNodePtr, and funcapi.h no longer includes the tuple store.
#if PG_VERSION_NUM >= 190000
extern "C" {
#include "utils/tuplestore.h"
}
using fmNodePtr = Node*;
#endif

// 19 caches offsets of columns in a tuple descriptor once all of them are set.
#if PG_VERSION_NUM >= 190000
#define compat_finalize(descriptor) TupleDescFinalize(descriptor)
#else
#define compat_finalize(descriptor) ((void)(descriptor))
#endif

// A record that makes standbys end queries with snapshots up to a transaction: 16 renamed its
// fields and asks for the kind of the relation.
extern "C" {
#include "access/nbtxlog.h"
}
inline xl_btree_reuse_page compat_reuse_page(Relation index, BlockNumber block,
                                             FullTransactionId last) {
#if PG_VERSION_NUM >= 160000
    return {compat_locator(index), block, last, false};
#else
    return {compat_locator(index), block, last};
#endif
}
