#include "kimik3/ops/cpu/quantile_balance.hpp"

#include <boost/test/unit_test.hpp>
#include <numeric>

#include "support/golden.hpp"
#include "support/routed.hpp"

namespace kimik3::test {
namespace {

using Scores = std::vector<std::vector<double>>;
const Scores base{{0.9, 0.1}, {0.8, 0.3}, {0.7, 0.4}, {0.6, 0.2}};

/// The bias after one update from micro-batches of scores, each routed with the given bias.
std::vector<double> updated(const std::vector<Scores>& micro_batches, std::vector<double> bias, Index chosen) {
    OwnBalance own(static_cast<Index>(bias.size()));
    for (const Scores& scores : micro_batches) Routed<double>(scores, bias, chosen).count(own.balance);
    Matrix<double> b = Matrix<double>::of(1, static_cast<Index>(bias.size()), bias);
    balance_update(Context<Cpu>(2), own.balance, chosen, b.vector());
    for (std::int64_t count : own.histogram.values()) BOOST_REQUIRE(count == 0);
    for (std::int64_t count : own.load.values()) BOOST_REQUIRE(count == 0);
    return b.values();
}

/// The exact k/E quantile: the smallest value with at least target values at or below it.
double exact_quantile(std::vector<double> margins, double target) {
    std::sort(margins.begin(), margins.end());
    return margins[to_size(static_cast<Index>(std::ceil(target)) - 1)];
}

/// The same from the histogram.
double counted_quantile(const std::vector<double>& margins, double target, VectorView<const double> bias) {
    const detail::BalanceRange<double> range(bias);
    std::vector<std::int64_t> histogram(to_size(Balance::bins));
    for (double margin : margins) ++histogram[to_size(range.bin(margin))];
    return range.low + detail::quantile_place(histogram.data(), target) * range.width;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(quantile_balance)

BOOST_AUTO_TEST_CASE(b33_micro_batches_of_any_size_give_the_same_bias_and_leave_nothing_behind) {
    const std::vector<double> whole = updated({base}, {0.0, 0.0}, 1);
    BOOST_TEST(updated({{base[0], base[1]}, {base[2], base[3]}}, {0.0, 0.0}, 1) == whole);
    BOOST_TEST(updated({{base[3]}, {base[1]}, {base[2]}, {base[0]}}, {0.0, 0.0}, 1) == whole);
    // r of expert 0 is -.8, -.5, -.3, -.4 with median -.5 (to a bin's end), of expert 1 always 0: half a bin.
    const double width = 0.002, first = -0.5 + 0.5 * width, second = 0.5 * width;
    BOOST_TEST(std::abs(whole[0] - (first - second) / 2) <= width);
    BOOST_TEST(std::abs(whole[0] + whole[1]) <= 1e-15);
}

BOOST_AUTO_TEST_CASE(b33_every_token_is_counted_once_an_expert) {
    OwnBalance own(2);
    Routed<float>(base, {0.0, 0.0}, 1).count(own.balance);
    const std::vector<std::int64_t> all = own.histogram.values(), load = own.load.values();
    BOOST_TEST(std::accumulate(all.begin(), all.end(), std::int64_t{0}) == 4 * 2);
    BOOST_TEST(load == (std::vector<std::int64_t>{4, 0}));
}

BOOST_AUTO_TEST_CASE(b34_tokens_left_out_do_not_move_the_bias) {
    Scores padded = base;
    std::vector<std::uint8_t> counted(4, 1);
    for (int pad = 0; pad < 4; ++pad) {
        padded.insert(padded.begin() + 2 * pad, {0.99, 0.01});
        counted.insert(counted.begin() + 2 * pad, 0);
    }
    OwnBalance own(2);
    Routed<double>(padded, {0.0, 0.0}, 1).count(own.balance, {counted.data(), 8});
    Matrix<double> bias = Matrix<double>::of(1, 2, std::vector{0.0, 0.0});
    BOOST_TEST(own.load.values() == (std::vector<std::int64_t>{4, 0}));
    balance_update(Context<Cpu>(1), own.balance, 1, bias.vector());
    BOOST_TEST(bias.values() == updated({base}, {0.0, 0.0}, 1));
}

BOOST_AUTO_TEST_CASE(b34_the_histogram_finds_the_exact_quantile_within_a_bin) {
    std::vector<double> bias{-0.1, 0.3};
    const VectorView<const double> view{bias.data(), 2};
    const double low = -1.1, width = 2.4 / 1000;
    std::vector<double> uniform;
    for (int i = 0; i < 997; ++i) uniform.push_back(low + 2.4 * (i * 619 % 997) / 997.0);
    const std::vector<std::vector<double>> cases{uniform, {-0.7, -0.7, 0.2, 0.2, 0.2}, std::vector<double>(7, 0.123),
                                                 {low, low + 0.1 * width, low + 0.9 * width, low}};
    for (const std::vector<double>& margins : cases) {
        for (const double share : {0.01, 0.125, 1.0 / 3.0, 0.5, 0.875}) {
            const double target = share * static_cast<double>(margins.size());
            BOOST_TEST(std::abs(counted_quantile(margins, target, view) - exact_quantile(margins, target)) <=
                       width * (1 + 1e-9));
        }
    }
}

BOOST_AUTO_TEST_CASE(b34_values_outside_of_the_range_count_in_the_edge_bins) {
    std::vector<double> bias{0.0, 0.5};
    const detail::BalanceRange<double> range({bias.data(), 2});
    BOOST_TEST(range.bin(-1e300) == 0);
    BOOST_TEST(range.bin(-1.0) == 0);
    BOOST_TEST(range.bin(1.5) == 999);
    BOOST_TEST(range.bin(1e300) == 999);
    BOOST_TEST(range.bin(std::numeric_limits<double>::infinity()) == 999);
    BOOST_TEST(range.bin(std::numeric_limits<double>::quiet_NaN()) == 0);
}

BOOST_AUTO_TEST_CASE(b34_a_share_that_is_no_whole_number_of_tokens_gives_a_finite_bias) {
    const Scores scores{{0.9, 0.2, 0.3}, {0.8, 0.1, 0.5}, {0.3, 0.2, 0.9}, {0.4, 0.5, 0.1}};  // 4 * 2 / 3
    double sum = 0;
    for (double b : updated({scores}, {0.1, 0.0, -0.1}, 2)) {
        BOOST_TEST(std::isfinite(b));
        sum += b;
    }
    BOOST_TEST(std::abs(sum) <= 1e-15);
    for (double b : updated({{scores[0]}}, {0.0, 0.0, 0.0}, 1)) BOOST_TEST(std::isfinite(b));
}

BOOST_AUTO_TEST_CASE(nothing_counted_leaves_the_bias_bit_for_bit) {
    BOOST_TEST(updated({}, {0.3, -0.1, 7.0}, 1) == (std::vector{0.3, -0.1, 7.0}));
}

BOOST_AUTO_TEST_CASE(forgetting_leaves_nothing_behind) {
    OwnBalance own(2);
    Routed<float>(base, {0.0, 0.0}, 1).count(own.balance);
    balance_clear(Context<Cpu>(1), own.balance);
    for (std::int64_t count : own.histogram.values()) BOOST_REQUIRE(count == 0);
    for (std::int64_t count : own.load.values()) BOOST_TEST(count == 0);
}

BOOST_AUTO_TEST_CASE(a_bias_that_is_not_finite_is_refused_at_the_update) {
    OwnBalance own(2);
    Routed<double> routed(base, {0.0, -std::numeric_limits<double>::infinity()}, 1);
    routed.count(own.balance);
    BOOST_CHECK_THROW(balance_update(Context<Cpu>(1), own.balance, 1, routed.bias.vector()), Error);
}

BOOST_AUTO_TEST_CASE(tokens_that_go_nowhere_or_everywhere_are_refused_at_the_update) {
    for (Index chosen : {0, 2, 3}) {
        OwnBalance own(2);
        Routed<double> routed(base, {0.0, 0.0}, 1);
        routed.count(own.balance);
        BOOST_CHECK_THROW(balance_update(Context<Cpu>(1), own.balance, chosen, routed.bias.vector()), Error);
    }
}

BOOST_AUTO_TEST_CASE(counts_do_not_depend_on_threads) {
    Routed<float> routed(101, std::vector<double>(33, 0.0), 4, {true, 1.0});
    Matrix<float> w = Matrix<float>::random(33, 101, 5);
    std::ranges::copy(w.span(), routed.w.span().begin());
    routed.forward();
    OwnBalance first(33);
    routed.count(first.balance, {}, 1);
    for (int threads : {2, 3}) {
        OwnBalance own(33);
        routed.count(own.balance, {}, threads);
        BOOST_TEST(own.histogram.values() == first.histogram.values());
        BOOST_TEST(own.load.values() == first.load.values());
    }
}

BOOST_AUTO_TEST_CASE(one_update_evens_out_a_biased_routing) {
    constexpr Index tokens = 1024, experts = 32, chosen = 4;
    Routed<float> routed(tokens, std::vector<double>(experts, 0.0), chosen, {true, 1.0});
    Matrix<float> logits = Matrix<float>::random(experts, tokens, 3, 0.7), skew = Matrix<float>::random(1, experts, 4);
    for (Index e = 0; e < experts; ++e)
        for (Index n = 0; n < tokens; ++n) routed.w(e, n) = logits(e, n) + skew(0, e);
    const auto imbalance = [&] {
        OwnBalance own(experts);
        routed.forward();
        routed.count(own.balance);
        const std::vector<std::int64_t> load = own.load.values();
        balance_update(Context<Cpu>(2), own.balance, chosen, routed.bias.vector());
        return static_cast<double>(*std::max_element(load.begin(), load.end())) * experts / (tokens * chosen);
    };
    BOOST_TEST(imbalance() > 3.0);
    BOOST_TEST(imbalance() < 1.6);
    BOOST_TEST(imbalance() < 1.4);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace kimik3::test
