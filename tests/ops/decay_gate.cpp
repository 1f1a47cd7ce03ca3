#include <boost/test/unit_test.hpp>
#include <cmath>

#include "kimik3/ops/cpu/decay_gate.hpp"
#include "support/differences.hpp"
#include "support/golden.hpp"
#include "support/matrix.hpp"

namespace kimik3::test {

BOOST_AUTO_TEST_SUITE(decay_gate)

BOOST_AUTO_TEST_CASE(both_gates_are_as_written_and_every_gradient_agrees_with_differences) {
    const Context<Cpu> ctx(2);
    for (const DecayGateForm gate : {DecayGateForm{DecayGate::bounded, -5.0}, DecayGateForm{DecayGate::bounded, -0.5},
                                     DecayGateForm{DecayGate::softplus}}) {
        for (Index width : {1, 3, 7, 33}) {
            const Index heads = 2, cols = heads * width;
            Matrix<double> z = Matrix<double>::random(5, cols, 1, 2.0),
                           A_log = Matrix<double>::random(1, heads, 2, 0.5);
            Matrix<double> dt = Matrix<double>::random(1, cols, 3), dg = Matrix<double>::random(5, cols, 4), g(5, cols),
                           dz(5, cols);
            Matrix<double> dA(1, heads), ddt(1, cols);
            const auto loss = [&] {
                decay_gate_forward(ctx, gate, z, A_log.vector(), dt.vector(), g.view());
                return probed(g, dg);
            };
            loss();
            const double rate = std::exp(A_log(0, 1)), logit = z(3, width) + dt(0, width);
            const double expected = gate.kind == DecayGate::bounded ? gate.lower_bound / (1 + std::exp(-rate * logit))
                                                                    : -rate * std::log1p(std::exp(logit));
            BOOST_TEST(std::abs(g(3, width) - expected) < 1e-14);
            dA.fill(0), ddt.fill(0);
            decay_gate_backward(ctx, gate, dg, z, A_log.vector(), dt.vector(), dz.view(), dA.vector(), ddt.vector());
            KIMIK3_CHECK_CLOSE(dz.values(), difference_gradient(z.span(), loss), 1e-8);
            KIMIK3_CHECK_CLOSE(dA.values(), difference_gradient(A_log.span(), loss), 1e-8);
            KIMIK3_CHECK_CLOSE(ddt.values(), difference_gradient(dt.span(), loss), 1e-8);
        }
    }
}

BOOST_AUTO_TEST_CASE(parameter_gradients_are_added_to_and_dz_may_take_the_place_of_dg) {
    const Context<Cpu> ctx(1);
    Matrix<float> z = Matrix<float>::random(9, 6, 1), A_log = Matrix<float>::random(1, 2, 2),
                  dt = Matrix<float>::random(1, 6, 3);
    for (DecayGate kind : {DecayGate::bounded, DecayGate::softplus}) {
        Matrix<float> dg = Matrix<float>::random(9, 6, 4), dz(9, 6), dA(1, 2), ddt(1, 6), dA2(1, 2), ddt2(1, 6);
        dA.fill(0), ddt.fill(0), dA2.fill(1), ddt2.fill(1);
        decay_gate_backward(ctx, {kind, -5.0}, dg, z, A_log.vector(), dt.vector(), dz.view(), dA.vector(),
                            ddt.vector());
        decay_gate_backward(ctx, {kind, -5.0}, dg, z, A_log.vector(), dt.vector(), dg.view(), dA2.vector(),
                            ddt2.vector());
        BOOST_TEST(same_bits(dg.values(), dz.values()));
        BOOST_TEST(std::abs(dA2(0, 1) - dA(0, 1) - 1) < 1e-5f);
        BOOST_TEST(std::abs(ddt2(0, 4) - ddt(0, 4) - 1) < 1e-5f);
    }
}

BOOST_AUTO_TEST_CASE(logits_of_any_size_give_a_decay_within_the_bounds) {
    Matrix<float> z(1, 6), A_log(1, 1), dt(1, 6), g(1, 6);
    A_log.fill(1), dt.fill(0);
    const float logits[] = {-1e30f, -200.0f, -1.0f, 1.0f, 200.0f, 1e30f};
    for (Index c = 0; c < 6; ++c) z(0, c) = logits[c];
    for (DecayGate kind : {DecayGate::bounded, DecayGate::softplus}) {
        decay_gate_forward(Context<Cpu>(1), {kind, -5.0}, z, A_log.vector(), dt.vector(), g.view());
        for (float value : g.values())
            BOOST_TEST((value <= 0.0f && std::isfinite(value) && (kind == DecayGate::softplus || value >= -5.0f)));
    }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace kimik3::test
