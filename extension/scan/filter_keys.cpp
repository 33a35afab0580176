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

// An array of values of one type; null: the type has no array type.
Expr* array_of(List* values) {
    const Oid type = exprType(static_cast<Node*>(linitial(values)));
    const Oid array_type = get_array_type(type);
    if (!OidIsValid(array_type)) return nullptr;
    ArrayExpr* array = makeNode(ArrayExpr);
    array->array_typeid = array_type;
    array->array_collid = exprCollation(static_cast<Node*>(linitial(values)));
    array->element_typeid = type;
    array->elements = values;
    array->location = -1;
    return reinterpret_cast<Expr*>(array);
}

// `column OPERATOR value`, from either side.
struct Comparison {
    Expr* column;
    Expr* value;
    Oid operation;
    Oid collation;
};
bool is_comparison(Expr* expression, Comparison* comparison) {
    if (!IsA(expression, OpExpr)) return false;
    const OpExpr* operation = reinterpret_cast<const OpExpr*>(expression);
    if (list_length(operation->args) != 2) return false;
    auto* left = static_cast<Expr*>(linitial(operation->args));
    auto* right = static_cast<Expr*>(lsecond(operation->args));
    const bool swapped = is_constant(left);
    *comparison = {swapped ? right : left, swapped ? left : right,
                   swapped ? get_commutator(operation->opno) : operation->opno,
                   operation->inputcollid};
    return OidIsValid(comparison->operation) && is_constant(comparison->value);
}

// Whether the value is known without a function call, which might fail.
bool is_plain(const Expr* value) {
    value = strip_relabel(value);
    return IsA(value, Const) || IsA(value, Param);
}

// column = a OR column = b is column = ANY (ARRAY[a, b]). The executor need not evaluate b; the
// array's elements are all evaluated.
bool any_form(const BoolExpr* any, FilterForm* form) {
    List* values = NIL;
    for (int i = 0; i < list_length(any->args); ++i) {
        Comparison one;
        if (!is_comparison(static_cast<Expr*>(list_nth(any->args, i)), &one) ||
            !is_plain(one.value))
            return false;
        if (i == 0) {
            form->column = one.column;
            form->operation = one.operation;
            form->collation = one.collation;
        } else if (one.operation != form->operation || one.collation != form->collation ||
                   !equal(one.column, form->column) ||
                   exprType(reinterpret_cast<Node*>(one.value)) !=
                       exprType(static_cast<Node*>(linitial(values)))) {
            return false;
        }
        values = lappend(values, one.value);
    }
    form->array = array_of(values);
    return form->array != nullptr;
}

// column <> value is NOT (column = ANY (ARRAY[value])).
bool negated_form(const Comparison& comparison, FilterForm* form) {
    form->column = comparison.column;
    form->operation = get_negator(comparison.operation);
    form->collation = comparison.collation;
    form->negated = true;
    if (OidIsValid(form->operation)) form->array = array_of(list_make1(comparison.value));
    return form->array != nullptr;
}

FilterKey* new_key(int column, AttributeStrategy strategy) {
    auto* filter = static_cast<FilterKey*>(palloc0(sizeof(FilterKey)));
    filter->key.sk_attno = static_cast<AttrNumber>(column);
    filter->key.sk_strategy = static_cast<StrategyNumber>(strategy);
    return filter;
}

// Null: the condition in this form is not on an attribute.
FilterKey* key_of(IndexScanState* scan, const FilterForm& form) {
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
    const auto wanted =
        form.negated ? AttributeStrategy::not_equal : static_cast<AttributeStrategy>(strategy);
    // A key that has to be rechecked would only hide from the scan how many rows pass.
    if (!decides(attribute_of(scan->iss_RelationDesc, number), wanted, right)) return nullptr;
    FilterKey* filter = new_key(number, wanted);
    filter->key.sk_flags = SK_SEARCHARRAY;
    filter->argument = ExecInitExpr(form.array, &scan->ss.ps);
    return filter;
}

}  // namespace

FilterForms filter_forms(Expr* condition) {
    FilterForms forms = {};
    FilterForm form = {condition, nullptr, InvalidOid, InvalidOid, true, false};
    const auto add = [&](bool has_form) {
        if (has_form) forms.items[forms.count++] = form;
    };
    Comparison comparison;
    if (IsA(condition, ScalarArrayOpExpr)) {
        const ScalarArrayOpExpr* any = reinterpret_cast<const ScalarArrayOpExpr*>(condition);
        form.column = static_cast<Expr*>(linitial(any->args));
        form.array = static_cast<Expr*>(lsecond(any->args));
        form.negated = !any->useOr;
        form.operation = form.negated ? get_negator(any->opno) : any->opno;
        form.collation = any->inputcollid;
        add(OidIsValid(form.operation) && is_constant(form.array));
    } else if (is_notclause(condition)) {
        form.column = get_notclausearg(condition);
        form.value = false;
        add(true);
    } else if (IsA(condition, BooleanTest)) {
        const BooleanTest* test = reinterpret_cast<const BooleanTest*>(condition);
        form.column = test->arg;
        form.value = test->booltesttype == IS_TRUE;
        add(test->booltesttype == IS_TRUE || test->booltesttype == IS_FALSE);
    } else {
        add(true);
        if (is_comparison(condition, &comparison))
            add(negated_form(comparison, &form));
        else if (is_orclause(condition))
            add(any_form(reinterpret_cast<const BoolExpr*>(condition), &form));
    }
    return forms;
}

bool can_be_key(const FilterForm& form, Oid family, Oid type, Oid collation) {
    if (!form.array) return type == BOOLOID;
    const int strategy = get_op_opfamily_strategy(form.operation, family);
    if (strategy == 0 || (OidIsValid(collation) && collation != form.collation)) return false;
    if (!form.negated) return true;
    const std::optional<AttributeKind> kind = attribute_kind(
        type,
        OidIsValid(get_opfamily_proc(family, type, type, static_cast<int16>(hash_procedure))));
    return strategy == static_cast<int>(AttributeStrategy::equal) && kind &&
           decides(*kind, type, AttributeStrategy::not_equal, type);
}

List* init_filter_keys(IndexScanState* scan, bool* others) {
    List* filters = NIL;
    List* conditions = scan->ss.ps.plan->qual;
    *others = false;
    for (int i = 0; i < list_length(conditions); ++i) {
        FilterKey* filter = nullptr;
        const FilterForms forms = filter_forms(static_cast<Expr*>(list_nth(conditions, i)));
        if (IndexRelationGetNumberOfKeyAttributes(scan->iss_RelationDesc) > 1)
            for (const FilterForm& form : forms.all())
                if (!filter) filter = key_of(scan, form);
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
