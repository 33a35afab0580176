#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "kernels/distance.h"
#include "kernels/list_levels.h"
#include "extension/index/list_order.h"
#include "extension/index/model.h"

namespace pgwarp {

namespace {

void add_lists_of(Relation index, const MetaPage& meta, uint32 parent, ListOrder* order) {
    const uint32 first = order->parents[parent].first;
    const uint32 end = order->parents[parent + 1].first;
    read_list_terms(index, meta, order->query, first, end, order->terms);
    for (uint32 list = first; list < end; ++list) order->order[order->compared++] = list;
}

// Brings more of the parents left into their order.
void sort_parents(const MetaPage& meta, ListOrder* order) {
    constexpr uint32 least = 32;
    const float* terms = order->parent_terms;
    uint32* begin = order->parent_order + order->next_parent;
    const uint32 left = meta.parents - order->next_parent;
    const uint32 more = std::min(left, std::max(least, order->next_parent));
    std::partial_sort(begin, begin + more, begin + left, [terms](uint32 a, uint32 b) {
        return terms[a] < terms[b] || (terms[a] == terms[b] && a < b);
    });
    order->sorted_parents = order->next_parent + more;
}

// No list of the parent has a lesser term.
double least_term(const MetaPage& meta, const ListOrder& order, uint32 parent, double query_norm) {
    const double term = order.parent_terms[parent];
    const double radius = order.parents[parent].radius;
    if (!has_norms(meta.metric)) return term - query_norm * radius;
    const double between = std::max(0.0, std::sqrt(std::max(0.0, term)) - radius);
    return between * between;
}

}  // namespace

ListOrder alloc_list_order(const MetaPage& meta) {
    ListOrder order = {};
    order.terms = static_cast<float*>(palloc(Max(meta.lists, 1u) * sizeof(float)));
    order.order = static_cast<uint32*>(palloc(Max(meta.lists, 1u) * sizeof(uint32)));
    if (meta.parents == 0) return order;
    order.parent_terms = static_cast<float*>(palloc(meta.parents * sizeof(float)));
    order.parent_order = static_cast<uint32*>(palloc(meta.parents * sizeof(uint32)));
    order.parents =
        static_cast<ParentPlace*>(palloc((Size{meta.parents} + 1) * sizeof(ParentPlace)));
    return order;
}

void begin_list_order(Relation index, const MetaPage& meta, const float* query, ListOrder* order) {
    order->query = query;
    order->compared = order->next_parent = order->sorted_parents = 0;
    if (meta.parents == 0) {
        read_list_terms(index, meta, query, order->terms);
        for (uint32 i = 0; i < meta.lists; ++i) order->order[i] = i;
        order->compared = meta.lists;
        return;
    }
    read_parent_places(index, meta, order->parents);
    read_parent_terms(index, meta, query, order->parent_terms);
    for (uint32 i = 0; i < meta.parents; ++i) order->parent_order[i] = i;
}

void compare_lists(Relation index, const MetaPage& meta, ListOrder* order, uint32 wanted) {
    while (order->compared < wanted && order->next_parent < meta.parents) {
        if (order->next_parent >= order->sorted_parents) sort_parents(meta, order);
        add_lists_of(index, meta, order->parent_order[order->next_parent++], order);
    }
}

void order_lists(Relation index, const MetaPage& meta, ListOrder* order, uint32 begin, uint32 end) {
    compare_lists(index, meta, order, static_cast<uint32>(lists_to_compare(end, meta.lists)));
    const float* terms = order->terms;
    std::partial_sort(order->order + begin, order->order + end, order->order + order->compared,
                      [terms](uint32 a, uint32 b) {
                          return terms[a] < terms[b] || (terms[a] == terms[b] && a < b);
                      });
}

float nearest_compared(const ListOrder& order, uint32 begin) {
    float nearest = std::numeric_limits<float>::infinity();
    for (uint32 i = begin; i < order.compared; ++i)
        nearest = std::min(nearest, order.terms[order.order[i]]);
    return nearest;
}

float nearest_behind(Relation index, const MetaPage& meta, ListOrder* order, uint32 begin,
                     double limit) {
    float nearest = nearest_compared(*order, begin);
    if (order->next_parent >= meta.parents || nearest <= limit) return nearest;
    const double query_norm = std::sqrt(squared_norm(order->query, meta.code_dims));
    for (uint32 i = order->next_parent; i < meta.parents && !(nearest <= limit); ++i) {
        const uint32 parent = order->parent_order[i];
        if (!(least_term(meta, *order, parent, query_norm) <= limit)) continue;
        const uint32 before = order->compared;
        std::swap(order->parent_order[i], order->parent_order[order->next_parent]);
        order->sorted_parents = ++order->next_parent;
        add_lists_of(index, meta, parent, order);
        nearest = std::min(nearest, nearest_compared(*order, before));
    }
    return nearest;
}

}  // namespace pgwarp
