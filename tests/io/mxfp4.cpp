#include "kimik3/io/mxfp4.hpp"

#include <boost/test/unit_test.hpp>

#include <vector>

#include "io/files.hpp"

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
    unpack_mxfp4<float>(std::vector<std::uint8_t>(16), std::vector<std::uint8_t>{mxfp4_nan_scale}, numbers.data());
    for (int i = 0; i < 32; ++i) BOOST_TEST(std::isnan(numbers[to_size(i)]));
    KIMIK3_CHECK_REFUSED(unpack_mxfp4<float>(packed, std::vector<std::uint8_t>{127}, numbers.data()),
                         "1 scales of MXFP4 belong to 16 bytes, 16 each, got 32 bytes");
}

BOOST_AUTO_TEST_CASE(b41_packing_takes_the_nearest_number_and_unpacking_inverts_it) {
    for (unsigned code = 0; code < 16; ++code) BOOST_TEST(e2m1_nibble(double{e2m1_value(code)}) == code);
    const std::pair<float, float> rounded[] = {{.25f, 0}, {.25000006f, .5f}, {.75f, 1}, {1.25f, 1}, {1.75f, 2},
                                               {2.5f, 2}, {3.5f, 4},         {5, 4},    {7, 6},     {-2.6f, -3}};
    for (const auto& [value, nearest] : rounded) BOOST_TEST(e2m1_value(e2m1_nibble(double{value})) == nearest);

    std::vector<std::uint8_t> packed(16), scales(1);
    std::vector<float> numbers(32), back(32);
    const auto round_trip = [&] {
        pack_mxfp4<float>(numbers, packed, scales);
        unpack_mxfp4<float>(packed, scales, back.data());
        return back;
    };
    BOOST_TEST((round_trip() == numbers));  // zeros
    for (const int exponent : {-127, -20, 0, 125}) {
        for (unsigned i = 0; i < 32; ++i) numbers[i] = std::ldexp(e2m1_value(i % 16), exponent);
        BOOST_TEST((round_trip() == numbers));
        BOOST_TEST(int{scales[0]} == exponent + 127);
        BOOST_TEST(std::signbit(back[8]));  // minus zero
    }
    numbers.assign(32, 7.9f);
    BOOST_TEST(round_trip()[5] == 6.0f);
    numbers.assign(32, std::numeric_limits<float>::max());
    BOOST_TEST(round_trip()[5] == std::ldexp(6.0f, 125));
    numbers.assign(32, std::numeric_limits<float>::denorm_min());
    BOOST_TEST(round_trip()[5] == 0.0f);
    numbers[31] = std::numeric_limits<float>::quiet_NaN();
    KIMIK3_CHECK_REFUSED(round_trip(), "MXFP4 holds finite numbers, got nan");
    numbers.resize(33);
    KIMIK3_CHECK_REFUSED(round_trip(), "33 numbers of MXFP4 are groups of 32");
}

BOOST_AUTO_TEST_SUITE_END()
