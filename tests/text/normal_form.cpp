#include "kimik3/text/normal_form.hpp"

#include <boost/test/unit_test.hpp>

using namespace kimik3;

namespace {

const NormalForm form;

std::string utf8_of(std::initializer_list<std::uint32_t> codes) {
    std::string out;
    for (const std::uint32_t code : codes) detail::append_utf8(out, code);
    return out;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(normal_form)

BOOST_AUTO_TEST_CASE(marks_compose_in_the_order_of_their_classes) {
    BOOST_TEST(form.apply("e\u0301", true) == "\u00e9");
    BOOST_TEST(form.apply("\u00e9", false) == "e\u0301");
    BOOST_TEST(form.apply("q\u0307\u0323", true) == "q\u0323\u0307");
    BOOST_TEST(form.apply("d\u0307\u0323", true) == "\u1e0d\u0307");
    BOOST_TEST(form.apply("a\u0328\u0301", true) == "\u0105\u0301");
    BOOST_TEST(form.apply("\u0301a", true) == "\u0301a");
    BOOST_TEST(form.apply("\u212b \u2126", true) == "\u00c5 \u03a9");
    BOOST_TEST(form.apply("plain caf\u00e9", true) == "plain caf\u00e9");
}

BOOST_AUTO_TEST_CASE(excluded_compositions_stay_apart) {
    BOOST_TEST(form.apply(utf8_of({0x958}), true) == utf8_of({0x915, 0x93c}));
    BOOST_TEST(form.apply(utf8_of({0x915, 0x93c}), true) == utf8_of({0x915, 0x93c}));
    BOOST_TEST(form.apply(utf8_of({0x2f800}), true) == utf8_of({0x4e3d}));
}

BOOST_AUTO_TEST_CASE(hangul_syllables_compose_and_decompose_by_the_formula) {
    for (std::uint32_t code = 0xac00; code < 0xac00 + 11172; ++code) {
        const std::string syllable = utf8_of({code}), parts = form.apply(syllable, false);
        if (parts.size() < 6 || form.apply(parts, true) != syllable) BOOST_FAIL("syllable " << code);
    }
    BOOST_TEST(form.apply(utf8_of({0xac00, 0x11a8}), true) == utf8_of({0xac01}));
    BOOST_TEST(form.apply(utf8_of({0xac00, 0x11a7}), true) == utf8_of({0xac00, 0x11a7}));
    BOOST_TEST(form.apply(utf8_of({0xac01, 0x11a8}), true) == utf8_of({0xac01, 0x11a8}));
}

BOOST_AUTO_TEST_CASE(both_forms_are_stable_and_lead_to_each_other) {
    for (std::uint32_t code = 0; code < 0x110000; ++code) {
        if (code >= 0xd800 && code <= 0xdfff) continue;
        const std::string text = utf8_of({code}), c = form.apply(text, true), d = form.apply(text, false);
        if (form.apply(c, true) != c || form.apply(d, false) != d || form.apply(d, true) != c ||
            form.apply(c, false) != d)
            BOOST_FAIL("code point " << code);
    }
}

BOOST_AUTO_TEST_SUITE_END()
