#include "kimik3/train/metrics.hpp"

#include <boost/test/unit_test.hpp>
#include <cmath>
#include <limits>
#include <locale>

#include "support/refusal.hpp"

namespace fs = std::filesystem;
using namespace kimik3;
using namespace kimik3::test;

namespace {

struct Folder {
    fs::path path = fs::temp_directory_path() / fmt::format("kimik3_metrics_{}", ::getpid());
    Folder() { fs::create_directories(path); }
    ~Folder() { fs::remove_all(path); }
    fs::path operator/(const char* name) const { return path / name; }
};

void write_text(const fs::path& path, const std::string& text) { std::ofstream(path, std::ios::binary) << text; }

std::string text_of(const fs::path& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}

void add(MetricsFile& file, Index step, std::vector<std::optional<double>> values) { file.write(step, values); }

}  // namespace

BOOST_FIXTURE_TEST_SUITE(metrics, Folder)

BOOST_AUTO_TEST_CASE(a_row_is_on_its_way_when_written_and_reads_back_exactly) {
    MetricsFile file(*this / "m.csv", {"loss", "validation"}, 0);
    add(file, 0, {0.1, std::nullopt});
    add(file, 1, {1.0 / 3.0, 1e-300});
    add(file, 2, {-std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()});
    BOOST_TEST(text_of(*this / "m.csv") == "step,loss,validation\n0,0.1,\n1,0.3333333333333333,1e-300\n2,-inf,nan\n");
}

BOOST_AUTO_TEST_CASE(a_resumed_run_writes_the_header_once_and_no_step_twice) {
    {
        MetricsFile file(*this / "m.csv", {"loss"}, 0);
        for (Index step = 0; step < 12; ++step) add(file, step, {static_cast<double>(step)});
    }
    {
        MetricsFile file(*this / "m.csv", {"loss"}, 2);
        add(file, 2, {20.0});
        add(file, 3, {30.0});
    }
    BOOST_TEST(text_of(*this / "m.csv") == "step,loss\n0,0\n1,1\n2,20\n3,30\n");
    MetricsFile(*this / "m.csv", {"loss"}, 0);
    BOOST_TEST(text_of(*this / "m.csv") == "step,loss\n");
}

BOOST_AUTO_TEST_CASE(a_row_that_was_cut_off_is_dropped) {
    write_text(*this / "m.csv", "step,loss\n0,5\n1,4\n2,3.1");
    MetricsFile file(*this / "m.csv", {"loss"}, 100);
    add(file, 100, {1.0});
    BOOST_TEST(text_of(*this / "m.csv") == "step,loss\n0,5\n1,4\n100,1\n");
    write_text(*this / "h.csv", "step,lo");
    MetricsFile(*this / "h.csv", {"loss"}, 0);
    BOOST_TEST(text_of(*this / "h.csv") == "step,loss\n");
    write_text(*this / "h.csv", "my notes");
    BOOST_CHECK_THROW(MetricsFile(*this / "h.csv", {"loss"}, 0), Error);
    BOOST_TEST(text_of(*this / "h.csv") == "my notes");
}

BOOST_AUTO_TEST_CASE(other_columns_and_other_files_are_refused_and_left_alone) {
    const std::string other = "step,loss\n0,5\n";
    write_text(*this / "m.csv", other);
    const std::string columns = refusal([&] { MetricsFile(*this / "m.csv", {"loss", "lr"}, 1); });
    BOOST_TEST(columns.find("'step,loss,lr'") != std::string::npos, columns);
    BOOST_TEST(text_of(*this / "m.csv") == other);
    write_text(*this / "t.csv", "step,loss\nhello\n");
    BOOST_TEST(refusal([&] { MetricsFile(*this / "t.csv", {"loss"}, 1); }).find("'hello'") != std::string::npos);
    BOOST_CHECK_THROW(MetricsFile(*this / "no folder" / "m.csv", {"loss"}, 0), Error);
    BOOST_CHECK_THROW(MetricsFile(path, {"loss"}, 0), Error);
    BOOST_CHECK_THROW(MetricsFile(*this / "c.csv", {"a,b"}, 0), Error);
    MetricsFile file(*this / "n.csv", {"loss"}, 0);
    BOOST_CHECK_THROW(add(file, 0, {}), Error);
    BOOST_CHECK_THROW(add(file, 0, {1.0, 2.0}), Error);
}

BOOST_AUTO_TEST_CASE(a_log_reads_back_as_it_was_written) {
    {
        MetricsFile file(*this / "m.csv", {"loss", "validation"}, 0);
        add(file, 0, {1.0 / 3.0, std::nullopt});
        add(file, 7, {-std::numeric_limits<double>::infinity(), 5e-324});
    }
    const MetricsTable log = read_metrics(*this / "m.csv");
    BOOST_CHECK_EQUAL(log.rows(), 2);
    BOOST_TEST(log["step"] == (std::vector{0.0, 7.0}), boost::test_tools::per_element());
    BOOST_TEST(log["loss"] == (std::vector{1.0 / 3.0, -std::numeric_limits<double>::infinity()}),
               boost::test_tools::per_element());
    BOOST_CHECK(std::isnan(log["validation"][0]));
    BOOST_CHECK_EQUAL(log["validation"][1], 5e-324);
    BOOST_CHECK_THROW(log["speed"], Error);
}

BOOST_AUTO_TEST_CASE(a_log_that_is_not_one_is_refused_and_a_cut_off_row_is_left_out) {
    write_text(*this / "m.csv", "step,loss\n0,5\n1,4\n2,3");
    BOOST_TEST(read_metrics(*this / "m.csv")["loss"] == (std::vector{5.0, 4.0}), boost::test_tools::per_element());
    double sum = 0;
    for (const double loss : read_metrics(*this / "m.csv")["loss"]) sum += loss;  // outlives the table
    BOOST_CHECK_EQUAL(sum, 9);
    write_text(*this / "m.csv", "");
    BOOST_CHECK_EQUAL(read_metrics(*this / "m.csv").rows(), 0);
    write_text(*this / "m.csv", "step,loss\n0,5,6\n");
    BOOST_TEST(refusal([&] { read_metrics(*this / "m.csv"); }).find("a row of 3 cells: '0,5,6") != std::string::npos);
    write_text(*this / "m.csv", "step,loss\n0,fast\n");
    BOOST_TEST(refusal([&] { read_metrics(*this / "m.csv"); }).find("'fast'") != std::string::npos);
    BOOST_CHECK_THROW(read_metrics(*this / "none.csv"), Error);
}

BOOST_AUTO_TEST_CASE(b78_rows_do_not_depend_on_the_locale) {
    struct Comma : std::numpunct<char> {
        char do_decimal_point() const override { return ','; }
        char do_thousands_sep() const override { return '.'; }
        std::string do_grouping() const override { return "\3"; }
    };
    const std::locale before = std::locale::global(std::locale(std::locale::classic(), new Comma));
    {
        MetricsFile file(*this / "m.csv", {"loss"}, 0);
        add(file, 123456, {1234567.25});
    }
    MetricsFile(*this / "m.csv", {"loss"}, 123457);
    std::locale::global(before);
    BOOST_TEST(text_of(*this / "m.csv") == "step,loss\n123456,1234567.25\n");
}

BOOST_AUTO_TEST_SUITE_END()
