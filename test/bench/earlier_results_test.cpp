// What --json writes is what --from-json reads; anything else is refused with a reason.
#include "bench/earlier_results.h"

#include <map>
#include <sstream>

#include "test/bench/files.h"

namespace pgwarp::bench {
namespace {

using Texts = std::vector<std::string>;

RunInfo info() {
    RunInfo info;
    info.data = "set";
    info.rows = 1000;
    info.dims = 8;
    info.metric = "l2";
    info.k = 10;
    info.server_settings = {{"fsync", "on"}};
    return info;
}

Speed speed(unsigned clients, const std::vector<double>& rates) {
    Speed speed{clients, {}};
    for (const double rate : rates) {
        Round round;
        round.queries_per_second = rate;
        round.cpu = 1;
        speed.rounds.push_back(round);
    }
    return speed;
}

// A name that needs escapes, settings and none, all kinds of lines.
std::vector<SystemResult> results() {
    SystemResult ours;
    ours.name = "a \"b\" \\ \t \xc3\xa9";
    ours.build.build_seconds = {1.5, 2};
    ours.points = {{{{"probes", "3"}, {"list", "1,2"}},
                    true,
                    {0.9375, 0, 0, true},
                    {speed(1, {10, 30.25, 20.5}), speed(8, {70})}},
                   {{}, false, {0.5, 0, 0, true}, {speed(1, {40})}}};
    ours.missed = {{"", "probes=9 has 0.9"}, {"a = 1", "probes=9 has 0.8"}};
    ours.inserts = {{"off", 5, 1, 1, 1, {}}};
    SystemResult failed;
    failed.name = "failed";
    failed.error = "no {such} [index]";
    return {ours, failed};
}

class EarlierResultsTest : public FileTest {
  protected:
    std::string write_json(const std::string& name, const RunInfo& run,
                           const std::vector<SystemResult>& systems) const {
        std::ostringstream out;
        print_json(out, run, systems);
        return write(name, out.str());
    }

    std::string error_of(const std::string& text) const {
        const std::string file = write("a.json", text);
        return message_of([&] { EarlierResults().read(file); });
    }
};

TEST_F(EarlierResultsTest, ComeBackAsTheyWereWritten) {
    EarlierResults earlier;
    earlier.read(write_json("a.json", info(), results()));
    const std::vector<SystemResult> read = earlier.beside({});
    const SystemResult written = results()[0];
    ASSERT_EQ(read.size(), 1u);  // the other has no search
    EXPECT_EQ(read[0].name, written.name);
    ASSERT_EQ(read[0].points.size(), 2u);
    for (size_t i = 0; i < 2; i++) {
        const Point &point = read[0].points[i], &original = written.points[i];
        EXPECT_EQ(point.settings, original.settings);
        EXPECT_EQ(point.reach, original.reach);
        EXPECT_EQ(point.accuracy.recall, original.accuracy.recall);
        ASSERT_EQ(point.speeds.size(), original.speeds.size());
        for (size_t j = 0; j < point.speeds.size(); j++) {
            EXPECT_EQ(point.speeds[j].clients, original.speeds[j].clients);
            EXPECT_EQ(point.speeds[j].median().queries_per_second,
                      original.speeds[j].median().queries_per_second);
        }
    }
    EXPECT_EQ(earlier.common_run().data, "set");
    EXPECT_EQ(earlier.common_run().k, 10u);
}

TEST_F(EarlierResultsTest, HaveAPointForEachFilter) {
    SystemResult written;
    written.name = "ours";
    written.missed = {{"c = 3", "x=9 has 0.5"}};
    for (const auto& [filter, share] :
         {std::pair{"a = 1", 0.1}, {"b = \"x\"", 1.0 / 4}, {"", 1.0}}) {
        Point point;
        point.settings = {{"x", "1"}};
        point.accuracy.recall = share / 2;
        point.speeds = {speed(1, {100 * share}), speed(2, {200 * share})};
        point.filter = filter;
        point.share = share;
        written.points.push_back(point);
    }
    const std::string file = write_json("a.json", info(), {written});
    EXPECT_NE(read("a.json").find(R"("settings":"x=1","filter":"a = 1","share":0.1,)"),
              std::string::npos);
    EXPECT_NE(read("a.json").find(
                  R"({"kind":"unreached","system":"ours","filter":"c = 3","best":"x=9 has 0.5"})"),
              std::string::npos);
    EarlierResults earlier;
    earlier.read(file);
    const std::vector<SystemResult> systems = earlier.beside({});
    ASSERT_EQ(systems.size(), 1u);
    ASSERT_EQ(systems[0].points.size(), 3u);
    for (size_t i = 0; i < 3; i++) {
        const Point &point = systems[0].points[i], &original = written.points[i];
        EXPECT_EQ(point.settings, original.settings);
        EXPECT_EQ(point.filter, original.filter);
        EXPECT_EQ(point.share, original.share);
        EXPECT_EQ(point.accuracy.recall, original.accuracy.recall);
        ASSERT_EQ(point.speeds.size(), 2u);
        EXPECT_EQ(point.speeds[1].best(), original.speeds[1].best());
    }
}

TEST_F(EarlierResultsTest, FollowThoseOfThisRunUnderNamesOfTheirOwn) {
    SystemResult other = results()[0];
    other.name = "other";
    EarlierResults earlier;
    const std::string first = write_json("a.json", info(), {results()[0], other});
    const std::string second = write_json("b.json", info(), {other});
    earlier.read(first);
    earlier.read(second);
    Texts names;
    for (const SystemResult& result : earlier.beside(results())) names.push_back(result.name);
    const std::string ours = results()[0].name;
    EXPECT_EQ(names, (Texts{ours, "failed", ours + " (" + first + ")", "other",
                            "other (" + second + ")"}));
}

TEST_F(EarlierResultsTest, MustBeOnTheSameData) {
    EarlierResults earlier;
    earlier.read(write_json("a.json", info(), results()));
    earlier.check_same_data(info());
    RunInfo larger = info();
    larger.rows = 2000;
    EXPECT_NE(
        message_of([&] { earlier.check_same_data(larger); })
            .find("a.json\" has figures on other data\nDETAIL:  It has set, 1000 x 8, l2, k = "
                  "10; beside it is set, 2000 x 8, l2, k = 10."),
        std::string::npos);
    earlier.read(write_json("b.json", larger, results()));
    EXPECT_NE(message_of([&] { earlier.common_run(); }).find("other data"), std::string::npos);
}

TEST_F(EarlierResultsTest, SearchesAloneAreEnoughBesideARun) {
    EarlierResults earlier;
    earlier.read(write("a.json",
                       R"({"clients":2,"queries_per_second":7,"recall":1,"cheapest":false,)"
                       "\n"
                       R"( "settings":"x=1","system":"\u00e9\ud83d\ude00\/","kind":"search"})"));
    ASSERT_EQ(earlier.beside({}).size(), 1u);
    EXPECT_EQ(earlier.beside({})[0].name, "\xc3\xa9\xf0\x9f\x98\x80/");
    earlier.check_same_data(info());
    EXPECT_NE(message_of([&] { earlier.common_run(); }).find("kind \"run\""), std::string::npos);
}

TEST_F(EarlierResultsTest, SaysWhatIsWrongWithAFile) {
    auto search = [](const std::string& name, const std::string& value) {
        std::map<std::string, std::string> fields = {
            {"kind", "\"search\""},     {"system", "\"a\""}, {"settings", "\"x=1\""},
            {"cheapest", "false"},      {"recall", "0.5"},   {"clients", "1"},
            {"queries_per_second", "9"}};
        fields[name] = value;
        std::string text;
        for (const auto& [field, content] : fields)
            if (!content.empty()) text += (text.empty() ? "{\"" : ",\"") + field + "\":" + content;
        return text + "}";
    };
    EXPECT_EQ(error_of(search("recall", "1")), "");
    const std::vector<std::pair<std::string, std::string>> cases = {
        {"", "no search at byte 0"},
        {R"({"kind":"build","system":"a"})", "no search at byte 29"},
        {"<svg>", "expected '{' at byte 0"},
        {"[1,2]", "expected '{' at byte 0"},
        {R"({"kind":"search")", "the file ends too early at byte 16"},
        {R"({"kind":"sea)", "a string does not end"},
        {R"({"kind":"\x"})", "unknown escape"},
        {R"({"kind":"\u12"})", "hexadecimal"},
        {R"({"kind":"\ud800"})", "surrogate"},
        {R"({"kind":{}})", "expected a number"},
        {R"({"size":3})", "no text \"kind\" in the object that ends at byte 10"},
        {search("recall", "1") + "]", "expected '{'"},
        {search("recall", ""), "no number \"recall\""},
        {search("recall", "\"high\""), "no number \"recall\""},
        {search("recall", "1.5"), "\"recall\" is out of range"},
        {search("recall", "nan"), "\"recall\" is out of range"},
        {search("clients", "0"), "\"clients\" is out of range"},
        {search("clients", "1.5"), "\"clients\" is no whole number"},
        {search("cheapest", "truth"), "expected"},
        {search("cheapest", ""), "no boolean \"cheapest\""},
        {search("settings", "\"fast\""), "\"settings\" are none"},
        {search("system", "7"), "no text \"system\""},
        {search("filter", "\"a = 1\""), "no number \"share\""},
        {search("filter", "1"), "no text \"filter\""},
        {search("queries_per_second", "-1"), "\"queries_per_second\" is out of range"},
    };
    for (const auto& [text, wanted] : cases) {
        const std::string message = error_of(text);
        EXPECT_NE(message.find("a.json\": "), std::string::npos) << text << "\n" << message;
        EXPECT_NE(message.find(wanted), std::string::npos) << text << "\n" << message;
        EXPECT_NE(message.find("HINT:  --from-json takes what --json wrote."), std::string::npos);
    }
    EXPECT_NE(message_of([&] { EarlierResults().read(path("none")); }).find("No such file"),
              std::string::npos);
}

}  // namespace
}  // namespace pgwarp::bench
