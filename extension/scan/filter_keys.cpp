#include "kernels/conditions.h"
#include "extension/scan/filter_keys.h"
#include "extension/types/attribute.h"

extern "C" {
#include "catalog/pg_type.h"
#include "executor/executor.h"
#include "nodes/makefuncs.h"
#include "nodes/nodeFuncs.h"
#include "optimizer/clauses.h"
#include "optimizer/optimizer.h"
#include "rewrite/rewriteManip.h"
#include "utils/lsyscache.h"
}

namespace pgwarp {

namespace {

struct FilterKey {
    ScanKeyData key;
    ExprState* argument;  // null: the key has its argument
};

const Expr* strip_relabel(const Expr* expression) {
    while (IsA(expression, RelabelType))
        expression = reinterpret_cast<const RelabelType*>(expression)->arg;
    return expression;
}

// The index column that an expression is, counted from 1; 0: none that is an attribute.
int attribute_column(const IndexScanState* scan, const Expr* expression) {
    Relation index = scan->iss_RelationDesc;
    const Index relation = reinterpret_cast<const Scan*>(scan->ss.ps.plan)->scanrelid;
    expression = strip_relabel(expression);
    List* expressions = static_cast<List*>(copyObjectImpl(RelationGetIndexExpressions(index)));
    ChangeVarNodes(reinterpret_cast<Node*>(expressions), 1, static_cast<int>(relation), 0);
    int next = 0;
    for (int i = 0; i < IndexRelationGetNumberOfKeyAttributes(index); ++i) {
        const AttrNumber column = index->rd_index->indkey.values[i];
        bool same;
        if (column == 0) {
            same =
                equal(strip_relabel(static_cast<Expr*>(list_nth(expressions, next++))), expression);
        } else {
            const Var* variable = reinterpret_cast<const Var*>(expression);
            same = IsA(expression, Var) && static_cast<Index>(variable->varno) == relation &&
                   variable->varattno == column && variable->varlevelsup == 0;
        }
        if (same && i > 0) return i + 1;
    }
    return 0;
}

// Whether an expression has one value for the whole scan, and runs no subquery.
bool is_constant(Expr* expression) {
    Node* node = reinterpret_cast<Node*>(expression);
    return !contain_var_clause(node) && !contain_volatile_functions(node) &&
           !contain_subplans(node);
}

FilterKey* new_key(int column, AttributeStrategy strategy) {
    auto* filter = static_cast<FilterKey*>(palloc0(sizeof(FilterKey)));
    filter->key.sk_attno = static_cast<AttrNumber>(column);
    filter->key.sk_strategy = static_cast<StrategyNumber>(strategy);
    return filter;
}

// Null: the condition is not on an attribute.
FilterKey* key_of(IndexScanState* scan, Expr* condition) {
    FilterForm form;
    if (!filter_form(condition, &form)) return nullptr;
    const int number = attribute_column(scan, form.column);
    if (number == 0) return nullptr;
    const RelationData& index = *scan->iss_RelationDesc;
    const Oid family = index.rd_opfamily[number - 1];
    if (!can_be_key(form, family, index.rd_opcintype[number - 1],
                    index.rd_indcollation[number - 1]))
        return nullptr;
    if (!form.array) {
        FilterKey* filter = new_key(number, AttributeStrategy::equal);
        filter->key.sk_argument = BoolGetDatum(form.value);
        return filter;
    }
    int strategy;
    Oid left;
    Oid right;
    get_op_opfamily_properties(form.operation, family, false, &strategy, &left, &right);
    const auto wanted = static_cast<AttributeStrategy>(strategy);
    // As a key, it would only keep the scan from knowing how many rows pass.
    if (!decides(attribute_of(scan->iss_RelationDesc, number), wanted, right)) return nullptr;
    FilterKey* filter = new_key(number, wanted);
    filter->key.sk_flags = SK_SEARCHARRAY;
    filter->argument = ExecInitExpr(form.array, &scan->ss.ps);
    return filter;
}

}  // namespace

bool filter_form(Expr* condition, FilterForm* form) {
    *form = {condition, nullptr, InvalidOid, InvalidOid, true};
    if (IsA(condition, ScalarArrayOpExpr)) {
        const ScalarArrayOpExpr* any = reinterpret_cast<const ScalarArrayOpExpr*>(condition);
        form->column = static_cast<Expr*>(linitial(any->args));
        form->array = static_cast<Expr*>(lsecond(any->args));
        form->operation = any->opno;
        form->collation = any->inputcollid;
        return any->useOr && is_constant(form->array);
    }
    if (is_notclause(condition)) {
        form->column = get_notclausearg(condition);
        form->value = false;
    } else if (IsA(condition, BooleanTest)) {
        const BooleanTest* test = reinterpret_cast<const BooleanTest*>(condition);
        form->column = test->arg;
        form->value = test->booltesttype == IS_TRUE;
        return test->booltesttype == IS_TRUE || test->booltesttype == IS_FALSE;
    }
    return true;
}

bool can_be_key(const FilterForm& form, Oid family, Oid type, Oid collation) {
    if (!form.array) return type == BOOLOID;
    return get_op_opfamily_strategy(form.operation, family) != 0 &&
           (!OidIsValid(collation) || collation == form.collation);
}

List* init_filter_keys(IndexScanState* scan, bool* others) {
    List* filters = NIL;
    List* conditions = scan->ss.ps.plan->qual;
    *others = false;
    for (int i = 0; i < list_length(conditions); ++i) {
        FilterKey* filter = nullptr;
        if (IndexRelationGetNumberOfKeyAttributes(scan->iss_RelationDesc) > 1)
            filter = key_of(scan, static_cast<Expr*>(list_nth(conditions, i)));
        if (filter) filters = lappend(filters, filter);
        // Many rows that fail a condition on signatures may seem to pass it.
        *others |= !filter || is_rough(attribute_of(scan->iss_RelationDesc, filter->key.sk_attno));
    }
    return filters;
}

int evaluate_filter_keys(List* filters, IndexScanState* scan, ScanKeyData* keys) {
    for (int i = 0; i < list_length(filters); ++i) {
        const FilterKey* filter = static_cast<const FilterKey*>(list_nth(filters, i));
        keys[i] = filter->key;
        if (!filter->argument) continue;
        bool is_null;
        keys[i].sk_argument = ExecEvalExpr(filter->argument, scan->ss.ps.ps_ExprContext, &is_null);
        if (is_null) keys[i].sk_flags |= SK_ISNULL;
    }
    return list_length(filters);
}

}  // namespace pgwarp
