#include "kimik3/text/utf8.hpp"

#include <boost/test/unit_test.hpp>

using namespace kimik3;

namespace {

std::string replaced(std::string_view bytes) {
    Utf8Stream stream;
    std::string out = stream.push(bytes);
    return out + stream.flush();
}

const std::string mark = "\xEF\xBF\xBD";

}  // namespace

BOOST_AUTO_TEST_SUITE(utf8)

BOOST_AUTO_TEST_CASE(every_code_point_but_the_surrogates_is_well_formed) {
    for (std::uint32_t code = 0; code <= 0x10ffff; ++code) {
        if (code >= 0xd800 && code <= 0xdfff) continue;
        std::string text;
        detail::append_utf8(text, code);
        if (!is_utf8(text) || detail::code_point_at(text, 0) != code) BOOST_FAIL("code point " << code);
    }
}

BOOST_AUTO_TEST_CASE(overlong_forms_surrogates_and_what_is_above_10ffff_are_ill_formed) {
    for (const char* bytes : {"\xC0\xAF", "\xC1\xBF", "\xE0\x9F\xBF", "\xED\xA0\x80", "\xED\xBF\xBF",
                              "\xF0\x8F\xBF\xBF", "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xFF", "\x80"})
        BOOST_TEST(!is_utf8(bytes));
}

BOOST_AUTO_TEST_CASE(replacement_marks_one_maximal_subpart_each) {
    BOOST_TEST(replaced("\xF0\x9F\x98" "A") == mark + "A");
    BOOST_TEST(replaced("\xE2\x80") == mark);
    BOOST_TEST(replaced("\xC0\xAF") == mark + mark);
    BOOST_TEST(replaced("\xED\xA0\x80") == mark + mark + mark);
    BOOST_TEST(replaced("\xE2\x80\xE2\x80\xA6\xF5") == mark + "\xE2\x80\xA6" + mark);
    BOOST_TEST(replaced("plain \xC3\xA9") == "plain \xC3\xA9");
}

BOOST_AUTO_TEST_CASE(a_stream_is_well_formed_at_every_moment_and_equal_at_every_split) {
    const std::string text = "a\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80\xE2\x80z\xED\xA0\x80\xF4\x90\xF0\x9F";
    for (std::size_t first = 0; first <= text.size(); ++first) {
        for (std::size_t second = first; second <= text.size(); ++second) {
            Utf8Stream stream;
            std::string all;
            for (const auto& part : {text.substr(0, first), text.substr(first, second - first), text.substr(second)}) {
                const std::string out = stream.push(part);
                BOOST_REQUIRE(is_utf8(out));
                all += out;
            }
            BOOST_REQUIRE_EQUAL(all + stream.flush(), replaced(text));
        }
    }
}

BOOST_AUTO_TEST_CASE(bytes_come_out_as_soon_as_they_can_no_longer_become_valid) {
    Utf8Stream stream;
    BOOST_TEST(stream.push("\xF0\x9F").empty());
    BOOST_TEST(stream.push("\x98").empty());
    BOOST_TEST(stream.push("x") == mark + "x");
    BOOST_TEST(stream.flush().empty());
}

BOOST_AUTO_TEST_SUITE_END()
