#include "kimik3/ops/cpu/sigmoid_gate.hpp"

#include <boost/test/unit_test.hpp>

#include "support/differences.hpp"
#include "support/golden.hpp"
#include "support/matrix.hpp"

namespace kimik3::test {

BOOST_AUTO_TEST_SUITE(sigmoid_gate)

BOOST_AUTO_TEST_CASE(outputs_equal_the_formula_and_gradients_equal_differences) {
    for (Index width : {1, 3, 8, 33}) {
        const Context<Cpu> ctx(2);
        auto o = Matrix<double>::random(3, width, 1), logits = Matrix<double>::random(3, width, 2, 3.0),
             dy = Matrix<double>::random(3, width, 3);
        Matrix<double> y(3, width), d_o(3, width), dlogits(3, width);
        const auto loss = [&] {
            sigmoid_gate_forward(ctx, o, logits, y.view());
            return probed(y, dy);
        };
        loss();
        std::vector<double> expected = o.values();
        for (std::size_t e = 0; e < expected.size(); ++e) expected[e] /= 1 + std::exp(-logits.span()[e]);
        KIMIK3_CHECK_CLOSE(y.values(), expected, 1e-14);
        sigmoid_gate_backward(ctx, dy, o, logits, d_o.view(), dlogits.view());
        KIMIK3_CHECK_CLOSE(d_o.values(), difference_gradient(o.span(), loss), 1e-8);
        KIMIK3_CHECK_CLOSE(dlogits.values(), difference_gradient(logits.span(), loss), 1e-8);
    }
}

BOOST_AUTO_TEST_CASE(outputs_may_overwrite_inputs) {
    const Context<Cpu> ctx(2);
    auto o = Matrix<float>::random(20, 35, 1), logits = Matrix<float>::random(20, 35, 2),
         dy = Matrix<float>::random(20, 35, 3), o2 = o;
    Matrix<float> y(20, 35), d_o(20, 35), dlogits(20, 35);
    sigmoid_gate_forward(ctx, o, logits, y.view());
    sigmoid_gate_backward(ctx, dy, o, logits, d_o.view(), dlogits.view());
    sigmoid_gate_forward(ctx, o2, logits, o2.view());
    sigmoid_gate_backward(ctx, dy, o, logits, dy.view(), logits.view());
    BOOST_TEST(same_bits(o2.values(), y.values()));
    BOOST_TEST(same_bits(dy.values(), d_o.values()));
    BOOST_TEST(same_bits(logits.values(), dlogits.values()));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace kimik3::test
