#include <boost/test/unit_test.hpp>

#include <array>
#include <limits>

#include "support/golden.hpp"

using namespace kimik3;
using namespace kimik3::test;

BOOST_AUTO_TEST_SUITE(golden_files)

BOOST_AUTO_TEST_CASE(the_relative_error_is_the_largest_difference_over_the_largest_expected_value) {
    using Values = std::vector<double>;
    constexpr double inf = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
    BOOST_TEST(relative_error(Values{1, 2, 3}, Values{1, 2, 4}) == 0.25);
    BOOST_TEST(relative_error(Values{0.5, 0}, Values{0, 0}) == 0.5);
    BOOST_TEST(relative_error(Values{}, Values{}) == 0.0);
    BOOST_TEST(relative_error(Values{1, 2}, Values{1}) == inf);
    for (double bad : {nan, inf}) {
        BOOST_TEST(relative_error(Values{1, bad}, Values{1, 1}) == inf);
        BOOST_TEST(relative_error(Values{1, 1}, Values{1, bad}) == inf);
        BOOST_TEST(relative_error(Values{bad}, Values{bad}) == inf);
    }
    BOOST_TEST(relative_error(std::vector<float>{0.5f}, std::array<double, 1>{0.25}) == 1.0);
}

BOOST_AUTO_TEST_CASE(golden_files_are_read_by_name) {
    const Golden model("model");
    BOOST_TEST(model.has("in.tokens"));
    BOOST_TEST(!model.has("in.tokens "));
    const std::vector<Index>& shape = model.shape("in.tokens");
    BOOST_REQUIRE(shape.size() == 2u);
    BOOST_TEST(static_cast<Index>(model.ids("in.tokens").size()) == shape[0] * shape[1]);
    BOOST_TEST((model.names("in.") == std::vector<std::string>{"in.targets", "in.tokens"}));
    for (const std::string& name : model.names("grad."))
        KIMIK3_CHECK_CLOSE_NAMED(name, model.values(name), model.values(name), 0.0);
    BOOST_CHECK_THROW(model.values("in.tokens"), Error);
    BOOST_CHECK_THROW(Golden("no_such_file"), Error);
}

BOOST_AUTO_TEST_SUITE_END()
