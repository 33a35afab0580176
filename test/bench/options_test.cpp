// The command line, the config file, the settings in them, and the percentiles of a report.
#include "bench/clock.h"
#include "bench/options.h"
#include "test/bench/files.h"

namespace pgwarp::bench {
namespace {

std::vector<std::string> described(const std::vector<Settings>& list) {
    std::vector<std::string> texts;
    for (const Settings& settings : list) texts.push_back(describe(settings));
    return texts;
}

using Texts = std::vector<std::string>;

TEST(Settings, AListOfNumbersMakesSeveral) {
    EXPECT_EQ(described(parse_settings_list("a.b = 10, 20 ; c=x")),
              (Texts{"a.b=10; c=x", "a.b=20; c=x"}));
    EXPECT_EQ(described(parse_settings_list("a=1,2;b=3,4")),
              (Texts{"a=1; b=3", "a=1; b=4", "a=2; b=3", "a=2; b=4"}));
}

TEST(Settings, OtherListsAreValues) {
    EXPECT_EQ(described(parse_settings_list("search_path=a,b; x='1,2'")),
              (Texts{"search_path=a,b; x=1,2"}));
    EXPECT_EQ(described(parse_settings_list("")), (Texts{"defaults"}));
    EXPECT_NE(message_of([] { parse_settings_list("jit"); }).find("name=value"), std::string::npos);
}

TEST(SettingsRange, StepsThroughWholeNumbers) {
    const SettingsRange range("jit=off; hnsw.ef_search=10..400");
    EXPECT_EQ(range.steps(), 391u);
    EXPECT_EQ(describe(range.at(0)), "jit=off; hnsw.ef_search=10");
    EXPECT_EQ(describe(range.at(390)), "jit=off; hnsw.ef_search=400");
}

TEST(SettingsRange, StepsThroughFractionsByTheirDigits) {
    const SettingsRange range("target=0.8..0.99");
    EXPECT_EQ(range.steps(), 20u);
    EXPECT_EQ(describe(range.at(0)), "target=0.80");
    EXPECT_EQ(describe(range.at(19)), "target=0.99");
}

TEST(SettingsRange, NeedsOneRange) {
    for (const char* text : {"a=1", "a=9..1", "a=1..2;b=1..2", "a=x..y"})
        EXPECT_THROW(SettingsRange{text}, std::runtime_error) << text;
}

class OptionsTest : public FileTest {};

TEST_F(OptionsTest, WhatComesBeforeTheFirstSystemHoldsForAll) {
    const Options options =
        parse_options({"--data", "glove", "--extension", "vector", "--clients", "1,2", "--system",
                       "a", "--index=CREATE INDEX", "--set", "x=1,2", "--system", "b",
                       "--extension", "pgwarp", "--k=5", "--reach", "x=1..9"});
    EXPECT_EQ(options.k, 5u);
    EXPECT_EQ(options.clients, (std::vector<unsigned>{1, 2}));
    ASSERT_EQ(options.systems.size(), 2u);
    EXPECT_EQ(options.systems[0].extension, "vector");
    EXPECT_EQ(options.systems[0].index, "CREATE INDEX");
    EXPECT_EQ(options.systems[0].sets.size(), 2u);
    EXPECT_EQ(options.systems[1].extension, "pgwarp");
    EXPECT_EQ(options.systems[1].index, "");
    EXPECT_TRUE(options.systems[1].sets.empty());
    EXPECT_EQ(options.systems[1].reaches.size(), 1u);
}

TEST_F(OptionsTest, AConfigFileHasTheSameOptions) {
    const std::string config = write("a.conf",
                                     "# peers\n"
                                     "data glove\n"
                                     "keep\n"
                                     "\n"
                                     "  system a\n"
                                     "  index CREATE INDEX ON items USING hnsw (v {ops})\n");
    const Options options = parse_options({"--config", config, "--set", "x=3"});
    EXPECT_TRUE(options.keep);
    ASSERT_EQ(options.systems.size(), 1u);
    EXPECT_EQ(options.systems[0].index, "CREATE INDEX ON items USING hnsw (v {ops})");
    EXPECT_EQ(describe(options.systems[0].sets[0]), "x=3");

    auto error = [&](const std::string& text) {
        return message_of([&] { parse_options({"--config", write("b.conf", text)}); });
    };
    EXPECT_NE(error("data glove\nfoo 1\n").find("b.conf:2: unknown option \"foo\""),
              std::string::npos);
    EXPECT_NE(error("data\n").find("data needs a value"), std::string::npos);
    EXPECT_NE(error("keep yes\n").find("keep takes no value"), std::string::npos);
}

TEST_F(OptionsTest, KnowsWhetherAMetricWasGiven) {
    EXPECT_FALSE(parse_options({"--data", "glove"}).metric_given);
    const Options options = parse_options({"--data", "glove", "--metric", "ip"});
    EXPECT_TRUE(options.metric_given);
    EXPECT_EQ(options.metric, Metric::inner_product);
}

TEST_F(OptionsTest, SaysWhatItDoesNotUnderstand) {
    auto error = [](std::vector<std::string> words) {
        words.insert(words.begin(), {"--data", "glove"});
        return message_of([&] { parse_options(words); });
    };
    EXPECT_EQ(error({}), "");
    EXPECT_NE(error({"--foo"}).find("unknown option \"--foo\""), std::string::npos);
    EXPECT_NE(error({"k"}).find("unknown option \"k\""), std::string::npos);
    EXPECT_NE(error({"--k"}).find("needs a value"), std::string::npos);
    EXPECT_NE(error({"--k", "ten"}).find("option k: \"ten\" is not a number"), std::string::npos);
    EXPECT_NE(error({"--k", "0"}).find("more than zero"), std::string::npos);
    EXPECT_NE(error({"--metric", "l1"}).find("unknown metric"), std::string::npos);
    EXPECT_NE(error({"--config", "/none"}).find("could not read"), std::string::npos);
    EXPECT_NE(error({"--system", "a", "--system", "a"}).find("two systems"), std::string::npos);
    EXPECT_NE(message_of([] {
                  parse_options({"--k", "1"});
              }).find("which data set"),
              std::string::npos);
}

TEST_F(OptionsTest, EarlierResultsAreDrawnBesideARunOrAlone) {
    const Options beside = parse_options({"--data", "glove", "--svg", "a.svg", "--svg-clients",
                                          "b.svg", "--from-json", "a", "--from-json", "b"});
    EXPECT_EQ(beside.clients_svg_path, "b.svg");
    EXPECT_EQ(beside.earlier_paths, (Texts{"a", "b"}));
    EXPECT_EQ(beside.systems.size(), 1u);

    EXPECT_TRUE(parse_options({"--from-json", "a", "--svg-clients", "b"}).systems.empty());
    EXPECT_NE(message_of([] {
                  parse_options({"--from-json", "a", "--svg", "b", "--system", "c"});
              }).find("which data set"),
              std::string::npos);
    EXPECT_NE(message_of([] {
                  parse_options({"--data", "glove", "--from-json", "a"});
              }).find("from-json needs --svg, --svg-clients or --svg-filters"),
              std::string::npos);
}

TEST_F(OptionsTest, FiltersHoldForAllSystems) {
    const std::string config = write("a.conf", "filter hundredth = $2; $2 = 0..99\n");
    const Options options = parse_options(
        {"--data", "glove", "--filter", "tenth = 3", "--config", config, "--system", "a",
         "--system", "b", "--filter=true", "--farthest", "0.01", "--svg-filters", "a.svg",
         "--query", "SELECT id FROM items {where} ORDER BY v <-> $1 LIMIT 1"});
    ASSERT_EQ(options.filters.size(), 3u);
    EXPECT_EQ(options.filters[0].condition, "tenth = 3");
    EXPECT_EQ(options.filters[1].condition, "hundredth = $2");
    EXPECT_EQ(options.filters[1].last, 99);
    EXPECT_EQ(options.filters[2].condition, "true");
    EXPECT_EQ(options.filters_svg_path, "a.svg");
    EXPECT_EQ(options.farthest, 0.01);
    EXPECT_TRUE(parse_options({"--from-json", "a", "--svg-filters", "b"}).systems.empty());

    auto error = [](std::vector<std::string> words) {
        words.insert(words.begin(), {"--data", "glove"});
        return message_of([&] { parse_options(words); });
    };
    EXPECT_NE(error({"--filter", "a = $2"}).find("option filter: the condition has $2"),
              std::string::npos);
    EXPECT_NE(error({"--filter", "a = 1", "--filter", " a = 1"}).find("\"a = 1\" is there twice"),
              std::string::npos);
    EXPECT_NE(error({"--farthest", "2"}).find("at most 1"), std::string::npos);
    EXPECT_NE(error({"--svg-filters", "a.svg"}).find("svg-filters needs --filter"),
              std::string::npos);
    EXPECT_NE(error({"--filter", "a = 1", "--system", "s", "--query", "SELECT 1"})
                  .find("system \"s\" has no {where}"),
              std::string::npos);
}

TEST(Percentile, IsTheSmallestThatEnoughDoNotExceed) {
    std::vector<float> values;
    for (int i = 100; i >= 1; i--) values.push_back(float(i));
    EXPECT_EQ(percentile(values, 0.50), 50);
    EXPECT_EQ(percentile(values, 0.99), 99);
    std::vector<float> one = {7}, none;
    EXPECT_EQ(percentile(one, 0.99), 7);
    EXPECT_EQ(percentile(none, 0.5), 0);
}

}  // namespace
}  // namespace pgwarp::bench
