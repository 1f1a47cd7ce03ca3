#include "kimik3/ops/cpu/cross_entropy.hpp"

#include <boost/test/unit_test.hpp>

#include "support/differences.hpp"
#include "support/golden.hpp"
#include "support/matrix.hpp"

namespace kimik3::test {
namespace {

using Targets = std::vector<std::int32_t>;

template <class T>
std::vector<T> losses(Matrix<T>& logits, const Targets& targets, int threads = 2) {
    Matrix<T> loss(1, logits.rows());
    cross_entropy(Context<Cpu>(threads), logits, targets, loss.vector());
    return loss.values();
}

/// Backward in a copy of the logits; its losses are those of forward.
template <class T>
std::vector<T> slopes(Matrix<T> logits, const Targets& targets, double scale, int threads = 2) {
    Matrix<T> loss(1, logits.rows());
    const std::vector<T> expected = losses(logits, targets);
    cross_entropy_backward(Context<Cpu>(threads), logits.view(), targets, scale, loss.vector());
    BOOST_TEST(same_bits(loss.values(), expected));
    return logits.values();
}

}  // namespace

BOOST_AUTO_TEST_SUITE(cross_entropy_op)

BOOST_AUTO_TEST_CASE(gradients_equal_differences) {
    for (Index vocab : {1, 2, 3, 16, 33, 130}) {
        auto logits = Matrix<double>::random(4, vocab, 5, 3.0);
        const Targets targets{0, ignored_target, static_cast<std::int32_t>(vocab - 1),
                              static_cast<std::int32_t>(vocab / 2)};
        const auto expected = difference_gradient(logits.span(), [&] {
            double sum = 0;
            for (double loss : losses(logits, targets)) sum += 0.7 * loss;
            return sum;
        });
        KIMIK3_CHECK_CLOSE(slopes(logits, targets, 0.7), expected, 1e-8);
    }
}

BOOST_AUTO_TEST_CASE(b49_when_all_targets_are_ignored_losses_and_gradients_are_zero) {
    auto logits = Matrix<float>::random(3, 20, 1);
    const Targets targets(3, ignored_target);
    BOOST_TEST(losses(logits, targets) == std::vector<float>(3, 0.0f));
    BOOST_TEST(slopes(logits, targets, 1.0) == std::vector<float>(60, 0.0f));
    BOOST_TEST(check_targets(targets, 20) == 0);
    BOOST_TEST(check_targets(Targets{1, ignored_target, 19}, 20) == 2);
}

BOOST_AUTO_TEST_CASE(b49_invalid_targets_are_refused_by_position_before_anything_is_computed) {
    auto logits = Matrix<float>::random(3, 20, 1);
    Matrix<float> loss(1, 3);
    const Context<Cpu> ctx(2);
    for (std::int32_t wrong : {-4, -1, 20, std::numeric_limits<std::int32_t>::max()}) {
        const Targets targets{0, wrong, 1};
        const auto says_so = [&](const Error& error) {
            return error.what() ==
                   fmt::format("targets lie in [0, 20) or are -100 to be ignored, got {} at position 1", wrong);
        };
        BOOST_CHECK_EXCEPTION(cross_entropy(ctx, logits, targets, loss.vector()), Error, says_so);
        BOOST_CHECK_EXCEPTION(cross_entropy_backward(ctx, logits.view(), targets, 1.0, loss.vector()), Error, says_so);
    }
    BOOST_TEST(std::isnan(loss(0, 0)));
    BOOST_CHECK_THROW(cross_entropy(ctx, logits, Targets{0, 1}, loss.vector()), Error);
}

BOOST_AUTO_TEST_CASE(b49_large_and_infinite_logits_give_finite_losses_and_gradients) {
    const std::vector<double> row{1000, 0, -1000};
    for (std::int32_t target : {0, 1, 2}) {
        auto logits = Matrix<float>::of(1, 3, row);
        BOOST_TEST(losses(logits, {target})[0] == 1000.0f * static_cast<float>(target));
        std::vector<float> expected{1, 0, 0};
        expected[to_size(target)] -= 1;
        KIMIK3_CHECK_CLOSE(slopes(logits, {target}, 1.0), expected, 1e-30);
    }
    auto infinite = Matrix<float>::of(1, 3, std::vector{0.0, -std::numeric_limits<double>::infinity(), 0.0});
    KIMIK3_CHECK_CLOSE(losses(infinite, {0}), (std::vector{std::log(2.0)}), 1e-7);
    KIMIK3_CHECK_CLOSE(slopes(infinite, {0}, 1.0), (std::vector{-0.5, 0.0, 0.5}), 1e-6);
}

BOOST_AUTO_TEST_CASE(b49_equal_logits_over_a_whole_vocabulary_cost_its_logarithm) {
    Matrix<float> logits(2, 49152);
    logits.fill(0.0f);
    for (float loss : losses(logits, {0, 49151})) BOOST_TEST(std::abs(static_cast<double>(loss) - 10.8026728) < 2e-6);
}

BOOST_AUTO_TEST_CASE(a_nan_logit_makes_the_loss_nan) {
    for (Index at = 0; at < 35; ++at) {
        auto logits = Matrix<float>::random(1, 35, 1);
        logits(0, at) = std::numeric_limits<float>::quiet_NaN();
        BOOST_TEST(std::isnan(losses(logits, {3})[0]));
    }
}

BOOST_AUTO_TEST_CASE(results_do_not_depend_on_threads_bit_for_bit) {
    auto logits = Matrix<float>::random(7, 103, 1);
    const Targets targets{0, 5, 102, ignored_target, 7, 8, 9};
    for (int threads : {2, 3}) {
        BOOST_TEST(same_bits(losses(logits, targets, 1), losses(logits, targets, threads)));
        BOOST_TEST(same_bits(slopes(logits, targets, 0.5, 1), slopes(logits, targets, 0.5, threads)));
    }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace kimik3::test
