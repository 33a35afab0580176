#include <algorithm>
#include <cmath>
#include <cstring>

#include "extension/index/column.h"
#include "extension/index/argument.h"
#include "extension/index/tid.h"
#include "extension/knn/index.h"
#include "extension/table/columns.h"
#include "extension/table/planned.h"

extern "C" {
#include "access/genam.h"
#include "access/htup_details.h"
#include "access/sysattr.h"
#include "access/table.h"
#include "access/transam.h"
#include "catalog/index.h"
#include "catalog/pg_class.h"
#include "catalog/pg_type.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/rls.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"
}

namespace pgwarp {

namespace {

// The table's column that is indexed; 0: an expression.
AttrNumber indexed_column(Oid index) {
    HeapTuple tuple = SearchSysCache1(INDEXRELID, ObjectIdGetDatum(index));
    if (!HeapTupleIsValid(tuple)) elog(ERROR, "cache lookup failed for index %u", index);
    const AttrNumber attribute =
        reinterpret_cast<Form_pg_index>(GETSTRUCT(tuple))->indkey.values[0];
    ReleaseSysCache(tuple);
    return attribute;
}

void refuse(Relation index, const char* kind) {
    ereport(ERROR, (errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
                    errmsg("index \"%s\" is %s", RelationGetRelationName(index), kind),
                    errdetail("Batches are searched in indexes on a column over the whole table."),
                    errhint("Use a LATERAL join with ORDER BY and LIMIT.")));
}

[[noreturn]] void refuse_places(Relation table) {
    ereport(ERROR,
            (errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
             errmsg("the rows of table \"%s\" have no ctid here", RelationGetRelationName(table)),
             errdetail("Another extension plans queries of this table, and does not read it: the "
                       "rows are in other tables or on other servers."),
             errhint("Use knn_join, which returns keys, or ORDER BY and LIMIT.")));
}

// The planner does not use such an index either: it may lack rows that an older snapshot sees.
bool is_too_young(Relation index) {
    return index->rd_index->indcheckxmin &&
           !TransactionIdPrecedes(HeapTupleHeaderGetXmin(index->rd_indextuple->t_data),
                                  TransactionXmin);
}

void check_key_type(KnnIndex* knn, const char* key) {
    const Oid type = get_atttype(RelationGetRelid(knn->heap), knn->key_attribute);
    if (!is_key_type(knn->names, type, &knn->key_type))
        report_key_type(knn->names, key, RelationGetRelationName(knn->heap), type);
}

// What a search has to know of an index and its table, once both are open.
void set_columns(KnnIndex* knn, const char* key) {
    knn->metric = metric_of(knn->index);
    knn->dims = static_cast<uint32>(dims_of(knn->index));
    knn->by_query = is_too_young(knn->index) ||
                    (key && knn->key_attribute > 0 &&
                     compat_is_virtual(TupleDescAttr(knn->heap->rd_att, knn->key_attribute - 1)));
}

// A leaf with an index that can be searched. Columns match the parent's by name, not by number.
bool open_leaf(const IndexLeaf& leaf, const KnnIndex& parent, const char* key, KnnIndex* knn) {
    if (!OidIsValid(leaf.index)) return false;
    *knn = {};
    knn->heap = table_open(leaf.table, NoLock);
    knn->index = index_open(leaf.index, NoLock);
    if (!knn->index->rd_index->indisvalid) return false;
    check_index(knn->index);
    knn->vector_attribute = indexed_column(leaf.index);
    knn->key_attribute = key ? find_column(leaf.table, key) : InvalidAttrNumber;
    knn->key_type = parent.key_type;
    knn->names = parent.names;
    set_columns(knn, key);
    return !knn->by_query;
}

// Where a leaf cannot be searched by its index, a query of the whole table finds its rows.
void open_leaves(KnnIndex* knn, const char* key) {
    const IndexLeaves found = find_leaves(knn->heap, knn->index);
    const Size bytes = static_cast<Size>(Max(found.count, 1)) * sizeof(KnnIndex);
    knn->leaves = static_cast<KnnIndex*>(palloc0(bytes));
    for (int i = 0; i < found.count && !knn->by_query; ++i)
        knn->by_query = !open_leaf(found.leaves[i], *knn, key, &knn->leaves[knn->leaf_count++]);
    for (int i = 0; i < knn->leaf_count; ++i) knn->leaves[i].part = static_cast<uint32>(i);
}

}  // namespace

bool nearer(const KnnRow& a, const KnnRow& b) {
    if (a.distance < b.distance) return true;
    if (a.distance > b.distance) return false;
    const uint64 place_a = tid_number(a.place), place_b = tid_number(b.place);
    return place_a < place_b || (place_a == place_b && a.table < b.table);
}

KnnIndex open_knn_index(Oid index, const char* key, KeyNames* names) {
    KnnIndex knn = {};
    knn.names = names;
    const Oid table = table_of(index);
    // Checked before locking, so that a caller without the right cannot block others while waiting
    // for the lock, and again under the lock, as the index may have changed. An index on an
    // expression (attribute 0) is refused below.
    const auto check_rights = [&] {
        knn.vector_attribute = indexed_column(index);
        knn.key_attribute = key ? find_column(table, key) : InvalidAttrNumber;
        const bool partitioned = get_rel_relkind(table) == RELKIND_PARTITIONED_TABLE;
        AttrNumber columns[3];
        int count = 0;
        columns[count++] = key ? knn.key_attribute : AttrNumber{SelfItemPointerAttributeNumber};
        if (knn.vector_attribute != 0) columns[count++] = knn.vector_attribute;
        if (!key && partitioned) columns[count++] = TableOidAttributeNumber;
        check_select_rights(table, columns, count);
    };
    check_rights();
    knn.heap = table_open(table, AccessShareLock);
    knn.index = index_open(index, AccessShareLock);
    if (IndexGetRelation(index, true) != table)
        ereport(ERROR, (errcode(ERRCODE_UNDEFINED_TABLE),
                        errmsg("could not open parent table of index \"%s\"",
                               RelationGetRelationName(knn.index))));
    check_rights();
    check_index(knn.index, Partitioned::accepted);
    if (knn.vector_attribute == 0) refuse(knn.index, "on an expression");
    if (RelationGetIndexPredicate(knn.index) != NIL) refuse(knn.index, "partial");
    if (key) check_key_type(&knn, key);
    set_columns(&knn, key);
    const RowsAre rows = where_rows_are(table);
    if (!key && rows == RowsAre::elsewhere) refuse_places(knn.heap);
    if (rows != RowsAre::in_table || check_enable_rls(table, InvalidOid, true) == RLS_ENABLED)
        knn.by_query = true;
    knn.partitioned = knn.heap->rd_rel->relkind == RELKIND_PARTITIONED_TABLE;
    if (knn.partitioned) open_leaves(&knn, key);
    return knn;
}

void close_knn_index(const KnnIndex& knn) {
    for (int i = 0; i < knn.leaf_count; ++i) {
        if (knn.leaves[i].index) index_close(knn.leaves[i].index, NoLock);
        if (knn.leaves[i].heap) table_close(knn.leaves[i].heap, NoLock);
    }
    index_close(knn.index, NoLock);
    table_close(knn.heap, NoLock);
}

double operator_distance(Metric metric, double distance) {
    switch (metric) {
        case Metric::l2:
            return std::sqrt(distance);
        case Metric::inner_product:
            return distance;
        case Metric::cosine:
            // Rounding can move a cosine distance out of its range. NaN stays NaN.
            return distance < 0 ? 0 : distance > 2 ? 2 : distance;
        case Metric::l1:
            break;  // no index has it
    }
    pg_unreachable();
}

}  // namespace pgwarp
