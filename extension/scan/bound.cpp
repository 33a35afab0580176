#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "extension/scan/bound.h"

extern "C" {
#include "catalog/pg_type.h"
#include "executor/executor.h"
#include "nodes/nodeFuncs.h"
#include "optimizer/clauses.h"
#include "optimizer/optimizer.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
}

namespace pgwarp {

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

// --- finding the bound in the plan

// Whether two expressions are the same distance, possibly with commuted operands.
bool same_distance(const Expr* a, const Expr* b) {
    if (!IsA(a, OpExpr) || !IsA(b, OpExpr)) return false;
    const OpExpr* x = reinterpret_cast<const OpExpr*>(a);
    const OpExpr* y = reinterpret_cast<const OpExpr*>(b);
    if (list_length(x->args) != 2 || list_length(y->args) != 2) return false;
    if (x->opno == y->opno && equal(x->args, y->args)) return true;
    return x->opno == get_commutator(y->opno) && equal(linitial(x->args), lsecond(y->args)) &&
           equal(lsecond(x->args), linitial(y->args));
}

// Whether an expression has one value for the whole scan, and runs no subquery.
bool is_constant(const Expr* expression) {
    Node* node = reinterpret_cast<Node*>(const_cast<Expr*>(expression));
    return !contain_var_clause(node) && !contain_volatile_functions(node) &&
           !contain_subplans(node);
}

bool is_minus_one(const Expr* expression) {
    const Const* constant = reinterpret_cast<const Const*>(expression);
    return IsA(expression, Const) && constant->consttype == FLOAT8OID && !constant->constisnull &&
           DatumGetFloat8(constant->constvalue) == -1;
}

// A bound on a distance d: d < value, or minuend - d > value, which bounds a similarity.
struct BoundForm {
    const Expr* value;    // null: the condition is no bound
    const Expr* minuend;  // null: 0
    bool of_similarity;
};

// Whether an expression is a number minus the distance: 1 - d, -d, d * -1.
bool is_similarity(const Expr* expression, const Expr* distance, const Expr** minuend) {
    *minuend = nullptr;
    if (!IsA(expression, OpExpr)) return false;
    const OpExpr* operation = reinterpret_cast<const OpExpr*>(expression);
    const Expr* first = static_cast<const Expr*>(linitial(operation->args));
    const Expr* last = static_cast<const Expr*>(llast(operation->args));
    switch (get_opcode(operation->opno)) {
        case F_FLOAT8UM:
            return same_distance(first, distance);
        case F_FLOAT8MUL:
            return (is_minus_one(first) && same_distance(last, distance)) ||
                   (is_minus_one(last) && same_distance(first, distance));
        case F_FLOAT8MI:
        case F_FLOAT48MI:
            *minuend = first;
            return is_constant(first) && same_distance(last, distance);
        default:
            return false;
    }
}

BoundForm bound_in(const Expr* condition, const Expr* distance) {
    if (!IsA(condition, OpExpr)) return {};
    const OpExpr* comparison = reinterpret_cast<const OpExpr*>(condition);
    if (list_length(comparison->args) != 2) return {};
    const Expr* lesser = static_cast<const Expr*>(linitial(comparison->args));
    const Expr* greater = static_cast<const Expr*>(lsecond(comparison->args));
    switch (get_opcode(comparison->opno)) {
        case F_FLOAT8LT:
        case F_FLOAT8LE:
        case F_FLOAT84LT:
        case F_FLOAT84LE:
        case F_FLOAT48LT:
        case F_FLOAT48LE:
            break;
        case F_FLOAT8GT:
        case F_FLOAT8GE:
        case F_FLOAT84GT:
        case F_FLOAT84GE:
        case F_FLOAT48GT:
        case F_FLOAT48GE:
            std::swap(lesser, greater);
            break;
        default:
            return {};
    }
    BoundForm form = {};
    if (same_distance(lesser, distance)) {
        form.value = greater;
    } else if (is_similarity(greater, distance, &form.minuend)) {
        form.value = lesser;
        form.of_similarity = true;
    }
    if (form.value && !is_constant(form.value)) return {};
    return form;
}

// A BoundForm to evaluate.
struct BoundState {
    ExprState* value;
    ExprState* minuend;  // null: 0
    bool of_similarity;
};

ExprState* init_number(const Expr* expression, PlanState* plan) {
    return expression ? ExecInitExpr(const_cast<Expr*>(expression), plan) : nullptr;
}

// --- from the bound to a limit

// The value of an expression of type float4 or float8; false: null.
bool evaluate_number(ExprState* state, ExprContext* context, double* number) {
    bool is_null;
    const Datum value = ExecEvalExprSwitchContext(state, context, &is_null);
    if (is_null) return false;
    *number = exprType(reinterpret_cast<const Node*>(state->expr)) == FLOAT4OID
                  ? static_cast<double>(DatumGetFloat4(value))
                  : DatumGetFloat8(value);
    return true;
}

// The greatest distance that passes the condition; -infinity: a comparison with null passes no row.
// NaN and infinity bound nothing: PostgreSQL sorts NaN above all numbers.
double greatest_passing(const BoundState& bound, ExprContext* context) {
    double value;
    double minuend = 0;
    if (!evaluate_number(bound.value, context, &value) ||
        (bound.minuend && !evaluate_number(bound.minuend, context, &minuend)))
        return -infinity;
    if (!bound.of_similarity) return value;
    // The executor rounds minuend - d before it compares; this difference is rounded as well.
    constexpr double rounding = 4 * std::numeric_limits<double>::epsilon();
    return minuend - value + rounding * (std::abs(minuend) + std::abs(value));
}

// The greatest exact_distance() of rows whose operator distance is at most `r`, with a margin for
// rounding.
double exact_bound(Metric metric, double r) {
    if (std::isinf(r)) return r;
    switch (metric) {
        case Metric::l2:
            return r < 0 ? -infinity : r * r * (1 + 1e-9);
        case Metric::inner_product:
            return r + 1e-9 * std::abs(r);
        case Metric::cosine:
            // Rounding may carry exact_distance() outside [0, 2]; the operator clamps its result.
            if (r < 0) return -infinity;
            return r >= 2 ? infinity : r + 1e-6;
        case Metric::l1:
            break;  // no index supports it
    }
    pg_unreachable();
}

// Gives the first shell the binary exponent `width`. Shells that become too narrow are merged into
// the last one.
void widen_shells(DistanceBound* bound, int width) {
    Differences* within = bound->within;
    constexpr int last = DistanceBound::shells - 1;
    for (int i = 0; i <= last && bound->widest < width; ++i, ++bound->widest) {
        within[last].add(within[last - 1]);
        std::move_backward(within, within + last - 1, within + last);
        within[0] = {};
    }
    bound->widest = width;
}

// The shell of a row within the bound. Widens the shells if the row lies deeper than all of them.
int shell_of(DistanceBound* bound, double exact) {
    constexpr int last = DistanceBound::shells - 1;
    if (!(exact < bound->distance)) return last;
    int width;
    std::frexp(bound->distance - exact, &width);
    if (width > bound->widest) widen_shells(bound, width);
    return std::min(bound->widest - width, last);
}

// The least depth inside the bound of rows in this shell or in the wider ones before it.
double depth_of(const DistanceBound& bound, int shell) {
    return shell + 1 < DistanceBound::shells ? std::ldexp(0.5, bound.widest - shell) : 0;
}

bool farther(const DistanceBound::Difference& a, const DistanceBound::Difference& b) {
    return a.exact < b.exact;
}

}  // namespace

bool bounds_distance(const Expr* condition, const Expr* distance) {
    return bound_in(condition, distance).value != nullptr;
}

List* init_bounds(IndexScanState* scan) {
    const IndexScan* plan = reinterpret_cast<const IndexScan*>(scan->ss.ps.plan);
    if (list_length(plan->indexorderbyorig) != 1) return NIL;
    const Expr* distance = static_cast<const Expr*>(linitial(plan->indexorderbyorig));
    List* bounds = NIL;
    for (int i = 0; i < list_length(plan->scan.plan.qual); ++i) {
        const Expr* condition = static_cast<const Expr*>(list_nth(plan->scan.plan.qual, i));
        const BoundForm form = bound_in(condition, distance);
        if (!form.value) continue;
        auto* bound = static_cast<BoundState*>(palloc(sizeof(BoundState)));
        *bound = {init_number(form.value, &scan->ss.ps), init_number(form.minuend, &scan->ss.ps),
                  form.of_similarity};
        bounds = lappend(bounds, bound);
    }
    return bounds;
}

DistanceBound evaluate_bounds(List* bounds, IndexScanState* scan, Metric metric, double recall) {
    DistanceBound result = {};
    result.distance = infinity;
    result.widest = std::numeric_limits<double>::min_exponent;
    result.scaled = normalizes(metric);
    result.missing = (1 - recall) / 4;
    for (int i = 0; i < list_length(bounds); ++i) {
        const auto* bound = static_cast<const BoundState*>(list_nth(bounds, i));
        const double r = greatest_passing(*bound, scan->ss.ps.ps_ExprContext);
        if (!(r < infinity)) continue;
        result.given = true;
        result.of_similarity |= bound->of_similarity;
        result.distance = std::min(result.distance, exact_bound(metric, r));
    }
    return result;
}

void Differences::add(double difference) {
    // The mean of fewer differences is no measure of what is above it.
    constexpr double few = 8;
    const double higher = count < few ? 0 : difference - sum / count;
    if (higher > 0) {
        squares_above += higher * higher;
        fourths_above += higher * higher * higher * higher;
    }
    ++count;
    sum += difference;
    squares += difference * difference;
}

void Differences::add(const Differences& others) {
    count += others.count;
    sum += others.sum;
    squares += others.squares;
    squares_above += others.squares_above;
    fourths_above += others.fourths_above;
}

double Differences::greatest(double missing) const {
    const double mean = sum / count;
    const double deviation = std::sqrt(std::max(0.0, squares / count - mean * mean));
    // For normal errors, the fourth moment over the second is three times the variance. In a
    // mixture this ratio shows the wide component, even if its share is small.
    const double wide = squares_above > 0 ? std::sqrt(fourths_above / squares_above / 3) : 0;
    // Errors are sums over many bytes of a code: at most a share exp(-z^2 / 2) of them lies z
    // deviations above the mean.
    const double z = std::sqrt(-2 * std::log(missing));
    return mean + z * std::max(deviation, wide);
}

void note_ranked(DistanceBound* bound, double code, double exact) {
    if (exact <= bound->distance) {
        ++bound->found;
        ++bound->group_found;
    }
    if (bound->scaled) code /= 2;
    const double difference = code - exact;
    if (!std::isfinite(difference)) return;
    if (exact <= bound->distance) bound->within[shell_of(bound, exact)].add(difference);
    DistanceBound::Difference* nearest = bound->nearest;
    int* count = &bound->nearest_count;
    if (*count == DistanceBound::most_nearest) {
        if (!(exact < nearest[0].exact)) return;
        std::pop_heap(nearest, nearest + (*count)--, farther);
    }
    nearest[*count] = {exact, difference};
    std::push_heap(nearest, nearest + ++*count, farther);
}

double code_limit(const DistanceBound& bound) {
    if (!bound.given || bound.missing <= 0) return infinity;
    // A shell with too few rows is merged with the wider shells before it.
    double limit = -infinity;
    Differences some = {};
    for (int shell = DistanceBound::shells - 1, outer = shell; shell >= 0; --shell) {
        some.add(bound.within[shell]);
        if (some.count < DistanceBound::most_nearest) continue;
        limit =
            std::max(limit, bound.distance - depth_of(bound, outer) + some.greatest(bound.missing));
        outer = shell - 1;
        some = {};
    }
    if (std::isinf(limit)) {
        if (bound.nearest_count < DistanceBound::least_nearest) return infinity;
        some = {};
        for (int i = 0; i < bound.nearest_count; ++i) some.add(bound.nearest[i].difference);
        limit = bound.distance + some.greatest(bound.missing);
    }
    return bound.scaled ? 2 * limit : limit;
}

bool limit_has_risen(const DistanceBound& bound, double reached) {
    // Of the margin that the limit adds to the bound: a smaller rise hardly adds a row, and each
    // one walks the lists again.
    constexpr double share = 0.2;
    const double limit = code_limit(bound);
    const double added = limit - (bound.scaled ? 2 : 1) * bound.distance;
    return limit - reached > share * std::abs(added);
}

double greatest_term(const DistanceBound& bound) {
    return (bound.scaled ? 2 : 1) * bound.distance;
}

bool worth_going_on(DistanceBound* bound, double nearest_term) {
    const double found = static_cast<double>(bound->found);
    const bool worth = bound->groups == 0 || nearest_term <= greatest_term(*bound) ||
                       static_cast<double>(bound->group_found) > bound->missing * found;
    ++bound->groups;
    bound->group_found = 0;
    return worth;
}

}  // namespace pgwarp
