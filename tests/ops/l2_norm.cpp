#include <boost/test/unit_test.hpp>
#include <cmath>

#include "kimik3/ops/cpu/l2_norm.hpp"
#include "support/differences.hpp"
#include "support/golden.hpp"
#include "support/matrix.hpp"

namespace kimik3::test {

BOOST_AUTO_TEST_SUITE(l2_norm)

BOOST_AUTO_TEST_CASE(every_head_is_divided_by_its_length_and_the_gradient_agrees_with_differences) {
    const Context<Cpu> ctx(2);
    for (Index width : {1, 3, 5, 7, 33, 130}) {
        const Index heads = 3, cols = heads * width;
        Matrix<double> x = Matrix<double>::random(4, cols, 1), dy = Matrix<double>::random(4, cols, 2), y(4, cols),
                       r(4, heads), dx(4, cols);
        const auto loss = [&] {
            l2_norm_forward(ctx, heads, x, y.view(), r.view());
            return probed(y, dy);
        };
        loss();
        for (Index h = 0; h < heads; ++h) {
            double square = 0;
            for (Index c = 0; c < width; ++c) square += x(2, h * width + c) * x(2, h * width + c);
            BOOST_TEST(std::abs(y(2, h * width) - x(2, h * width) / std::sqrt(square + 1e-6)) < 1e-15);
        }
        l2_norm_backward(ctx, heads, dy, y, r, dx.view());
        KIMIK3_CHECK_CLOSE(dx.values(), difference_gradient(x.span(), loss, 1e-4), 1e-7);
    }
}

BOOST_AUTO_TEST_CASE(b19_an_all_zero_head_has_a_finite_gradient) {
    Matrix<float> x(1, 8), y(1, 8), r(1, 2), dx(1, 8);
    x.fill(0);
    l2_norm_forward(Context<Cpu>(1), 2, x, y.view(), r.view());
    Matrix<float> dy = Matrix<float>::random(1, 8, 1);
    l2_norm_backward(Context<Cpu>(1), 2, dy, y, r, dx.view());
    for (Index c = 0; c < 8; ++c) BOOST_TEST(std::abs(dx(0, c) - 1000 * dy(0, c)) <= 1e-3f * std::abs(dx(0, c)));
}

BOOST_AUTO_TEST_CASE(heads_that_do_not_divide_the_columns_are_refused) {
    for (Index heads : {0, 3}) {
        Matrix<float> x(1, 8), y(1, 8), r(1, heads);
        x.fill(1);
        BOOST_CHECK_THROW(l2_norm_forward(Context<Cpu>(1), heads, x, y.view(), r.view()), Error);
        BOOST_CHECK_THROW(l2_norm_backward(Context<Cpu>(1), heads, x, y, r, y.view()), Error);
    }
}

BOOST_AUTO_TEST_CASE(threads_and_places_change_no_bit) {
    Matrix<float> x = Matrix<float>::random(100, 66, 1), y(100, 66), r(100, 2), dy = Matrix<float>::random(100, 66, 2),
                  dx(100, 66);
    l2_norm_forward(Context<Cpu>(1), 2, x, y.view(), r.view());
    l2_norm_backward(Context<Cpu>(1), 2, dy, y, r, dx.view());
    l2_norm_forward(Context<Cpu>(3), 2, x, x.view(), r.view());
    l2_norm_backward(Context<Cpu>(3), 2, dy, x, r, dy.view());
    BOOST_TEST(same_bits(x.values(), y.values()));
    BOOST_TEST(same_bits(dy.values(), dx.values()));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace kimik3::test
