#include <algorithm>
#include <cstring>

#include "extension/graph/representatives.h"
#include "extension/graph/table.h"

extern "C" {
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "nodes/parsenodes.h"
#include "parser/parser.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
}

namespace pgwarp {

namespace {

constexpr char order_by[] = "SELECT ORDER BY ";

// Positions of errors are those in the expression.
void move_error_position(void* expression) {
    const int position = geterrposition();
    if (position <= static_cast<int>(strlen(order_by))) return;
    errposition(0);
    internalerrposition(position - static_cast<int>(strlen(order_by)));
    internalerrquery(static_cast<const char*>(expression));
}

// Whether the text is what may stand behind ORDER BY, and nothing else.
bool is_order(const char* text) {
    const List* statements = raw_parser(psprintf("%s%s", order_by, text), RAW_PARSE_DEFAULT);
    if (list_length(statements) != 1) return false;
    const Node* statement = static_cast<const RawStmt*>(linitial(statements))->stmt;
    if (!IsA(statement, SelectStmt)) return false;
    const auto* select = reinterpret_cast<const SelectStmt*>(statement);
    return select->op == SETOP_NONE && select->sortClause && !select->limitOffset &&
           !select->limitCount && !select->lockingClause;
}

}  // namespace

Representative representative_called(const char* name) {
    if (strcmp(name, "first") == 0) return Representative::first;
    if (strcmp(name, "central") == 0) return Representative::central;
    ErrorContextCallback callback = {error_context_stack, move_error_position,
                                     const_cast<char*>(name)};
    error_context_stack = &callback;
    const bool fits = is_order(name);
    error_context_stack = callback.previous;
    if (!fits)
        ereport(ERROR, (errcode(ERRCODE_SYNTAX_ERROR),
                        errmsg("representative must be first, central or an SQL expression"),
                        errhint("Give what would stand behind ORDER BY, 'created_at DESC' for "
                                "instance: the first row represents its group.")));
    return Representative::by_expression;
}

const float* vector_of_row(const DuplicateGroups& groups, uint32 row, float* buffer) {
    return vector_of(groups.vectors->set, groups.vectors->number_of(row), buffer);
}

void choose_first(DuplicateGroups* groups) {
    for (Size i = 0; i < groups->count; ++i)
        groups->groups[i].representative = groups->members[groups->groups[i].begin];
}

void choose_central(DuplicateGroups* groups) {
    const GraphSet& set = *groups->set;
    float* buffer = static_cast<float*>(palloc(set.dims * sizeof(float)));
    float* mean = static_cast<float*>(palloc(set.dims * sizeof(float)));
    double* sums = static_cast<double*>(palloc(set.dims * sizeof(double)));
    for (Size i = 0; i < groups->count; ++i) {
        DuplicateGroup& group = groups->groups[i];
        std::fill_n(sums, set.dims, 0.0);
        for (Size m = group.begin; m < group.end; ++m) {
            CHECK_FOR_INTERRUPTS();
            const float* vector = vector_of_row(*groups, groups->members[m], buffer);
            for (uint32 d = 0; d < set.dims; ++d) sums[d] += vector[d];
        }
        for (uint32 d = 0; d < set.dims; ++d)
            mean[d] = static_cast<float>(sums[d] / static_cast<double>(group.end - group.begin));
        group.representative = groups->members[group.begin];
        float best = 0;
        for (Size m = group.begin; m < group.end; ++m) {
            CHECK_FOR_INTERRUPTS();
            const float* vector = vector_of_row(*groups, groups->members[m], buffer);
            const float distance = graph_distance(set.metric, vector, mean, set.dims);
            // Of several, that with the smallest key.
            if (m > group.begin && !(distance < best)) continue;
            best = distance;
            group.representative = groups->members[m];
        }
    }
    pfree(buffer);
    pfree(mean);
    pfree(sums);
}

namespace {

// A member of some groups, by its key.
struct KeyedMember {
    int64 key;
    uint32 row;
    uint32 group;
};

// ORDER BY prefers names of the result to those of the table: no column has this one's.
char* order_query(const TableColumns& columns, const char* expression) {
    const char* key = quote_identifier(columns.key);
    return psprintf(
        "SELECT %s::pg_catalog.%s AS \"key of the row\" FROM %s WHERE %s "
        "OPERATOR(pg_catalog.=) ANY ($1::pg_catalog.%s[]) ORDER BY %s",
        key, columns.names ? "text" : "int8", qualified_name(columns.table), key,
        key_type_name(columns.table, columns.key), expression);
}

// The first row of each group that the query returns represents it. chosen: (groups), all false.
void take_first_rows(DuplicateGroups* groups, KeyNames* names, const KeyedMember* sorted,
                     Size count, bool* chosen) {
    for (uint64 i = 0; i < SPI_processed; ++i) {
        bool is_null;
        const Datum value =
            SPI_getbinval(SPI_tuptable->vals[i], SPI_tuptable->tupdesc, 1, &is_null);
        if (is_null) continue;
        const int64 key = key_of(names, value, names ? TEXTOID : INT8OID);
        const KeyedMember* at = std::lower_bound(
            sorted, sorted + count, key,
            [](const KeyedMember& member, int64 wanted) { return member.key < wanted; });
        if (at == sorted + count || at->key != key || chosen[at->group]) continue;
        chosen[at->group] = true;
        groups->groups[at->group].representative = at->row;
    }
}

// Groups first .. end, whose members are one parameter of the query.
void order_groups(DuplicateGroups* groups, const TableColumns& columns, const char* query,
                  Size first, Size end, bool* chosen) {
    constexpr long rows_at_once = 10000;
    const Size begin = groups->groups[first].begin, count = groups->groups[end - 1].end - begin;
    auto* sorted = static_cast<KeyedMember*>(
        MemoryContextAllocHuge(CurrentMemoryContext, count * sizeof(KeyedMember)));
    int64* keys =
        static_cast<int64*>(MemoryContextAllocHuge(CurrentMemoryContext, count * sizeof(int64)));
    for (Size g = first; g < end; ++g)
        for (Size m = groups->groups[g].begin; m < groups->groups[g].end; ++m) {
            keys[m - begin] = groups->set->keys[groups->members[m]];
            sorted[m - begin] = {keys[m - begin], groups->members[m], static_cast<uint32>(g)};
        }
    std::sort(sorted, sorted + count,
              [](const KeyedMember& a, const KeyedMember& b) { return a.key < b.key; });
    SPI_connect();
    Oid type = columns.names ? TEXTARRAYOID : INT8ARRAYOID;
    Datum argument = key_array(columns.names, keys, count);
    Portal portal =
        SPI_cursor_open_with_args(nullptr, query, 1, &type, &argument, nullptr, true, 0);
    while (SPI_cursor_fetch(portal, true, rows_at_once), SPI_processed > 0) {
        CHECK_FOR_INTERRUPTS();
        take_first_rows(groups, columns.names, sorted, count, chosen);
        SPI_freetuptable(SPI_tuptable);
    }
    SPI_cursor_close(portal);
    SPI_finish();
    pfree(sorted);
    pfree(keys);
}

}  // namespace

void choose_by_expression(DuplicateGroups* groups, const TableColumns& columns,
                          const char* expression) {
    // Members of one query, unless a group has more.
    constexpr Size members_at_once = 100000;
    choose_first(groups);
    const char* query = order_query(columns, expression);
    bool* chosen = static_cast<bool*>(MemoryContextAllocExtended(
        CurrentMemoryContext, std::max<Size>(groups->count, 1), MCXT_ALLOC_HUGE | MCXT_ALLOC_ZERO));
    for (Size first = 0; first < groups->count;) {
        Size end = first + 1;
        while (end < groups->count &&
               groups->groups[end].end - groups->groups[first].begin <= members_at_once)
            ++end;
        order_groups(groups, columns, query, first, end, chosen);
        first = end;
    }
    pfree(chosen);
}

}  // namespace pgwarp
