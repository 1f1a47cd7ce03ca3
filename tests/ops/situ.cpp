#include "kimik3/ops/cpu/situ.hpp"

#include <boost/test/unit_test.hpp>

#include "support/differences.hpp"
#include "support/golden.hpp"
#include "support/matrix.hpp"

namespace kimik3::test {
namespace {

constexpr SituBetas betas{4.0, 25.0};

}  // namespace

BOOST_AUTO_TEST_SUITE(situ_glu)

BOOST_AUTO_TEST_CASE(values_follow_the_formula_and_stay_within_the_product_of_betas) {
    const Context<Cpu> ctx(1);
    const std::vector<double> gates{0.0, 1.0, -2.0, 4.0, 700.0, -700.0, 1e30, -1e30},
        ups{3.0, -1.0, 50.0, 1e30, -1e30, 7.0, 1e30, 2.0};
    Matrix<double> gate = Matrix<double>::of(1, 8, gates), up = Matrix<double>::of(1, 8, ups), y(1, 8);
    situ_forward(ctx, gate, up, betas, y.view());
    for (std::size_t e = 0; e < gates.size(); ++e) {
        const double g = 4.0 * std::tanh(gates[e] / 4.0) / (1.0 + std::exp(-gates[e])),
                     u = 25.0 * std::tanh(ups[e] / 25.0);
        BOOST_TEST(std::abs(y(0, static_cast<Index>(e)) - g * u) <= 1e-12);
        BOOST_TEST(std::abs(y(0, static_cast<Index>(e))) <= 100.0);
    }
}

BOOST_AUTO_TEST_CASE(gradients_equal_differences) {
    const Context<Cpu> ctx(2);
    for (const Index width : {1, 3, 5, 7, 33}) {
        Matrix<double> gate = Matrix<double>::random(3, width, 1, 3.0), up = Matrix<double>::random(3, width, 2, 20.0);
        Matrix<double> probe = Matrix<double>::random(3, width, 3), y(3, width), dgate(3, width), dup(3, width);
        situ_backward(ctx, probe, gate, up, betas, dgate.view(), dup.view());
        const auto loss = [&] {
            situ_forward(ctx, gate, up, betas, y.view());
            return probed(y, probe);
        };
        KIMIK3_CHECK_CLOSE(dgate.values(), difference_gradient(gate.span(), loss), 1e-8);
        KIMIK3_CHECK_CLOSE(dup.values(), difference_gradient(up.span(), loss), 1e-8);
    }
}

BOOST_AUTO_TEST_CASE(infinite_betas_are_swiglu_which_large_betas_come_near) {
    const Context<Cpu> ctx(2);
    Matrix<double> gate = Matrix<double>::random(3, 33, 1, 3.0), up = Matrix<double>::random(3, 33, 2, 5.0);
    Matrix<double> probe = Matrix<double>::random(3, 33, 3), y(3, 33), near(3, 33), dgate(3, 33), dup(3, 33);
    situ_forward(ctx, gate, up, SituBetas::swiglu(), y.view());
    for (Index e = 0; e < 99; ++e) {
        const double g = gate.data()[e];
        BOOST_TEST(std::abs(y.data()[e] - g / (1.0 + std::exp(-g)) * up.data()[e]) <= 1e-12);
    }
    situ_forward(ctx, gate, up, {1e6, 1e6}, near.view());
    KIMIK3_CHECK_CLOSE(near.values(), y.values(), 1e-8);
    situ_backward(ctx, probe, gate, up, SituBetas::swiglu(), dgate.view(), dup.view());
    const auto loss = [&] {
        situ_forward(ctx, gate, up, SituBetas::swiglu(), y.view());
        return probed(y, probe);
    };
    KIMIK3_CHECK_CLOSE(dgate.values(), difference_gradient(gate.span(), loss), 1e-8);
    KIMIK3_CHECK_CLOSE(dup.values(), difference_gradient(up.span(), loss), 1e-8);
}

BOOST_AUTO_TEST_CASE(far_arguments_have_finite_gradients) {
    const Context<Cpu> ctx(1);
    Matrix<float> gate = Matrix<float>::of(1, 4, std::vector{1e30, -1e30, 500.0, -500.0});
    Matrix<float> up = Matrix<float>::of(1, 4, std::vector{-1e30, 1e30, 1e4, -1e4}), dy(1, 4), dgate(1, 4), dup(1, 4);
    dy.fill(1.0f);
    situ_backward(ctx, dy, gate, up, betas, dgate.view(), dup.view());
    for (float value : dgate.values()) BOOST_TEST(std::isfinite(value));
    for (float value : dup.values()) BOOST_TEST(std::isfinite(value));
}

BOOST_AUTO_TEST_CASE(b68_in_place_equals_out_of_place_at_any_alignment) {
    const Context<Cpu> ctx(2);
    for (const Index width : {1, 5, 16, 33, 130}) {
        const auto random = [&](std::uint64_t seed, Index gap) {
            return Matrix<float>::random(9, width, seed, 3.0, width + gap);
        };
        Matrix<float> gate = random(1, 0), up = random(2, 0), dy = random(3, 0), y(9, width), dgate(9, width),
                      dup(9, width);
        situ_forward(ctx, gate, up, betas, y.view());
        situ_backward(ctx, dy, gate, up, betas, dgate.view(), dup.view());
        Matrix<float> gate_again = random(1, 1), up_again = random(2, 3);
        situ_backward(ctx, dy, gate_again, up_again, betas, gate_again.view(), up_again.view());
        BOOST_TEST(same_bits(gate_again.values(), dgate.values()));
        BOOST_TEST(same_bits(up_again.values(), dup.values()));
        Matrix<float> y_again = random(1, 1);
        situ_forward(ctx, y_again, up, betas, y_again.view());
        BOOST_TEST(same_bits(y_again.values(), y.values()));
    }
}

BOOST_AUTO_TEST_CASE(results_do_not_depend_on_threads_bit_for_bit) {
    Matrix<float> gate = Matrix<float>::random(101, 33, 1), up = Matrix<float>::random(101, 33, 2), one(101, 33);
    situ_forward(Context<Cpu>(1), gate, up, betas, one.view());
    for (int threads : {2, 3}) {
        Matrix<float> y(101, 33);
        situ_forward(Context<Cpu>(threads), gate, up, betas, y.view());
        BOOST_TEST(same_bits(y.values(), one.values()));
    }
}

BOOST_AUTO_TEST_CASE(no_rows_is_fine_and_wrong_shapes_are_refused) {
    const Context<Cpu> ctx(2);
    Matrix<float> none(0, 4), gate(2, 4), up(2, 5);
    situ_forward(ctx, none, none, betas, none.view());
    BOOST_CHECK_THROW(situ_forward(ctx, gate, up, betas, gate.view()), Error);
    BOOST_CHECK_THROW(situ_backward(ctx, gate, gate, gate, betas, gate.view(), up.view()), Error);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace kimik3::test
