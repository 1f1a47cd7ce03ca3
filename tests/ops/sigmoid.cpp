#include <boost/test/unit_test.hpp>
#include <cmath>

#include "kimik3/ops/cpu/sigmoid.hpp"
#include "support/differences.hpp"
#include "support/golden.hpp"
#include "support/matrix.hpp"

namespace kimik3::test {

BOOST_AUTO_TEST_SUITE(sigmoid_op)

BOOST_AUTO_TEST_CASE(value_and_gradient_are_right_for_any_width) {
    const Context<Cpu> ctx(2);
    for (Index width : {1, 5, 33}) {
        Matrix<double> x = Matrix<double>::random(4, width, 1, 3.0), dy = Matrix<double>::random(4, width, 2),
                       y(4, width), dx(4, width);
        const auto loss = [&] {
            sigmoid_forward(ctx, x, y.view());
            return probed(y, dy);
        };
        loss();
        BOOST_TEST(std::abs(y(3, 0) - 1 / (1 + std::exp(-x(3, 0)))) < 1e-15);
        sigmoid_backward(ctx, dy, y, dx.view());
        KIMIK3_CHECK_CLOSE(dx.values(), difference_gradient(x.span(), loss), 1e-9);
    }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace kimik3::test
