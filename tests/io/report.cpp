#include "kimik3/io/report.hpp"

#include <boost/test/unit_test.hpp>

#include <limits>

#include "io/files.hpp"
#include "kimik3/config/presets.hpp"

using namespace kimik3;

namespace {

constexpr double no_number = std::numeric_limits<double>::quiet_NaN();

Report some_report() { return {.title = "a run", .config = presets::golden}; }

/// Columns as kimik3-train writes them, with a loss that falls by one a step.
MetricsTable some_log(Index rows) {
    MetricsTable log{{"step", "loss", "val_loss", "lr", "gradient_norm", "tokens", "tokens_per_second"}, {}};
    log.values.resize(log.columns.size());
    for (Index row = 0; row < rows; ++row)
        for (std::size_t c = 0; c < log.columns.size(); ++c)
            log.values[c].push_back(c == 0 ? static_cast<double>(row) : c == 2 ? no_number : static_cast<double>(rows - row));
    return log;
}

/// Two routers of three experts, two sites, one KDA layer of two heads; four tokens.
Observation some_observation() {
    Observation seen{.tokens = 4};
    for (const Index layer : {1, 2}) seen.routers.push_back({layer, 3, 1, {0, 0, 2, 0}, {1, 1, 1, 1}});
    seen.depth.push_back({0, DepthSite::feed_forward, 2, {.5, .5, .25, .75, 0, 1, .25, .75}});
    seen.depth.push_back({3, DepthSite::output, 1, {1, 1, 1, 1}});
    seen.decay.push_back({0, 2, std::vector<Index>(2 * DecayHistogram::bins, 7)});
    return seen;
}

/// The data that stand in the page.
nlohmann::json data_of(const std::string& page) {
    const std::string begin = "<script type=\"application/json\" id=\"data\">";
    const std::size_t first = page.find(begin) + begin.size();
    return nlohmann::json::parse(page.substr(first, page.find("</script>", first) - first));
}

std::size_t occurrences(const std::string& text, const std::string& part) {
    std::size_t count = 0;
    for (std::size_t at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++count;
    return count;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(report)

BOOST_AUTO_TEST_CASE(a_page_holds_what_the_report_says) {
    Report r = some_report();
    r.headline = {{"loss", "2.5"}};
    r.memory_bytes = {{"weights", 1000}};
    r.curves = some_log(3);
    r.probe.emplace().add(some_observation());
    r.text = "a text";
    r.prompt = PromptView{{"a", "b", "c", "d"}, some_observation()};
    const nlohmann::json data = data_of(report_html(r));
    BOOST_CHECK_EQUAL(data["title"], "a run");
    BOOST_CHECK_EQUAL(data["headline"].dump(), R"([["loss","2.5"]])");
    BOOST_CHECK_EQUAL(data["memory"].dump(), R"([["weights",1000]])");
    BOOST_CHECK(parse_config_json(data["config"].get<std::string>()) == presets::golden);
    BOOST_CHECK_EQUAL(data["curves"]["loss"].dump(), "[3.0,2.0,1.0]");
    BOOST_CHECK_EQUAL(data["curves"]["step"].dump(), "[1.0,2.0,3.0]");  // taken, as the log on the terminal counts
    BOOST_CHECK_EQUAL(data["experts"].dump(), R"([{"layer":1,"load":[2.25,0,0.75]},{"layer":2,"load":[2.25,0,0.75]}])");
    BOOST_CHECK_EQUAL(data["depth"][0].dump(), R"({"layer":0,"site":"feed-forward","weight":[0.25,0.75]})");
    BOOST_CHECK_EQUAL(data["decay"][0]["heads"].size(), 2u);
    BOOST_CHECK_EQUAL(data["decay"][0]["heads"][1].size(), to_size(DecayHistogram::bins));
    BOOST_CHECK_EQUAL(data["prompt"]["tokens"].dump(), R"(["a","b","c","d"])");
    BOOST_CHECK_EQUAL(data["prompt"]["routers"][1]["expert"].dump(), "[0,0,2,0]");
}

BOOST_AUTO_TEST_CASE(what_is_not_given_is_null_or_empty) {
    const nlohmann::json data = data_of(report_html(some_report()));
    for (const char* part : {"curves", "load_history", "prompt"}) BOOST_TEST(data[part].is_null(), part);
    for (const char* part : {"experts", "depth", "decay", "headline", "facts"}) BOOST_TEST(data[part].empty(), part);
    Report empty_run = some_report();
    empty_run.curves = some_log(0);
    BOOST_CHECK_EQUAL(data_of(report_html(empty_run))["curves"]["loss"].dump(), "[]");
}

BOOST_AUTO_TEST_CASE(numbers_that_are_not_finite_are_null_and_the_rest_has_five_digits) {
    Report r = some_report();
    r.curves = some_log(6);
    r.curves->values[1] = {no_number, std::numeric_limits<double>::infinity(), 1.0 / 3.0, 0.0, -123456.0, 5e-324};
    BOOST_CHECK_EQUAL(data_of(report_html(r))["curves"]["loss"].dump(), "[null,null,0.33333,0,-123460.0,5e-324]");
}

BOOST_AUTO_TEST_CASE(no_text_of_a_user_is_markup) {
    const std::string usual = report_html(some_report());
    const std::string nasty = "</script><script>alert(1)</script><!-- <b>&\"'\\\n\xff\xe2\x80\xa8 --> {{}}";
    Report r = some_report();
    r.title = r.command = r.text = nasty;
    r.facts = r.headline = {{nasty, nasty}};
    r.memory_bytes = {{nasty, 1}};
    r.prompt = PromptView{std::vector<std::string>(4, nasty), some_observation()};
    const std::string page = report_html(r);
    for (const char* mark : {"<script", "</script", "<!--", "<b>"})
        BOOST_CHECK_EQUAL(occurrences(page, mark), occurrences(usual, mark));
    const std::string replaced = "</script><script>alert(1)</script><!-- <b>&\"'\\\n\xef\xbf\xbd\xe2\x80\xa8 --> {{}}";
    const nlohmann::json data = data_of(page);
    BOOST_CHECK_EQUAL(data["title"], replaced);
    BOOST_CHECK_EQUAL(data["prompt"]["tokens"][3], replaced);
}

BOOST_AUTO_TEST_CASE(a_page_asks_no_network_for_anything) {
    const std::string page = report_html(some_report());
    BOOST_TEST(page.find("default-src 'none'") != page.npos);
    for (const char* ask : {"src=", "@import", "url(", "fetch(", "XMLHttpRequest", "https:", "import("})
        BOOST_TEST(page.find(ask) == page.npos, ask);
    BOOST_CHECK_EQUAL(occurrences(page, "http:"), 1u);  // the name of SVG, which is no address
    BOOST_CHECK_EQUAL(occurrences(page, "href="), 1u);  // an icon of no bytes
}

BOOST_AUTO_TEST_CASE(long_logs_are_thinned_to_means) {
    MetricsTable log = some_log(10);
    log.values[2][4] = 6;
    const auto [thin, every] = thinned(log, 4);
    BOOST_CHECK_EQUAL(every, 3);
    BOOST_TEST(thin["step"] == (std::vector{2.0, 5.0, 8.0, 9.0}), boost::test_tools::per_element());
    BOOST_TEST(thin["loss"] == (std::vector{9.0, 6.0, 3.0, 1.0}), boost::test_tools::per_element());
    BOOST_CHECK(std::isnan(thin["val_loss"][0]) && std::isnan(thin["val_loss"][3]));
    BOOST_CHECK_EQUAL(thin["val_loss"][1], 6.0);
    BOOST_CHECK_EQUAL(thinned(log, 10).second, 1);
    BOOST_CHECK_EQUAL(thinned(some_log(0), 10).first.rows(), 0);
    BOOST_CHECK_THROW(thinned(log, 0), Error);
    Report r = some_report();
    r.curves = some_log(100000);
    BOOST_TEST(report_html(r).size() < 200000u);
}

BOOST_AUTO_TEST_CASE(loads_over_time_are_those_of_the_same_routers) {
    Report r = some_report();
    r.probe.emplace().add(some_observation());
    MetricsTable history{{"step"}, {{0, 1}}};
    for (const std::string& name : load_columns(*r.probe)) history.columns.push_back(name);
    for (double first = 1; first <= 6; ++first) history.values.push_back({first, 10 * first});
    r.load_history = history;
    const nlohmann::json layers = data_of(report_html(r))["load_history"]["layers"];
    BOOST_CHECK_EQUAL(layers[1].dump(), R"({"layer":2,"load":[[4.0,40.0],[5.0,50.0],[6.0,60.0]]})");
    BOOST_CHECK_EQUAL(*load_row(*r.probe)[3], 2.25);
    r.load_history->columns.back() = "layer_2_expert_3";
    BOOST_CHECK_THROW(report_html(r), Error);
}

BOOST_AUTO_TEST_CASE(a_prompt_has_a_text_for_each_token) {
    Report r = some_report();
    r.prompt = PromptView{{"a"}, some_observation()};
    BOOST_CHECK_THROW(report_html(r), Error);
}

BOOST_AUTO_TEST_CASE(a_page_is_written_whole) {
    const test::TemporaryFolder folder;
    write_report(folder / "r.html", some_report());
    BOOST_CHECK_EQUAL(test::get(folder / "r.html"), report_html(some_report()));
    BOOST_CHECK_THROW(write_report(folder / "none/r.html", some_report()), Error);
}

BOOST_AUTO_TEST_SUITE_END()
