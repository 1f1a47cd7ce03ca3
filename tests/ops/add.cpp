#include "kimik3/ops/cpu/add.hpp"

#include <boost/test/unit_test.hpp>

#include "support/matrix.hpp"

namespace kimik3::test {

BOOST_AUTO_TEST_SUITE(add)

BOOST_AUTO_TEST_CASE(b68_sums_are_elementwise_at_any_width_alignment_and_in_place) {
    const Context<Cpu> ctx(2);
    for (const Index width : {1, 3, 16, 33, 130}) {
        for (const Index gap : {0, 1, 3}) {
            Matrix<float> x = Matrix<float>::random(9, width, 1, 1.0, width + gap),
                          y = Matrix<float>::random(9, width, 2);
            const std::vector<float> before = y.values();
            std::vector<float> expected = x.values(), doubled = x.values();
            for (std::size_t e = 0; e < expected.size(); ++e) expected[e] += before[e], doubled[e] *= 2.0f;
            add_to(ctx, x, y.view());
            BOOST_TEST(y.values() == expected);
            add_to(ctx, x, x.view());
            BOOST_TEST(x.values() == doubled);
        }
    }
}

BOOST_AUTO_TEST_CASE(no_rows_is_fine_and_wrong_shapes_are_refused) {
    Matrix<float> none(0, 4), x(2, 4), y(2, 5);
    add_to(Context<Cpu>(1), none, none.view());
    BOOST_CHECK_THROW(add_to(Context<Cpu>(1), x, y.view()), Error);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace kimik3::test
