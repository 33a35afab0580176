// Filters as they are written, and the true neighbors among the rows that pass them.
#include "bench/filter.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "bench/farthest.h"
#include "bench/random.h"
#include "bench/truth.h"
#include "test/bench/files.h"

namespace pgwarp::bench {
namespace {

TEST(Filter, IsAConditionAndTheValuesOfItsParameter) {
    const Filter plain = parse_filter(" tenth = 3 AND kind <> 'a' ");
    EXPECT_EQ(plain.condition, "tenth = 3 AND kind <> 'a'");
    EXPECT_FALSE(plain.has_parameter);

    const Filter drawn = parse_filter("tenant = $2; $2 = -5..999");
    EXPECT_EQ(drawn.condition, "tenant = $2");
    EXPECT_TRUE(drawn.has_parameter);
    EXPECT_EQ(drawn.first, -5);
    EXPECT_EQ(drawn.last, 999);
    EXPECT_FALSE(drawn.is_query_number);

    const Filter numbered = parse_filter("far = $2;$2=query");
    EXPECT_TRUE(numbered.has_parameter);
    EXPECT_TRUE(numbered.is_query_number);
    EXPECT_EQ(parameter_values(numbered, 3), (std::vector<int32_t>{0, 1, 2}));
}

TEST(Filter, BecomesAWhereClauseWithATypedParameter) {
    EXPECT_EQ(where_clause({}), "");
    EXPECT_EQ(where_clause(parse_filter("a = 1 OR b = 2")), "WHERE (a = 1 OR b = 2)");
    const Filter filter = parse_filter("a > $2 AND a < $2 + 5; $2 = 0..9");
    EXPECT_EQ(where_clause(filter), "WHERE (a > $2::int AND a < $2::int + 5)");
    EXPECT_EQ(condition_with(filter, "drawn"), "a > drawn AND a < drawn + 5");
}

TEST(Filter, SaysWhatIsWrong) {
    auto error = [](const std::string& text) { return message_of([&] { parse_filter(text); }); };
    const std::vector<std::pair<std::string, std::string>> cases = {
        {"  ", "needs a condition"},
        {"; $2 = 0..9", "needs a condition"},
        {"a = $2", "write \"a = $2; $2 = 0..999\""},
        {"a = $2;", "needs values"},
        {"a = 3; $2 = 0..9", "\"a = 3\" has no $2"},
        {"a = $2; 0..9", "does not say what $2 is"},
        {"a = $2; $3 = 0..9", "does not say what $2 is"},
        {"a = $2; $2 = 9..0", "is no range of integers"},
        {"a = $2; $2 = 0..x", "is no range of integers"},
        {"a = $2; $2 = 0..99999999999", "is no range of integers"},
        {"a = $2; $2 = 7", "is no range of integers"},
    };
    for (const auto& [text, wanted] : cases)
        EXPECT_NE(error(text).find(wanted), std::string::npos) << text << "\n" << error(text);
}

TEST(Filter, DrawsTheSameValuesEachTime) {
    const Filter filter = parse_filter("a = $2; $2 = -3..3");
    const std::vector<int32_t> values = parameter_values(filter, 1000);
    ASSERT_EQ(values.size(), 1000u);
    EXPECT_EQ(*std::min_element(values.begin(), values.end()), -3);
    EXPECT_EQ(*std::max_element(values.begin(), values.end()), 3);
    EXPECT_EQ(parameter_values(filter, 1000), values);
    EXPECT_EQ(parameter_values(parse_filter("a = $2; $2 = 7..7"), 2), (std::vector<int32_t>{7, 7}));
}

Vectors random_vectors(size_t rows, uint64_t seed) {
    Random random(seed);
    Vectors vectors{rows, 3, std::vector<float>(rows * 3)};
    for (float& value : vectors.values) value = float(random.uniform());
    return vectors;
}

// The nearest of `rows`, by a sort of all of them.
std::vector<int32_t> naive(const Vectors& base, std::span<const float> query, const Rows& rows,
                           size_t k) {
    std::vector<std::pair<double, int32_t>> ranked;
    for (const int32_t row : rows)
        ranked.emplace_back(distance(Metric::l2, query, base.row(size_t(row))), row);
    std::sort(ranked.begin(), ranked.end());
    std::vector<int32_t> nearest;
    for (size_t i = 0; i < std::min(k, ranked.size()); i++) nearest.push_back(ranked[i].second);
    return nearest;
}

class TruthTest : public testing::Test {
  protected:
    void rank(Truth& truth) const {
        rank_passing(truth, Metric::l2, base_, queries_, 10, 2);
        ASSERT_EQ(truth.neighbors.size(), queries_.rows);
    }

    // Every step-th row, from `first` on.
    Rows every(size_t step, size_t first) const {
        Rows rows;
        for (size_t row = first; row < base_.rows; row += step) rows.push_back(int32_t(row));
        return rows;
    }

    const Vectors base_ = random_vectors(3000, 1);
    const Vectors queries_ = random_vectors(70, 2);
};

TEST_F(TruthTest, IsAmongTheRowsThatPass) {
    for (const size_t step : {1, 10, 1000}) {  // all rows; a tenth; fewer than k
        Truth truth;
        truth.filter = parse_filter("a = 1");
        truth.passing = {every(step, step / 2)};
        rank(truth);
        EXPECT_DOUBLE_EQ(truth.share, 1.0 / double(step));
        for (size_t query = 0; query < queries_.rows; query++)
            EXPECT_EQ(truth.neighbors[query],
                      naive(base_, queries_.row(query), truth.passing[0], 10));
        EXPECT_TRUE(truth.passes(3, int32_t(step / 2 + step)));
        EXPECT_EQ(truth.passes(3, int32_t(step / 2 + step + 1)), step == 1);
    }
}

TEST_F(TruthTest, FollowsTheValueOfEachQuery) {
    std::vector<int32_t> values(queries_.rows, 40);
    values[1] = values[69] = -7;
    values[2] = 99;
    Truth truth;
    set_values(truth, values);
    EXPECT_EQ(truth.distinct, (std::vector<int32_t>{-7, 40, 99}));
    truth.passing = {every(2, 1), every(5, 0), {}};  // for 99, none
    rank(truth);
    for (size_t query = 0; query < queries_.rows; query++) {
        const Rows& rows = truth.passing[values[query] == -7 ? 0 : values[query] == 40 ? 1 : 2];
        EXPECT_EQ(truth.rows_of(query), &rows);
        EXPECT_EQ(truth.neighbors[query], naive(base_, queries_.row(query), rows, 10));
    }
    EXPECT_NEAR(truth.share, (2 * 0.5 + 67 * 0.2) / 70, 1e-12);
    EXPECT_TRUE(truth.passes(1, 3));
    EXPECT_FALSE(truth.passes(0, 3));
    EXPECT_TRUE(truth.passes(0, 5));
    EXPECT_FALSE(truth.passes(2, 5));
}

TEST_F(TruthTest, LabelsAreFarFromTheirQueries) {
    const double share = 0.02;  // 60 rows
    const std::vector<int32_t> labels = farthest_labels(Metric::l2, base_, queries_, share, 2);
    ASSERT_EQ(labels.size(), base_.rows);
    std::vector<size_t> given(queries_.rows);
    std::vector<bool> far(base_.rows);  // from any query
    for (size_t query = 0; query < queries_.rows; query++) {
        std::vector<int32_t> ranked =
            naive(base_, queries_.row(query), every(1, 0), base_.rows);  // nearest first
        const Rows farthest(ranked.end() - 60, ranked.end());
        for (const int32_t row : farthest) far[size_t(row)] = true;
        for (size_t row = 0; row < base_.rows; row++) {
            if (labels[row] != int32_t(query)) continue;
            given[query]++;
            EXPECT_NE(std::find(farthest.begin(), farthest.end(), int32_t(row)), farthest.end());
        }
    }
    for (size_t row = 0; row < base_.rows; row++) EXPECT_EQ(labels[row] >= 0, far[row]);
    // In three dimensions, the far rows are those in the corners, and few for 70 queries.
    EXPECT_GT(*std::min_element(given.begin(), given.end()), 0u);
    // Alone, a query gets all of its farthest.
    const std::vector<int32_t> alone =
        farthest_labels(Metric::l2, base_, {1, 3, {0.5f, 0.5f, 0.5f}}, share, 1);
    EXPECT_EQ(std::count(alone.begin(), alone.end(), 0), 60);
    EXPECT_EQ(std::count(alone.begin(), alone.end(), -1), 2940);
}

TEST_F(TruthTest, NeedsARowThatPasses) {
    Truth truth;
    truth.filter = parse_filter("a = 1");
    truth.passing = {{}};
    EXPECT_EQ(message_of([&] { rank_passing(truth, Metric::l2, base_, queries_, 10, 1); }),
              "no row passes the filter \"a = 1\"");
}

TEST_F(TruthTest, WithoutAFilterAllRowsPass) {
    const Truth truth = plain_truth({2, 3, {5, 6, 7, 1, 2, 3}}, 2);
    EXPECT_EQ(truth.neighbors, (std::vector<std::vector<int32_t>>{{5, 6}, {1, 2}}));
    EXPECT_EQ(plain_truth({1, 1, {5}}, 2).neighbors, (std::vector<std::vector<int32_t>>{{5}}));
    EXPECT_EQ(truth.share, 1);
    EXPECT_EQ(truth.rows_of(1), nullptr);
    EXPECT_TRUE(truth.passes(1, 17));
}

}  // namespace
}  // namespace pgwarp::bench
