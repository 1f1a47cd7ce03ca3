#include <boost/test/unit_test.hpp>
#include <cmath>

#include "support/golden.hpp"
#include "support/kda_case.hpp"

namespace kimik3::test {

BOOST_AUTO_TEST_SUITE(kda_fused)

BOOST_AUTO_TEST_CASE(b11_b16_beta_is_one_sigmoid_in_prefill_and_in_decode) {
    const std::pair<float, double> expected[] = {{0.5f, .62245933}, {0.0f, .5}, {2.0f, .8807971}};
    for (const auto& [logit, beta] : expected) {
        for (bool goes_on : {false, true}) {
            KdaCase<float> c({1}, {.heads = 1, .key = 4, .value = 1, .with_state = goes_on});
            c.k.fill(0), c.v.fill(1), c.b.fill(logit), c.initial.fill(0);
            c.k(0, 0) = 1e4f;  // k = e0 after the norm, whose epsilon is then below rounding
            c.final = Matrix<float>(1, 4);
            Matrix<float> o(1, 1), final(1, 4);
            const KdaRawInput<float> raw{c.q, c.k, c.v, c.z, c.b, c.A_log.vector(), c.dt_bias.vector(), c.initial};
            kda_fused_forward(Context<Cpu>(1), c.seq, {1, 32, -5.0}, raw, o.view(), final, {});
            BOOST_TEST(std::abs(static_cast<double>(final(0, 0)) - beta) < 1e-6);
        }
    }
}

BOOST_AUTO_TEST_CASE(a_single_step_equals_a_chunk_of_one_token) {
    for (Index width : {16, 20}) {
        KdaCase<double> step({1, 1, 1}, {.heads = 3, .key = width, .value = 9}), chunk = step;
        step.forward(Context<Cpu>(2), KdaWay::fused, 32, false);
        chunk.forward(Context<Cpu>(2), KdaWay::fused, 32, true);
        KIMIK3_CHECK_CLOSE(step.o.values(), chunk.o.values(), 1e-13);
        KIMIK3_CHECK_CLOSE(step.final.values(), chunk.final.values(), 1e-13);
    }
}

BOOST_AUTO_TEST_CASE(keys_that_repeat_under_the_weakest_decay_stay_exact) {
    // Case B04 through the fused form: beta is nearly one and the decay nearly none, so each write replaces the last.
    KdaCase<float> c({128}, {.heads = 1, .key = 16, .value = 2, .with_state = false});
    c.q.fill(1), c.k.fill(1), c.z.fill(-1e4f), c.b.fill(1e4f), c.A_log.fill(0);
    for (Index chunk : {32, 64}) {
        c.forward(Context<Cpu>(1), KdaWay::fused, chunk);
        for (Index t = 0; t < 128; ++t)
            for (Index b = 0; b < 2; ++b) BOOST_TEST(std::abs(c.o(t, b) - 0.25f * c.v(t, b)) < 1e-5f);
    }
}

BOOST_AUTO_TEST_CASE(b03_a_bound_below_minus_five_or_another_chunk_is_refused) {
    KdaCase<float> c({4}, {.gate = {DecayGate::bounded, -5.5}});
    BOOST_CHECK_THROW(c.forward(Context<Cpu>(1), KdaWay::fused, 32), Error);
    KdaCase<float> zero({4}, {.gate = {DecayGate::bounded, 0.0}});
    BOOST_CHECK_THROW(zero.forward(Context<Cpu>(1), KdaWay::fused, 32), Error);
    KdaCase<float> chunk({4}, {});
    BOOST_CHECK_THROW(chunk.forward(Context<Cpu>(1), KdaWay::fused, 16), Error);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace kimik3::test
