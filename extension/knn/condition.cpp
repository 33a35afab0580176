#include <algorithm>
#include <cstring>

#include "extension/knn/condition.h"
#include "extension/table/columns.h"

extern "C" {
#include "access/htup_details.h"
#include "access/sysattr.h"
#include "access/table.h"
#include "catalog/pg_operator.h"
#include "catalog/pg_type.h"
#include "nodes/makefuncs.h"
#include "nodes/parsenodes.h"
#include "optimizer/optimizer.h"
#include "parser/parse_clause.h"
#include "parser/parse_collate.h"
#include "parser/parse_oper.h"
#include "parser/parse_relation.h"
#include "parser/parser.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"
}

namespace pgwarp {

// --- an SQL expression

namespace {

// Positions of errors are those in the condition, not in the statement that calls the function.
void move_error_position(void* condition) {
    const char* text = static_cast<const char*>(condition);
    const int position = geterrposition();
    if (position > 0) {
        errposition(0);
        internalerrposition(position);
        internalerrquery(text);
    } else {
        errcontext("condition \"%s\"", text);
    }
}

// The star of SELECT *, or of t.*.
bool is_star(Node* expression) {
    return IsA(expression, ColumnRef) &&
           IsA(llast(reinterpret_cast<ColumnRef*>(expression)->fields), A_Star);
}

// Parses the whole text as one expression. PL/pgSQL's parser would also take 'a FROM b'.
Node* parse_expression(const char* text) {
    const List* statements = raw_parser(text, RAW_PARSE_PLPGSQL_EXPR);
    const auto* select = reinterpret_cast<const SelectStmt*>(
        static_cast<const RawStmt*>(linitial(statements))->stmt);
    const ResTarget* target = list_length(select->targetList) == 1
                                  ? static_cast<const ResTarget*>(linitial(select->targetList))
                                  : nullptr;
    if (!target || target->name || is_star(target->val) || select->distinctClause ||
        select->intoClause || select->fromClause || select->whereClause || select->groupClause ||
        select->havingClause || select->windowClause || select->sortClause || select->limitOffset ||
        select->limitCount || select->lockingClause)
        ereport(ERROR,
                (errcode(ERRCODE_SYNTAX_ERROR), errmsg("condition must be one SQL expression"),
                 errhint("Give what would stand behind WHERE, 'tenant_id = 42' for instance.")));
    return target->val;
}

// The columns of the table that an expression has, all of them for a whole row.
void check_rights(Relation table, Node* expression) {
    Bitmapset* used = nullptr;
    pull_varattnos(expression, 1, &used);
    const int all = table->rd_att->natts;
    int next = -1;
    while ((next = bms_next_member(used, next)) >= 0) {
        const auto attribute = static_cast<AttrNumber>(next + FirstLowInvalidHeapAttributeNumber);
        const int first = attribute != InvalidAttrNumber ? attribute : 1;
        const int last = attribute != InvalidAttrNumber ? attribute : all;
        for (int i = first; i <= last; ++i) {
            const auto column = static_cast<AttrNumber>(i);
            if (i > 0 && TupleDescAttr(table->rd_att, i - 1)->attisdropped) continue;
            check_select_rights(RelationGetRelid(table), &column, 1);
        }
    }
}

}  // namespace

namespace {

// Parses a text as an expression over the columns of a table. Reports an error unless it may stand
// behind WHERE, without subqueries and volatile functions.
Node* checked_condition(Relation table, const char* condition) {
    ErrorContextCallback callback = {error_context_stack, move_error_position,
                                     const_cast<char*>(condition)};
    error_context_stack = &callback;
    ParseState* state = make_parsestate(nullptr);
    state->p_sourcetext = condition;
    ParseNamespaceItem* item =
        addRangeTableEntryForRelation(state, table, AccessShareLock, nullptr, false, true);
    addNSItemToQuery(state, item, false, true, true);
    Node* expression =
        transformWhereClause(state, parse_expression(condition), EXPR_KIND_WHERE, "WHERE");
    assign_expr_collations(state, expression);
    if (state->p_hasSubLinks)
        ereport(ERROR, (errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
                        errmsg("condition must not have a subquery"),
                        errhint("Use a LATERAL join with ORDER BY and LIMIT.")));
    // A scan may check a row more than once, and rows that it does not return.
    if (contain_volatile_functions(expression))
        ereport(ERROR, (errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
                        errmsg("condition must not have a volatile function")));
    free_parsestate(state);
    error_context_stack = callback.previous;
    return expression;
}

}  // namespace

void set_condition(KnnIndex* index, const char* condition) {
    check_rights(index->heap, checked_condition(index->heap, condition));
    index->condition = condition;
    index->by_query = true;
}

// --- equal columns

namespace {

// The text from begin to end, without spaces around it.
const char* trimmed(const char* begin, const char* end) {
    while (begin < end && *begin == ' ') ++begin;
    while (begin < end && end[-1] == ' ') --end;
    return pnstrdup(begin, static_cast<Size>(end - begin));
}

bool has_equality(Oid left, Oid right) {
    List* name = list_make1(makeString(pstrdup("=")));
    const Operator found = oper(nullptr, name, left, right, true, -1);
    if (!found) return false;
    const bool boolean = reinterpret_cast<Form_pg_operator>(GETSTRUCT(found))->oprresult == BOOLOID;
    ReleaseSysCache(found);
    return boolean;
}

}  // namespace

EqualColumns read_equal_columns(ArrayType* texts) {
    if (ARR_NDIM(texts) > 1)
        ereport(ERROR, (errcode(ERRCODE_ARRAY_SUBSCRIPT_ERROR),
                        errmsg("on_equal must be an array of one dimension")));
    Datum* items;
    bool* nulls;
    EqualColumns columns = {};
    deconstruct_array(texts, TEXTOID, -1, false, TYPALIGN_INT, &items, &nulls, &columns.count);
    const Size bytes = static_cast<Size>(Max(columns.count, 1)) * sizeof(const char*);
    columns.query_columns = static_cast<const char**>(palloc(bytes));
    columns.columns = static_cast<const char**>(palloc(bytes));
    for (int i = 0; i < columns.count; ++i) {
        if (nulls[i])
            ereport(ERROR, (errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
                            errmsg("on_equal must not contain nulls")));
        const char* pair = TextDatumGetCString(items[i]);
        const char* end = pair + strlen(pair);
        const char* sign = std::find(pair, end, '=');
        columns.query_columns[i] = trimmed(pair, sign);
        columns.columns[i] = sign < end ? trimmed(sign + 1, end) : columns.query_columns[i];
    }
    return columns;
}

void set_equal_columns(KnnIndex* index, const EqualColumns& columns, const Oid* query_types) {
    if (columns.count == 0) return;
    const Oid table = RelationGetRelid(index->heap);
    index->equals =
        static_cast<KnnEqual*>(palloc(static_cast<Size>(columns.count) * sizeof(KnnEqual)));
    for (int i = 0; i < columns.count; ++i) {
        const AttrNumber attribute = find_column(table, columns.columns[i]);
        check_select_rights(table, &attribute, 1);
        const Oid type = get_atttype(table, attribute);
        if (!has_equality(type, query_types[i]))
            ereport(ERROR,
                    (errcode(ERRCODE_UNDEFINED_FUNCTION),
                     errmsg("columns \"%s\" of the queries and \"%s\" of table \"%s\" cannot be "
                            "compared",
                            columns.query_columns[i], columns.columns[i],
                            RelationGetRelationName(index->heap)),
                     errdetail("There is no operator %s = %s.", format_type_be(type),
                               format_type_be(query_types[i]))));
        index->equals[i] = {attribute, query_types[i]};
    }
    index->equal_count = columns.count;
    index->by_query = true;
}

}  // namespace pgwarp

using namespace pgwarp;

// For functions in SQL that paste a condition into a query; the query checks the caller's rights.
PGWARP_FUNCTION(pgwarp_checked_condition) {
    text* condition = PG_GETARG_TEXT_PP(1);
    Relation table = table_open(PG_GETARG_OID(0), AccessShareLock);
    checked_condition(table, text_to_cstring(condition));
    table_close(table, NoLock);
    PG_RETURN_TEXT_P(condition);
}
