#include "kimik3/io/mxfp4.hpp"

#include <boost/test/unit_test.hpp>

#include <cmath>

using namespace kimik3;

BOOST_AUTO_TEST_SUITE(mxfp4)

BOOST_AUTO_TEST_CASE(b41_every_code_of_mxfp4_is_its_number) {
    const float expected[] = {0, .5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -.5f, -1, -1.5f, -2, -3, -4, -6};
    for (unsigned code = 0; code < 16; ++code) {
        BOOST_TEST(e2m1_value(code) == expected[code]);
        BOOST_TEST(std::signbit(e2m1_value(code)) == (code >= 8));
    }
    std::vector<std::uint8_t> packed(32, 0x21);
    packed[16] = 0xf0;
    const std::vector<std::uint8_t> scales{127, 130};
    std::vector<float> numbers(64);
    unpack_mxfp4<float>(packed, scales, numbers.data());
    BOOST_TEST((numbers[0] == 0.5f && numbers[1] == 1.0f));      // the low nibble first
    BOOST_TEST((numbers[32] == 0.0f && numbers[33] == -48.0f));  // the second scale from the 33rd number on
    for (const int scale : {0, 1, mxfp4_largest_scale}) {
        const std::vector<std::uint8_t> all(16, 0x77), one{static_cast<std::uint8_t>(scale)};
        unpack_mxfp4<float>(all, one, numbers.data());
        BOOST_TEST(numbers[31] == std::ldexp(6.0f, scale - 127));
        BOOST_TEST(std::isfinite(numbers[31]));
    }
}

BOOST_AUTO_TEST_SUITE_END()
