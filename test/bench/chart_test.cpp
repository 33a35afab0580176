// What the pictures contain: lines in order, labels, and text that does not break the SVG.
#include "bench/chart.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <regex>
#include <sstream>

namespace pgwarp::bench {
namespace {

using Texts = std::vector<std::string>;
using Speeds = std::vector<std::pair<unsigned, double>>;

Point point(const std::string& probes, double recall, const Speeds& speeds) {
    Point point;
    point.settings = {{"probes", probes}};
    point.accuracy.recall = recall;
    for (const auto& [clients, speed] : speeds) {
        Round round;
        round.queries_per_second = speed;
        point.speeds.push_back({clients, {round}});
    }
    return point;
}

SystemResult system_of(const std::string& name, const std::vector<Point>& points) {
    SystemResult result;
    result.name = name;
    result.points = points;
    return result;
}

RunInfo info() {
    RunInfo info;
    info.data = "set";
    info.rows = 1000;
    info.dims = 8;
    info.metric = "l2";
    info.k = 10;
    return info;
}

std::string clients_chart(const std::vector<SystemResult>& results) {
    std::ostringstream out;
    print_clients_chart(out, info(), results);
    return out.str();
}

std::string filters_chart(const std::vector<SystemResult>& results) {
    std::ostringstream out;
    print_filters_chart(out, info(), results);
    return out.str();
}

Point filtered(const std::string& filter, double share, Point point, bool reach = false) {
    point.filter = filter;
    point.share = share;
    point.reach = reach;
    return point;
}

std::string recall_chart(const std::vector<SystemResult>& results) {
    std::ostringstream out;
    print_chart(out, info(), results);
    return out.str();
}

// The first group of each match.
Texts matches(const std::string& svg, const std::string& pattern) {
    const std::regex regex(pattern);
    Texts found;
    for (std::sregex_iterator at(svg.begin(), svg.end(), regex), end; at != end; ++at)
        found.push_back((*at)[1]);
    return found;
}

Texts titles(const std::string& svg) {
    return matches(svg, "<title>([^<]*)</title>");
}

Texts labels(const std::string& svg) {
    return matches(svg, "<text [^>]*>([^<]*recall 0[^<]*)</text>");
}

std::vector<double> numbers(const Texts& texts) {
    std::vector<double> values;
    for (const std::string& text : texts) values.push_back(std::stod(text));
    return values;
}

bool has(const std::string& svg, const std::string& text) {
    return svg.find(text) != std::string::npos;
}

TEST(ClientsChart, ALineGoesFromFewClientsToMany) {
    const std::string svg = clients_chart(
        {system_of("ours", {point("3", 0.95, {{8, 400}, {1, 100}, {128, 500}, {2, 200}})})});
    EXPECT_EQ(titles(svg), (Texts{"ours: probes=3, recall 0.9500, 1 client: 100 queries/s",
                                  "ours: probes=3, recall 0.9500, 2 clients: 200 queries/s",
                                  "ours: probes=3, recall 0.9500, 8 clients: 400 queries/s",
                                  "ours: probes=3, recall 0.9500, 128 clients: 500 queries/s"}));
    // Logarithmic in both: one doubling of seven, two more, four more; up is faster.
    const std::vector<double> x = numbers(matches(svg, "cx=\"([^\"]*)\""));
    const std::vector<double> y = numbers(matches(svg, "cy=\"([^\"]*)\""));
    ASSERT_EQ(x.size(), 4u);
    EXPECT_NEAR(x[2] - x[1], 2 * (x[1] - x[0]), 0.3);
    EXPECT_NEAR(x[3] - x[2], 4 * (x[1] - x[0]), 0.3);
    EXPECT_NEAR(y[0] - y[1], y[1] - y[2], 0.3);
    EXPECT_TRUE(std::is_sorted(y.rbegin(), y.rend()));
    EXPECT_EQ(matches(svg, "text-anchor=\"middle\">([0-9]+)<"), (Texts{"1", "2", "8", "128"}));
    EXPECT_TRUE(has(svg, "set, 1000 x 8, l2, k = 10"));
}

TEST(ClientsChart, EverySettingsOfASystemIsALine) {
    const std::string svg =
        clients_chart({system_of("ours", {point("1", 0.8, {{1, 300}, {2, 600}}),
                                          point("3", 0.95, {{1, 100}, {2, 200}})}),
                       system_of("peer", {point("9", 0.9, {{1, 50}, {2, 90}})})});
    EXPECT_EQ(labels(svg), (Texts{"ours: probes=1, recall 0.8000", "ours: probes=3, recall 0.9500",
                                  "peer: probes=9, recall 0.9000"}));
    // Of one system: one colour, different dashes.
    EXPECT_EQ(matches(svg, "<polyline [^>]*stroke=\"([^\"]*)\""),
              (Texts{"#0072b2", "#0072b2", "#d55e00"}));
    EXPECT_EQ(matches(svg, "<polyline [^>]*stroke-width=\"2\"([^/]*)/>"),
              (Texts{"", " stroke-dasharray=\"7 3\"", ""}));
}

TEST(ClientsChart, LabelsDoNotCoverEachOther) {
    std::vector<Point> points;
    for (int i = 0; i < 40; i++)
        points.push_back(point(std::to_string(i), 0.9, {{1, 100.0 + i}, {4, 300.0 - i}}));
    const std::string svg = clients_chart({system_of("ours", points)});
    std::vector<double> places =
        numbers(matches(svg, "y=\"([^\"]*)\" text-anchor=\"start\">ours: "));
    ASSERT_EQ(places.size(), 40u);
    EXPECT_TRUE(std::is_sorted(places.begin(), places.end()));  // as the lines' ends are
    for (size_t i = 1; i < places.size(); i++) EXPECT_GE(places[i] - places[i - 1], 16);
    const double height = numbers(matches(svg, " height=\"([0-9.]*)\" font-family"))[0];
    EXPECT_LT(places.back() + 40, height);
    EXPECT_GT(places.front(), 0);
}

TEST(ClientsChart, OneNumberOfClientsIsInTheMiddle) {
    const std::string svg =
        clients_chart({system_of("ours", {point("1", 0.8, {{16, 3200}}), point("2", 0.9, {})})});
    EXPECT_EQ(matches(svg, "cx=\"([^\"]*)\""), (Texts{"230.0"}));
    EXPECT_EQ(matches(svg, "text-anchor=\"middle\">([0-9]+)<"), (Texts{"16"}));
    EXPECT_GE(matches(svg, "text-anchor=\"end\">([0-9]+)<").size(), 2u);
    EXPECT_EQ(labels(svg).size(), 1u);
    EXPECT_FALSE(has(svg, "nan"));
    EXPECT_FALSE(has(svg, "inf"));
}

TEST(ClientsChart, TheSettingsOfOneSystemDifferByColour) {
    const std::string svg = clients_chart(
        {system_of("ours", {point("1", 0.8, {{1, 30}}), point("2", 0.9, {{1, 20}})})});
    EXPECT_EQ(matches(svg, "<polyline [^>]*stroke=\"([^\"]*)\""), (Texts{"#0072b2", "#d55e00"}));
    EXPECT_FALSE(has(svg, "dasharray"));
}

TEST(FiltersChart, ALineGoesFromFewRowsToMany) {
    const std::string svg =
        filters_chart({system_of("ours", {filtered("a", 0.1, point("3", 0.95, {{1, 400}})),
                                          filtered("b", 0.001, point("3", 0.55, {{1, 100}})),
                                          filtered("c", 0.01, point("3", 0.75, {{1, 200}})),
                                          point("3", 0.99, {{1, 900}})})});  // no filter: not here
    EXPECT_EQ(
        titles(svg),
        (Texts{"ours: probes=3, b (0.1%): recall 0.5500", "ours: probes=3, c (1%): recall 0.7500",
               "ours: probes=3, a (10%): recall 0.9500", "ours: probes=3, b (0.1%): 100 queries/s",
               "ours: probes=3, c (1%): 200 queries/s", "ours: probes=3, a (10%): 400 queries/s"}));
    const std::vector<double> x = numbers(matches(svg, "cx=\"([^\"]*)\""));
    const std::vector<double> y = numbers(matches(svg, "cy=\"([^\"]*)\""));
    ASSERT_EQ(x.size(), 6u);
    for (const size_t panel : {0, 3}) {
        EXPECT_NEAR(x[panel + 1] - x[panel], x[panel + 2] - x[panel + 1], 0.3);
        EXPECT_LT(x[panel], x[panel + 1]);
        EXPECT_NEAR(y[panel] - y[panel + 1], y[panel + 1] - y[panel + 2], 0.3);
        EXPECT_GT(y[panel], y[panel + 1]);
    }
    EXPECT_EQ(matches(svg, "text-anchor=\"middle\">([0-9.]+%)<"),
              (Texts{"0.1%", "1%", "10%", "0.1%", "1%", "10%"}));
    EXPECT_EQ(matches(svg, "text-anchor=\"end\">([01]\\.[0-9]+)<"),
              (Texts{"1.00", "0.90", "0.80", "0.70", "0.60", "0.50"}));
    EXPECT_EQ(matches(svg, ">(queries/s, [^<]*|recall@[0-9]+)<"),
              (Texts{"recall@10", "queries/s, 1 client"}));
    EXPECT_TRUE(has(svg, "set, 1000 x 8, l2, k = 10"));
}

TEST(FiltersChart, TheCheapestOfEachFilterAreALine) {
    const std::string svg = filters_chart(
        {system_of("ours", {filtered("a", 0.1, point("3", 0.95, {{1, 400}, {8, 900}}))}),
         system_of("peer", {filtered("a", 0.1, point("5", 0.96, {{1, 50}}), true),  // also given
                            filtered("b", 0.01, point("5", 0.7, {{1, 40}})),
                            filtered("b", 0.01, point("9", 0.95, {{1, 30}}), true)})});
    EXPECT_EQ(matches(svg, "text-anchor=\"start\">((?:ours|peer)[^<]*)<"),
              (Texts{"ours: probes=3", "peer: probes=5", "peer: cheapest"}));
    EXPECT_EQ(matches(svg, ">queries/s, ([^<]*)<"), (Texts{"1 client", "8 clients"}));
    const Texts all = titles(svg);
    EXPECT_EQ(
        (Texts{all.begin(), all.begin() + 5}),
        (Texts{"ours: probes=3, a (10%): recall 0.9500", "peer: probes=5, b (1%): recall 0.7000",
               "peer: probes=5, a (10%): recall 0.9600", "peer: probes=9, b (1%): recall 0.9500",
               "peer: probes=5, a (10%): recall 0.9600"}));
    const Texts strokes = matches(svg, "<polyline [^>]*stroke=\"([^\"]*\"[^/]*)/>");
    ASSERT_GE(strokes.size(), 3u);
    EXPECT_EQ((Texts{strokes.begin(), strokes.begin() + 3}),
              (Texts{"#0072b2\" stroke-width=\"2\"", "#d55e00\" stroke-width=\"2\"",
                     "#d55e00\" stroke-width=\"2\" stroke-dasharray=\"7 3\""}));
}

TEST(FiltersChart, OneShareIsInTheMiddleAndNoneIsNoChart) {
    const std::string svg =
        filters_chart({system_of("a & b", {filtered("x < 3", 0.5, point("3", 1, {{1, 400}})),
                                           filtered("x < 3", 0.5, point("4", 0.99, {}))})});
    EXPECT_EQ(matches(svg, "cx=\"([^\"]*)\""), (Texts{"230.0", "230.0", "230.0"}));
    EXPECT_TRUE(has(svg, "a &amp; b: probes=3, x &lt; 3 (50%): recall 1.0000"));
    EXPECT_FALSE(has(svg, "nan"));
    EXPECT_FALSE(has(svg, "inf"));
    EXPECT_EQ(filters_chart({}), "");
    EXPECT_EQ(filters_chart({system_of("ours", {point("3", 0.9, {{1, 1}})})}), "");
}

TEST(Charts, EachFilterIsASystemOfItsOwn) {
    const std::vector<SystemResult> split = split_by_filter(
        {system_of("ours", {filtered("a", 0.1, point("1", 0.9, {})),
                            filtered("b", 0.2, point("1", 0.8, {})),
                            filtered("a", 0.1, point("2", 0.7, {})), point("1", 0.6, {})}),
         system_of("failed", {}), system_of("peer", {point("1", 0.5, {})})});
    Texts names;
    std::vector<size_t> sizes;
    for (const SystemResult& result : split) {
        names.push_back(result.name);
        sizes.push_back(result.points.size());
    }
    EXPECT_EQ(names, (Texts{"ours, a", "ours, b", "ours", "failed", "peer"}));
    EXPECT_EQ(sizes, (std::vector<size_t>{2, 1, 1, 0, 1}));
    EXPECT_EQ(describe(split[0].points[1].settings), "probes=2");
}

TEST(Charts, EscapeWhatUsersWrite) {
    for (const std::string& svg :
         {clients_chart({system_of("<a> & \"b\"", {point("<&>", 0.9, {{1, 10}})})}),
          recall_chart({system_of("<a> & \"b\"", {point("<&>", 0.9, {{1, 10}})})})}) {
        EXPECT_TRUE(has(svg, "&lt;a&gt; &amp; \"b\""));
        EXPECT_TRUE(has(svg, "probes=&lt;&amp;&gt;"));
        EXPECT_FALSE(has(svg, "<a>"));
        EXPECT_FALSE(has(svg, "<&"));
    }
}

TEST(Charts, LeaveOutWhatWasNotMeasured) {
    Point failed = point("1", 0.8, {{1, 30}});
    failed.speeds.push_back({64, {}});
    for (const std::string& svg : {clients_chart({system_of("ours", {failed})}),
                                   recall_chart({system_of("ours", {failed})})}) {
        EXPECT_EQ(titles(svg).size(), 1u);
        EXPECT_FALSE(has(svg, "nan"));
        EXPECT_FALSE(has(svg, "64 clients"));
    }
    EXPECT_EQ(clients_chart({}), "");
    EXPECT_EQ(recall_chart({system_of("ours", {})}), "");
}

TEST(RecallChart, HasAPanelForEachNumberOfClients) {
    const std::string svg =
        recall_chart({system_of("ours", {point("3", 0.95, {{8, 400}, {1, 100}}),
                                         point("1", 0.80, {{8, 900}, {1, 300}})}),
                      system_of("peer", {point("9", 0.99, {{2, 40}})})});
    EXPECT_EQ(matches(svg, "queries/s, ([0-9]+ clients?)<"),
              (Texts{"1 client", "2 clients", "8 clients"}));
    EXPECT_EQ(
        titles(svg),
        (Texts{"probes=1: recall 0.8000, 300 queries/s", "probes=3: recall 0.9500, 100 queries/s",
               "probes=9: recall 0.9900, 40.0 queries/s", "probes=1: recall 0.8000, 900 queries/s",
               "probes=3: recall 0.9500, 400 queries/s"}));
    EXPECT_TRUE(has(svg, ">ours</text>"));
    EXPECT_TRUE(has(svg, ">peer</text>"));
}

TEST(RecallChart, ALegendThatIsTooWideHasMoreLines) {
    std::vector<SystemResult> results;
    for (const char* name : {"a system of twenty-nine bytes", "b system of twenty-nine bytes",
                             "c system of twenty-nine bytes"})
        results.push_back(system_of(name, {point("1", 0.9, {{1, 10}})}));
    const std::string svg = recall_chart(results);
    EXPECT_EQ(matches(svg, "y=\"([^\"]*)\" text-anchor=\"start\">. system"),
              (Texts{"44.0", "64.0", "84.0"}));
    EXPECT_TRUE(has(svg, "translate(70,104)"));
}

}  // namespace
}  // namespace pgwarp::bench
