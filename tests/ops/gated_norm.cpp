#include <boost/test/unit_test.hpp>
#include <cmath>

#include "kimik3/ops/cpu/gated_norm.hpp"
#include "support/differences.hpp"
#include "support/golden.hpp"
#include "support/matrix.hpp"

namespace kimik3::test {

BOOST_AUTO_TEST_SUITE(gated_norm)

BOOST_AUTO_TEST_CASE(b17_the_gate_is_a_sigmoid) {
    Matrix<double> x(1, 2), gate(1, 2), w(1, 2), y(1, 2), r(1, 1);
    x(0, 0) = 3, x(0, 1) = 4, gate(0, 0) = 0, gate(0, 1) = 2;
    w.fill(1);
    gated_norm_forward(Context<Cpu>(1), 1, x, gate, w.vector(), 0.0, y.view(), r.view());
    BOOST_TEST(std::abs(y(0, 0) - .4242640687) < 1e-10);
    BOOST_TEST(std::abs(y(0, 1) - .9965081387) < 1e-10);
}

BOOST_AUTO_TEST_CASE(every_gradient_agrees_with_differences_with_and_without_a_gate) {
    const Context<Cpu> ctx(2);
    for (bool gated : {true, false}) {
        for (Index width : {1, 3, 5, 7, 33, 130}) {
            const Index heads = 2, cols = heads * width;
            Matrix<double> x = Matrix<double>::random(3, cols, 1),
                           gate = Matrix<double>::random(3, gated ? cols : 0, 2);
            Matrix<double> w = Matrix<double>::random(1, width, 3), dy = Matrix<double>::random(3, cols, 4), y(3, cols),
                           r(3, heads);
            Matrix<double> dx(3, cols), dgate(3, gated ? cols : 0), dw(1, width);
            dw.fill(0);
            const auto loss = [&] {
                gated_norm_forward(ctx, heads, x, gate, w.vector(), 1e-2, y.view(), r.view());
                return probed(y, dy);
            };
            loss();
            gated_norm_backward(ctx, heads, dy, x, gate, w.vector(), r, dx.view(), dgate.view(), dw.vector());
            KIMIK3_CHECK_CLOSE(dx.values(), difference_gradient(x.span(), loss), 1e-8);
            KIMIK3_CHECK_CLOSE(dw.values(), difference_gradient(w.span(), loss), 1e-8);
            KIMIK3_CHECK_CLOSE(dgate.values(), difference_gradient(gate.span(), loss), 1e-8);
        }
    }
}

BOOST_AUTO_TEST_CASE(threads_and_places_change_no_bit) {
    Matrix<float> x = Matrix<float>::random(50, 66, 1), gate = Matrix<float>::random(50, 66, 2),
                  w = Matrix<float>::random(1, 33, 3);
    Matrix<float> dy = Matrix<float>::random(50, 66, 4), y(50, 66), r(50, 2), dx(50, 66), dgate(50, 66), dw(1, 33),
                  dw3(1, 33);
    dw.fill(0), dw3.fill(0);
    gated_norm_forward(Context<Cpu>(1), 2, x, gate, w.vector(), 1e-5, y.view(), r.view());
    gated_norm_backward(Context<Cpu>(1), 2, dy, x, gate, w.vector(), r, dx.view(), dgate.view(), dw.vector());
    gated_norm_backward(Context<Cpu>(3), 2, dy, x, gate, w.vector(), r, dy.view(), gate.view(), dw3.vector());
    BOOST_TEST(same_bits(dy.values(), dx.values()));
    BOOST_TEST(same_bits(gate.values(), dgate.values()));
    BOOST_TEST(same_bits(dw.values(), dw3.values()));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace kimik3::test
