#include "kimik3/ops/cpu/router.hpp"

#include <boost/test/unit_test.hpp>
#include <numeric>

#include "support/differences.hpp"
#include "support/golden.hpp"
#include "support/routed.hpp"

namespace kimik3::test {
namespace {

using Ids = std::vector<std::int32_t>;
constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double nan = std::numeric_limits<double>::quiet_NaN();

const std::vector<std::vector<double>> base_scores{{0.6, 0.5, 0.2, 0.1}};
const std::vector<double> base_bias{0.0, 0.0, 1.0, 0.0};

}  // namespace

BOOST_AUTO_TEST_SUITE(router)

BOOST_AUTO_TEST_CASE(b27_the_factor_scales_once_with_and_without_normalisation) {
    const auto weights = [](bool renormalize, double factor) {
        return Routed<double>(base_scores, base_bias, 2, {renormalize, factor}).weights.values();
    };
    KIMIK3_CHECK_CLOSE(weights(true, 2.0), (std::vector{0.5, 1.5}), 1e-14);
    KIMIK3_CHECK_CLOSE(weights(false, 2.0), (std::vector{0.4, 1.2}), 1e-14);
    KIMIK3_CHECK_CLOSE(weights(true, 1.0), (std::vector{0.25, 0.75}), 1e-14);
}

BOOST_AUTO_TEST_CASE(b28_weights_come_from_the_sigmoids_of_the_chosen) {
    const auto weights = [](double first, double second, bool renormalize) {
        Routed<double> r(1, {0.0, 0.0, -1.0}, 2, {renormalize, 1.0});
        r.w(0, 0) = first, r.w(1, 0) = second, r.w(2, 0) = 0.0;
        r.forward();
        return r.weights.values();
    };
    KIMIK3_CHECK_CLOSE(weights(0, 0, true), (std::vector{0.5, 0.5}), 1e-14);
    KIMIK3_CHECK_CLOSE(weights(0, 0, false), (std::vector{0.5, 0.5}), 1e-14);
    KIMIK3_CHECK_CLOSE(weights(2, 0, false), (std::vector{0.8807971, 0.5}), 1e-7);
}

BOOST_AUTO_TEST_CASE(the_bias_chooses_and_the_cutoff_is_the_best_biased_score_left_out) {
    Routed<double> r(base_scores, base_bias, 2);
    BOOST_TEST(r.experts.values() == (Ids{2, 0}));
    KIMIK3_CHECK_CLOSE(r.cutoff.values(), (std::vector{0.5}), 1e-14);
}

BOOST_AUTO_TEST_CASE(equal_scores_go_to_the_lower_expert) {
    const std::vector<std::vector<double>> equal{{0.5, 0.5, 0.5, 0.5, 0.5}};
    BOOST_TEST(Routed<float>(equal, {0, 0, 0, 0, 0}, 3).experts.values() == (Ids{0, 1, 2}));
    BOOST_TEST(Routed<float>(equal, {0, 1, 0, 1, 0}, 3).experts.values() == (Ids{1, 3, 0}));
    BOOST_TEST(Routed<float>(equal, {0, 0, 0, 0, 1}, 4).experts.values() == (Ids{4, 0, 1, 2}));
    BOOST_TEST(Routed<float>(equal, {0, 0, 0, 0, 1}, 1).cutoff(0, 0) == 0.5f);
}

BOOST_AUTO_TEST_CASE(b30_experts_are_distinct_when_the_bias_is_minus_infinity) {
    Routed<float> r({{0.1, 0.2, 0.3, 0.4}}, {-infinity, -infinity, 0.0, -infinity}, 3);
    BOOST_TEST(r.experts.values() == (Ids{2, 0, 1}));
    for (float weight : r.weights.values()) BOOST_TEST(std::isfinite(weight));
    Routed<float> all({{0.1, 0.2, 0.3, 0.4}}, {-infinity, -infinity, -infinity, -infinity}, 3);
    BOOST_TEST(all.experts.values() == (Ids{0, 1, 2}));
}

BOOST_AUTO_TEST_CASE(b30_a_score_that_is_nan_breaks_its_token_alone) {
    for (Index at : {0, 3, 16, 19}) {
        Routed<float> r(20, {0.0, 0.0, 0.0, 0.0}, 2, {true, 1.0});
        r.w.fill(0.0f);
        r.x(at, 5) = static_cast<float>(nan);
        r.forward(2);
        for (Index n = 0; n < 20; ++n) {
            const std::int32_t first = r.experts(n, 0), second = r.experts(n, 1);
            BOOST_TEST((first >= 0 && first < 4 && second >= 0 && second < 4 && first != second));
            for (Index j = 0; j < 2; ++j) BOOST_TEST(std::isnan(r.weights(n, j)) == (n == at));
        }
    }
    for (Index e = 0; e < 4; ++e) {
        Routed<float> r({{0.4, 0.3, 0.2, 0.1}}, {0.0, 0.0, 0.0, 0.0}, 2);
        r.bias(0, e) = static_cast<float>(nan);
        r.forward(1);
        for (Index j = 0; j < 2; ++j) BOOST_TEST(std::isnan(r.weights(0, j)));
    }
}

BOOST_AUTO_TEST_CASE(b31_near_scores_and_near_biases_stay_distinct) {
    BOOST_TEST(Routed<float>({{0.5000, 0.5010}}, {0.0, 0.0}, 1).experts.values() == (Ids{1}));
    BOOST_TEST(Routed<float>({{0.5, 0.5}}, {6.817, 6.8175}, 1).experts.values() == (Ids{1}));
}

BOOST_AUTO_TEST_CASE(the_choice_equals_a_stable_sort_at_any_size) {
    for (const auto& [experts, chosen] :
         {std::pair<Index, Index>{2, 1}, {3, 2}, {8, 2}, {8, 7}, {64, 4}, {130, 16}, {896, 16}}) {
        Routed<float> r(33, std::vector<double>(to_size(experts)), chosen, {true, 1.0});
        for (Index e = 0; e < experts; ++e)
            for (Index n = 0; n < 33; ++n) r.w(e, n) = static_cast<float>((e * 37 + n * 101) % 29) * 0.1f;
        for (Index e = 0; e < experts; ++e) r.bias(0, e) = static_cast<float>(e % 3) * 0.01f;
        r.forward();
        for (Index n = 0; n < 33; ++n) {
            Ids order(to_size(experts));
            std::iota(order.begin(), order.end(), 0);
            const auto biased = [&](std::int32_t e) { return r.scores(n, e) + r.bias(0, e); };
            std::stable_sort(order.begin(), order.end(),
                             [&](std::int32_t a, std::int32_t b) { return biased(a) > biased(b); });
            BOOST_TEST(r.experts.values(n, n + 1) == Ids(order.begin(), order.begin() + chosen));
            BOOST_TEST(r.cutoff(0, n) == biased(order[to_size(chosen)]));
        }
    }
}

BOOST_AUTO_TEST_CASE(b36_gradients_equal_differences_and_reach_only_the_chosen) {
    for (const auto& [chosen, renormalize] : {std::pair<Index, bool>{1, false}, {2, true}, {2, false}, {4, true}}) {
        Routed<double> r(3, {2.0, 0.0, 6.0, 4.0, -2.0}, chosen, {renormalize, 2.5});  // choices are at least 1 apart
        Matrix<double> logits = Matrix<double>::random(5, 3, 7), probe = Matrix<double>::random(3, chosen, 8);
        std::ranges::copy(logits.span(), r.w.span().begin());
        r.forward();
        Matrix<double> dlogits = r.scores, dweights = probe, dx = Matrix<double>::random(3, 3, 9), dx0 = dx,
                       dw = Matrix<double>::random(5, 3, 10), dw0 = dw;
        router_backward(Context<Cpu>(2), r.x, r.w, r.rule, r.experts, dweights.view(), dlogits.view(), dx.view(),
                        dw.view());
        const std::vector<double> expected = difference_gradient(r.w.span(), [&] {
            r.forward();
            return probed(r.weights, probe);
        });
        double size = 0;
        for (Index n = 0; n < 3; ++n) {
            for (Index i = 0; i < 3; ++i) {
                double sum = dx0(n, i);
                for (Index e = 0; e < 5; ++e) sum += dlogits(n, e) * r.w(e, i);
                BOOST_TEST(std::abs(dx(n, i) - sum) <= 1e-12);
            }
            for (Index e = 0; e < 5; ++e) {
                BOOST_TEST(std::abs(dlogits(n, e) - expected[to_size(e * 3 + n)]) <= 1e-9);
                BOOST_TEST(std::abs(dw(e, n) - dw0(e, n) - dlogits(n, e)) <= 1e-12);  // x is the unit matrix
                const Ids row = r.experts.values(n, n + 1);
                if (std::find(row.begin(), row.end(), e) == row.end()) BOOST_TEST(dlogits(n, e) == 0.0);
                size += dlogits(n, e) * dlogits(n, e);
            }
        }
        BOOST_TEST(std::sqrt(size) > 1e-6);
    }
}

BOOST_AUTO_TEST_CASE(results_do_not_depend_on_threads_bit_for_bit) {
    std::vector<float> first;
    for (int threads : {1, 2, 3}) {
        Routed<float> r(101, std::vector<double>(33, 0.0), 4, {true, 1.0});
        Matrix<float> w = Matrix<float>::random(33, 101, 5);
        std::ranges::copy(w.span(), r.w.span().begin());
        r.forward(threads);
        std::vector<float> all = r.weights.values();
        Matrix<float> dweights = Matrix<float>::random(101, 4, 6), dx(101, 101), dw(33, 101);
        dx.fill(0.0f), dw.fill(0.0f);
        router_backward(Context<Cpu>(threads), r.x, r.w, r.rule, r.experts, dweights.view(), r.scores.view(), dx.view(),
                        dw.view());
        for (Matrix<float>* m : {&r.scores, &dx, &dw})
            for (float value : m->values()) all.push_back(value);
        if (first.empty()) first = all;
        BOOST_TEST(same_bits(all, first));
    }
}

BOOST_AUTO_TEST_CASE(no_tokens_is_fine_and_all_experts_are_refused) {
    Routed<float> none(0, {0.0, 0.0, 0.0}, 2, {true, 1.0});
    none.forward();
    Routed<float> all(2, {0.0, 0.0}, 2, {true, 1.0});
    BOOST_CHECK_THROW(all.forward(), Error);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace kimik3::test
