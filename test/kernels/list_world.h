// Synthetic lists, and checks of one query's results against float64 distances.
#pragma once

#include "kernels/list_store.h"
#include "kernels/nibbles.h"
#include "kernels/list_scan.h"
#include "kernels/refinement.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace pgwarp {

struct ListCase {
    uint32_t dims = 32;
    uint32_t m = 8;
    uint32_t lists = 20;
    uint32_t entries = 3000;  // in all lists
    Metric metric = Metric::l2;
    size_t queries = 5;
    uint32_t k = 10;
    uint32_t probes = 5;
    bool duplicates = false;  // few different entries, so that ties are frequent
    bool additive = false;    // codewords have all dimensions
    uint32_t bits = 8;
    float shift = 0;  // added to all coordinates, to move vectors away from zero
    // Of attributes. Entries have them, and queries have conditions, where there are some.
    std::vector<uint8_t> attributes = {};
    uint64_t numbers = 100;  // attributes are below this
    bool filtered = false;   // without attributes, too
    bool refined = false;    // entries have refinements, and batches are refined
    uint32_t refined_k = 5;  // then

    friend std::ostream& operator<<(std::ostream& out, const ListCase& c) {
        return out << c.dims << " dims, m " << c.m << ", " << c.lists << " lists, " << c.entries
                   << " entries, metric " << static_cast<int>(c.metric) << ", " << c.queries
                   << " queries, k " << c.k << ", probes " << c.probes
                   << (c.duplicates ? ", duplicates" : "") << (c.additive ? ", additive" : "")
                   << ", bits " << c.bits << ", shift " << c.shift << ", " << c.attributes.size()
                   << " attributes below " << c.numbers
                   << (c.refined ? ", refined for " + std::to_string(c.refined_k) : "");
    }
};

// One list as an index would hold it.
struct TestList {
    std::vector<uint8_t> codes;  // (count)(m)
    std::vector<float> offsets;
    std::vector<uint64_t> ids;
    AttributeLayout layout;
    std::vector<uint8_t> attributes;  // (count)(entry_bytes)
    // If refined:
    std::vector<float> rows;           // (count)(dims)
    std::vector<uint8_t> refinements;  // (count)(stride)

    // Cuts it into pages of `capacity` entries and calls use(pages).
    template <typename Use>
    void with_pages(uint32_t m, uint32_t capacity, Use use) const {
        struct Page {
            std::vector<uint8_t> codes, tids, attributes;
        };
        std::vector<Page> memory;
        std::vector<ListPage> pages;
        memory.reserve(ids.size() / capacity + 1);
        for (size_t first = 0; first < ids.size(); first += capacity) {
            const auto count =
                static_cast<uint32_t>(std::min<size_t>(capacity, ids.size() - first));
            Page& page = memory.emplace_back();
            page.codes.assign(size_t{m} * capacity, 0xee);
            page.tids.resize(size_t{count} * 6);
            for (uint32_t l = 0; l < count; ++l) {
                for (uint32_t j = 0; j < m; ++j)
                    page.codes[size_t{j} * capacity + l] = codes[(first + l) * m + j];
                const uint64_t id = ids[first + l];
                const uint16_t words[3] = {static_cast<uint16_t>(id >> 32),
                                           static_cast<uint16_t>(id >> 16),
                                           static_cast<uint16_t>(id)};
                __builtin_memcpy(page.tids.data() + size_t{l} * 6, words, 6);
            }
            const uint32_t entry_bytes = layout.entry_bytes();
            page.attributes.assign(size_t{entry_bytes} * capacity, 0xee);
            for (uint32_t l = 0; l < count; ++l) {
                const uint8_t* from = attributes.data() + (first + l) * entry_bytes;
                uint32_t before = 0;
                for_each_attribute(layout, [&](uint32_t bytes) {
                    std::copy_n(
                        from + before, bytes,
                        page.attributes.data() + size_t{before} * capacity + size_t{l} * bytes);
                    before += bytes;
                });
            }
            const size_t stride = refinements.size() / ids.size();
            pages.push_back({page.codes.data(), capacity, count, offsets.data() + first,
                             page.tids.data(), page.attributes.data(),
                             stride > 0 ? refinements.data() + first * stride : nullptr});
        }
        use(std::span<const ListPage>(pages));
    }
};

class ListWorld {
  public:
    ListWorld(const ListCase& c, unsigned seed) : case_(c), random_(seed) {
        std::normal_distribution<float> normal;
        shape_ = {c.dims, c.lists, c.m, c.metric, c.bits};
        layout_.count = static_cast<uint32_t>(c.attributes.size());
        std::copy(c.attributes.begin(), c.attributes.end(), layout_.bytes);
        if (c.additive) shape_.search_rounds = 16;
        piece_of_.resize(shape_.codebook_rows());
        for (uint32_t j = 0; j < c.m; ++j)
            std::fill(piece_of_.begin() + shape_.piece_begin(j),
                      piece_of_.begin() + shape_.piece_begin(j + 1), j);
        centroids_.resize(size_t{c.lists} * c.dims);
        codebook_.resize(size_t{shape_.codebook_rows()} * codewords);
        for (float& x : centroids_) x = normal(random_) + c.shift;
        const float size = c.additive ? 0.3f / std::sqrt(static_cast<float>(c.m)) : 0.3f;
        for (float& x : codebook_) x = size * normal(random_);
        if (c.bits == 4) {
            std::vector<float> words(size_t{c.dims} * nibble_words);
            for (float& x : words) x = size * normal(random_);
            pair_nibble_words(shape_, words.data(), codebook_.data());
        }
        // Lists of different lengths: a third of them empty; one gets all entries left over.
        std::vector<uint32_t> lengths(c.lists);
        uint32_t left = c.entries;
        for (uint32_t l = 0; l < c.lists && c.lists > 1; ++l) {
            if (l % 3 == 1) continue;
            lengths[l] = std::min<uint32_t>(left, random_() % (2 * c.entries / c.lists + 1));
            left -= lengths[l];
        }
        lengths[c.lists / 2] += left;
        lists_.resize(c.lists);
        for (uint32_t l = 0; l < c.lists; ++l) lists_[l] = make_list(l, lengths[l]);
        queries_.resize(c.queries * c.dims);
        for (float& x : queries_) x = 1.2f * normal(random_) + c.shift;
        for (size_t q = 0; q < c.queries; ++q) conditions_.push_back(make_conditions());
    }

    struct QueryConditions {
        std::vector<PackedCondition> items;
        std::vector<uint64_t> values;
    };
    // Up to three, of all kinds.
    QueryConditions make_conditions() {
        QueryConditions made;
        if (layout_.count == 0) return made;
        const size_t count = 1 + random_() % 3;
        for (size_t i = 0; i < count; ++i) {
            PackedCondition condition{};
            condition.kind = static_cast<ConditionKind>(random_() % 7);
            condition.attribute = static_cast<uint8_t>(random_() % layout_.count);
            condition.low = random_() % case_.numbers;
            condition.high = condition.low + random_() % case_.numbers;
            if (condition.kind == ConditionKind::contains) condition.low &= 5;
            if (condition.kind == ConditionKind::range) {
                // Without an end, and from beyond what some or all of the widths can hold on.
                if (random_() % 4 == 0) condition.high = ~uint64_t{0};
                if (random_() % 16 == 0) condition.low = uint64_t{1} << 8 * (1 + random_() % 7);
                condition.high = std::max(condition.high, condition.low);
            }
            condition.first_value = static_cast<uint32_t>(made.values.size());
            if (condition.kind == ConditionKind::among ||
                condition.kind == ConditionKind::not_among ||
                condition.kind == ConditionKind::overlaps)
                for (uint64_t v = random_() % 8; v < case_.numbers;
                     v += 1 + random_() % (case_.numbers / 4))
                    made.values.push_back(v);
            condition.value_count =
                static_cast<uint32_t>(made.values.size()) - condition.first_value;
            made.items.push_back(condition);
        }
        return made;
    }

    TestList make_list(uint32_t list, uint32_t count) {
        TestList made;
        made.codes.resize(size_t{count} * case_.m);
        for (uint8_t& code : made.codes)
            code = static_cast<uint8_t>(case_.duplicates ? random_() % 2 * 77 : random_());
        for (uint32_t i = 0; i < count; ++i) {
            made.offsets.push_back(offset_of(list, made.codes.data() + size_t{i} * case_.m));
            made.ids.push_back(next_id_ * 0x10001 % (uint64_t{1} << 48));
            next_id_ += 1 + random_() % 5;
        }
        made.layout = layout_;
        for (uint32_t i = 0; i < count; ++i) add_attributes(&made.attributes);
        for (uint32_t i = 0; i < count && case_.refined; ++i) add_row(list, i, &made);
        return made;
    }
    // A row near what the entry's code stands for, and its refinement.
    void add_row(uint32_t list, uint32_t entry, TestList* to) {
        std::normal_distribution<float> normal(0, 0.1f);
        const uint8_t* code = to->codes.data() + size_t{entry} * case_.m;
        const float* centroid = centroids_.data() + size_t{list} * case_.dims;
        for (uint32_t d = 0; d < case_.dims; ++d)
            to->rows.push_back(centroid[d] + static_cast<float>(word(d, code)) + normal(random_));
        std::vector<uint8_t> record(refinement_stride(case_.dims));
        const RefinementHead head = encode_refinement(
            case_.metric, to->rows.data() + size_t{entry} * case_.dims, centroid, case_.dims,
            reinterpret_cast<int8_t*>(record.data() + sizeof(RefinementHead)));
        __builtin_memcpy(record.data(), &head, sizeof(head));
        to->refinements.insert(to->refinements.end(), record.begin(), record.end());
    }

    // An entry's; one in eight is null.
    void add_attributes(std::vector<uint8_t>* to) {
        std::vector<uint8_t> nulls(layout_.null_bytes());
        for (uint32_t a = 0; a < layout_.count; ++a) {
            const bool null = random_() % 8 == 0;
            const uint64_t number = null ? 0 : random_() % case_.numbers;
            if (null) nulls[a / 8] |= static_cast<uint8_t>(1 << a % 8);
            const auto* bytes = reinterpret_cast<const uint8_t*>(&number);
            to->insert(to->end(), bytes, bytes + layout_.bytes[a]);
        }
        to->insert(to->end(), nulls.begin(), nulls.end());
    }
    const AttributeLayout& attributes() const { return layout_; }
    QueryConditions& conditions(size_t query) { return conditions_[query]; }

    Quantizer quantizer() const { return {shape_, centroids_.data(), codebook_.data()}; }
    const ListCase& list_case() const { return case_; }
    std::vector<TestList>& lists() { return lists_; }
    const std::vector<float>& queries() const { return queries_; }

    void put(ListStore& store, uint32_t list) {
        lists_[list].with_pages(case_.m, 1 + random_() % 300,
                                [&](std::span<const ListPage> pages) { store.put(list, pages); });
    }
    // Adds `count` entries to a list of the world and of the store.
    void grow(ListStore& store, uint32_t list, uint32_t count) {
        const TestList more = make_list(list, count);
        TestList& here = lists_[list];
        here.codes.insert(here.codes.end(), more.codes.begin(), more.codes.end());
        here.offsets.insert(here.offsets.end(), more.offsets.begin(), more.offsets.end());
        here.ids.insert(here.ids.end(), more.ids.begin(), more.ids.end());
        here.attributes.insert(here.attributes.end(), more.attributes.begin(),
                               more.attributes.end());
        here.rows.insert(here.rows.end(), more.rows.begin(), more.rows.end());
        if (here.refinements.size() / refinement_stride(case_.dims) + more.ids.size() ==
            here.ids.size())
            here.refinements.insert(here.refinements.end(), more.refinements.begin(),
                                    more.refinements.end());
        more.with_pages(case_.m, 1 + random_() % 300,
                        [&](std::span<const ListPage> pages) { store.append(list, pages); });
    }
    void put_all(ListStore& store) {
        for (uint32_t l = 0; l < case_.lists; ++l) put(store, l);
    }

    std::unique_ptr<ListBatch> make_batch(ListStore& store) const {
        ListBatchShape shape{case_.queries, case_.k, case_.probes};
        shape.filtered = case_.filtered || layout_.count > 0;
        shape.refined = case_.refined;
        for (const QueryConditions& conditions : conditions_) {
            shape.conditions =
                std::max(shape.conditions, static_cast<uint32_t>(conditions.items.size()));
            shape.values = std::max(shape.values, static_cast<uint32_t>(conditions.values.size()));
        }
        auto batch = store.make_batch(shape);
        for (size_t q = 0; q < case_.queries; ++q) {
            const QueryConditions& conditions = conditions_[q];
            batch->wanted[q] = {.k = case_.k,
                                .probes = case_.probes,
                                .conditions = static_cast<uint32_t>(conditions_[q].items.size())};
            if (shape.refined) batch->wanted[q].refined_k = std::min(case_.k, case_.refined_k);
            std::copy(conditions.items.begin(), conditions.items.end(),
                      batch->conditions + q * shape.conditions);
            std::copy(conditions.values.begin(), conditions.values.end(),
                      batch->values + q * shape.values);
        }
        std::copy(queries_.begin(), queries_.end(), batch->queries);
        return batch;
    }

    // Distances in float64; tolerance() is the approximate error of a float32 sum.
    double term(const float* query, uint32_t list) const {
        double sum = 0;
        for (uint32_t d = 0; d < case_.dims; ++d) {
            const double q = query[d], c = centroids_[size_t{list} * case_.dims + d];
            sum += case_.metric == Metric::inner_product ? -q * c : (q - c) * (q - c);
        }
        return sum;
    }
    double distance(const float* query, uint32_t list, size_t entry) const {
        double sum = term(query, list) + lists_[list].offsets[entry];
        for (uint32_t d = 0; d < case_.dims; ++d)
            sum += double{product_factor(case_.metric)} * query[d] *
                   word(d, lists_[list].codes.data() + entry * case_.m);
        return sum;
    }
    double tolerance() const { return 2e-5 * (case_.dims + 4) * (1 + 0.1 * case_.shift); }

    // Checks a batch's results against all entries of the lists that it reports as probed.
    void check(const ListBatch& batch, size_t query,
               const std::vector<bool>* held = nullptr) const {
        const float* vector = queries_.data() + query * case_.dims;
        const ListQuery wanted = batch.wanted[query];
        const uint32_t probes = std::min(wanted.probes, case_.lists);
        const uint32_t* probed = batch.probed + query * batch.probed_stride;
        check_order_of_lists(vector, probed, probes);

        std::map<uint64_t, double> distances;
        const bool filtered = batch.shape.filtered;
        uint32_t passed = 0;
        for (uint32_t i = wanted.first_probe; i < probes; ++i) {
            if (held && !(*held)[probed[i]]) continue;
            for (size_t e = 0; e < lists_[probed[i]].ids.size(); ++e) {
                if (!passes(query, probed[i], e)) continue;
                const uint64_t tid = lists_[probed[i]].ids[e];
                const double exact = distance(vector, probed[i], e);
                ++passed;
                // Entries as far as the floor may be found or not, as rounding has it.
                if (exact > wanted.floor_distance - 2 * tolerance()) distances[tid] = exact;
            }
        }
        if (filtered) {
            EXPECT_EQ(batch.searched[query].passed, passed) << case_;
        }
        const Neighbor* found = batch.found + query * batch.found_stride;
        const uint32_t count = batch.found_counts[query];
        const auto beyond = [&](double least) {
            return static_cast<size_t>(
                std::count_if(distances.begin(), distances.end(),
                              [&](const auto& item) { return item.second > least; }));
        };
        const double floor = wanted.floor_distance;
        ASSERT_LE(count, std::min<size_t>(wanted.k, distances.size())) << case_;
        // Of many that are as far as each other, a filtered search finds all or none.
        if (!filtered || !batch.searched[query].more || !case_.duplicates) {
            ASSERT_GE(count, std::min<size_t>(wanted.k, beyond(floor + 2 * tolerance()))) << case_;
        }
        if (filtered && count < wanted.k && !case_.duplicates) {
            EXPECT_EQ(batch.searched[query].more, 0u) << case_;
        }
        for (uint32_t i = 0; i < count; ++i) {
            const auto there = distances.find(found[i].id);
            ASSERT_NE(there, distances.end()) << case_ << ": " << found[i].id;
            EXPECT_NEAR(found[i].distance, there->second, tolerance()) << case_;
            if (i == 0) continue;
            EXPECT_TRUE(
                found[i - 1].distance < found[i].distance ||
                (found[i - 1].distance == found[i].distance && found[i - 1].id < found[i].id))
                << case_;
        }
        // No missing entry is nearer than the last one found by more than rounding.
        std::map<uint64_t, bool> seen;
        for (uint32_t i = 0; i < count; ++i) EXPECT_TRUE(seen.insert({found[i].id, true}).second);
        size_t missed = 0;
        for (const auto& [id, exact] : distances)
            if (count > 0 && exact < found[count - 1].distance - 2 * tolerance() &&
                exact > floor + 2 * tolerance())
                missed += !seen.contains(id);
        EXPECT_EQ(missed, 0u) << case_;
    }

    // Of a row, by the metric's own units.
    double row_distance(const float* query, uint32_t list, size_t entry) const {
        const float* row = lists_[list].rows.data() + entry * case_.dims;
        double sum = 0;
        for (uint32_t d = 0; d < case_.dims; ++d) {
            const double q = query[d], x = row[d];
            sum += case_.metric == Metric::inner_product ? -q * x : (q - x) * (q - x);
        }
        return sum;
    }

    // Checks a refined batch against the rows. `rough`: candidates may be selected by distances
    // that are off by this share of their own.
    void check_refined(const ListBatch& batch, size_t query, double rough = 0) const {
        const float* vector = queries_.data() + query * case_.dims;
        const ListQuery wanted = batch.wanted[query];
        const uint32_t* probed = batch.probed + query * batch.probed_stride;
        struct Row {
            double code, exact;
            uint64_t id;
            bool refined;
        };
        std::vector<Row> rows;
        for (uint32_t i = 0; i < std::min(wanted.probes, case_.lists); ++i) {
            const TestList& list = lists_[probed[i]];
            for (size_t e = 0; e < list.ids.size(); ++e)
                rows.push_back({distance(vector, probed[i], e), row_distance(vector, probed[i], e),
                                list.ids[e], !list.refinements.empty()});
        }
        std::sort(rows.begin(), rows.end(),
                  [](const Row& a, const Row& b) { return a.code < b.code; });
        const size_t candidates = std::min<size_t>(wanted.k, rows.size());
        const uint32_t count = batch.found_counts[query];
        ASSERT_LE(count, candidates) << case_;
        ASSERT_GE(count, std::min<size_t>(wanted.refined_k, candidates)) << case_;
        if (candidates == 0) return;
        const double last = rows[candidates - 1].code;
        const double slack = 2 * tolerance() + rough * (std::fabs(last) + 1);
        const double left_out = batch.left_out[query];
        const Neighbor* found = batch.found + query * batch.found_stride;
        std::map<uint64_t, double> leasts;
        for (uint32_t i = 0; i < count; ++i)
            ASSERT_TRUE(leasts.insert({found[i].id, found[i].distance}).second) << case_;
        EXPECT_EQ(std::isinf(left_out), count == candidates) << case_;
        // Rows that may have been candidates, and those that surely were, nearest first.
        std::vector<Row> possible;
        for (const Row& row : rows)
            if (row.code <= last + slack) possible.push_back(row);
        std::sort(possible.begin(), possible.end(),
                  [](const Row& a, const Row& b) { return a.exact < b.exact; });
        size_t seen = 0;
        for (size_t i = 0; i < possible.size(); ++i) {
            const Row& row = possible[i];
            const bool sure = candidates == rows.size() || row.code < last - slack;
            const auto there = leasts.find(row.id);
            if (there == leasts.end()) {
                if (!sure) continue;
                EXPECT_GE(i, wanted.refined_k) << case_;
                EXPECT_GE(row.exact, left_out) << case_;
                EXPECT_TRUE(row.refined) << case_;
                continue;
            }
            ++seen;
            EXPECT_LE(there->second, row.exact) << case_;
            EXPECT_EQ(std::isinf(there->second), !row.refined) << case_;
            // Not much less, or nothing would be left out.
            if (row.refined) {
                EXPECT_GE(there->second,
                          row.exact - 0.1 * (1 + std::fabs(row.exact)) - 100 * tolerance())
                    << case_;
            }
        }
        EXPECT_EQ(seen, count) << case_;
    }

    bool passes(size_t query, uint32_t list, size_t entry) const {
        const QueryConditions& packed = conditions_[query];
        std::vector<Condition> conditions(packed.items.size());
        unpack_conditions({packed.items.data(), static_cast<uint32_t>(packed.items.size()),
                           packed.values.data(), static_cast<uint32_t>(packed.values.size())},
                          conditions.data());
        const uint8_t* attributes = lists_[list].attributes.data() + entry * layout_.entry_bytes();
        return pgwarp::passes({&layout_, attributes, 1, 1}, conditions, 0);
    }

  private:
    double word(uint32_t dimension, const uint8_t* code) const {
        if (!case_.additive)
            return codebook_[size_t{dimension} * codewords + code[piece_of_[dimension]]];
        double sum = 0;
        for (uint32_t j = 0; j < case_.m; ++j)
            sum += codebook_[(size_t{j} * case_.dims + dimension) * codewords + code[j]];
        return sum;
    }
    float offset_of(uint32_t list, const uint8_t* code) const {
        if (case_.metric == Metric::inner_product) return 0;
        double sum = 0;
        for (uint32_t d = 0; d < case_.dims; ++d) {
            const double w = word(d, code);
            sum += w * (w + 2.0 * centroids_[size_t{list} * case_.dims + d]);
        }
        return static_cast<float>(sum);
    }
    void check_order_of_lists(const float* vector, const uint32_t* probed, uint32_t probes) const {
        std::vector<bool> taken(case_.lists);
        double last = -std::numeric_limits<double>::infinity();
        for (uint32_t i = 0; i < probes; ++i) {
            ASSERT_LT(probed[i], case_.lists);
            EXPECT_FALSE(taken[probed[i]]);
            taken[probed[i]] = true;
            const double here = term(vector, probed[i]);
            EXPECT_GE(here, last - tolerance()) << case_;
            last = std::max(last, here);
        }
        for (uint32_t l = 0; l < case_.lists; ++l)
            if (!taken[l]) {
                EXPECT_GE(term(vector, l), last - tolerance()) << case_;
            }
    }

    ListCase case_;
    std::mt19937 random_;
    QuantizerShape shape_;
    AttributeLayout layout_;
    std::vector<QueryConditions> conditions_;  // (queries)
    std::vector<uint32_t> piece_of_;           // (codebook_rows)
    std::vector<float> centroids_, codebook_, queries_;
    std::vector<TestList> lists_;
    uint64_t next_id_ = 0x123456;
};

}  // namespace pgwarp
