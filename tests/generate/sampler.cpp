#include "kimik3/generate/sampler.hpp"

#include <boost/test/unit_test.hpp>

#include "support/refusal.hpp"

using namespace kimik3;
using namespace kimik3::test;

namespace {

using Ids = std::vector<std::int32_t>;
constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();

std::int32_t sample(Sampler& sampler, const std::vector<double>& logits, const Ids& history = {}) {
    return sampler.sample(std::span<const double>(logits), history);
}

std::int32_t once(const SamplingOptions& options, const std::vector<double>& logits, const Ids& history = {}) {
    Sampler sampler(options);
    return sample(sampler, logits, history);
}

Ids many(const SamplingOptions& options, const std::vector<double>& logits, int count, const Ids& history = {}) {
    Sampler sampler(options);
    Ids ids;
    for (int draw = 0; draw < count; ++draw) ids.push_back(sample(sampler, logits, history));
    return ids;
}

/// Logits of the given probabilities, moved by a constant.
std::vector<double> logits_of(const std::vector<double>& probabilities) {
    std::vector<double> logits;
    for (const double p : probabilities) logits.push_back(std::log(p) + 3.0);
    return logits;
}

/// Draws follow the expected weights: chi-square below its 0.1 % point, and what has weight 0 is never drawn.
void check_distribution(const SamplingOptions& options, const std::vector<double>& logits,
                        const std::vector<double>& expected, const Ids& history = {}) {
    constexpr int draws = 20000;
    std::vector<int> counts(logits.size());
    for (const std::int32_t id : many(options, logits, draws, history)) ++counts[static_cast<std::size_t>(id)];
    double chi_square = 0.0, total = 0.0, freedom = -1.0;
    for (const double p : expected) total += p;
    for (std::size_t id = 0; id < counts.size(); ++id) {
        if (expected[id] == 0.0) {
            BOOST_TEST(counts[id] == 0);
            continue;
        }
        const double mean = draws * expected[id] / total;
        chi_square += (counts[id] - mean) * (counts[id] - mean) / mean;
        freedom += 1.0;
    }
    // Wilson and Hilferty's approximation of the 0.1 % point.
    const double a = freedom > 0.0 ? 2.0 / (9.0 * freedom) : 0.0;
    BOOST_TEST(chi_square <= freedom * std::pow(1.0 - a + 3.09 * std::sqrt(a), 3));
}

std::vector<double> random_logits(std::size_t count, std::uint64_t seed) {
    Philox rng(seed);
    std::vector<double> logits(count);
    for (double& logit : logits) logit = 2.0 * rng.normal();
    return logits;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(sampler)

BOOST_AUTO_TEST_CASE(b63_temperature_zero_takes_the_highest_and_of_equal_ones_the_lowest_id) {
    BOOST_TEST(once({.temperature = 0.0}, {1, 2}) == 1);
    BOOST_TEST(once({.temperature = 0.0}, {5, 7, 7, 1, 7}) == 1);
    BOOST_TEST(once({.temperature = 0.0}, {-infinity, -infinity, -3}) == 2);
    BOOST_TEST(once({.temperature = 0.0}, {4}) == 0);
}

BOOST_AUTO_TEST_CASE(b63_temperature_zero_consumes_no_randomness) {
    Sampler greedy({.temperature = 0.0}), warm({.temperature = 1.0});
    for (int draw = 0; draw < 5; ++draw) {
        sample(greedy, {1, 2});
        sample(warm, {1, 2});
    }
    BOOST_TEST(greedy.position() == 0u);
    BOOST_TEST(warm.position() == 5u);
}

BOOST_AUTO_TEST_CASE(b63_tiny_temperatures_are_greedy_without_nan) {
    for (const double temperature : {1e-30, 1e-300, 5e-324}) {
        for (const std::int32_t id : many({.temperature = temperature}, {1, 2}, 100)) BOOST_TEST(id == 1);
        const Ids filtered = many({.temperature = temperature, .top_p = 0.9}, {1, 2, -infinity}, 100);
        for (const std::int32_t id : filtered) BOOST_TEST(id == 1);
    }
}

BOOST_AUTO_TEST_CASE(b63_options_out_of_range_are_refused_in_a_sentence) {
    const auto why = [](SamplingOptions options) { return refusal([&] { Sampler{options}; }); };
    for (const double bad : {-1.0, not_a_number, infinity}) {
        const std::string rule = fmt::format("temperature is finite and 0 (greedy) or more, got {}", bad);
        BOOST_TEST(contains(why({.temperature = bad}), rule));
    }
    BOOST_TEST(contains(why({.top_k = -1}), "top_k"));
    for (const double bad : {0.0, -0.5, 1.5, not_a_number}) BOOST_TEST(contains(why({.top_p = bad}), "top_p"));
    for (const double bad : {-0.5, 1.5, not_a_number}) BOOST_TEST(contains(why({.min_p = bad}), "min_p"));
    for (const double bad : {0.0, -1.0, infinity, not_a_number}) {
        BOOST_TEST(contains(why({.repetition_penalty = bad}), "repetition_penalty"));
    }
}

BOOST_AUTO_TEST_CASE(b65_broken_logits_are_an_error_that_names_what_and_where) {
    for (const double temperature : {0.0, 1.0}) {
        const SamplingOptions plain{.temperature = temperature};
        const SamplingOptions filtered{.temperature = temperature, .top_k = 2, .top_p = 0.9, .min_p = 0.1};
        for (const SamplingOptions& options : {plain, filtered}) {
            for (const std::size_t place : {std::size_t{0}, std::size_t{2}, std::size_t{4}}) {
                for (const double bad : {not_a_number, infinity}) {
                    std::vector<double> logits = {1, 2, 3, 4, 5};
                    logits[place] = bad;
                    const std::string text = refusal([&] { once(options, logits); });
                    BOOST_TEST(contains(text, fmt::format("the logit of token {} of 5 is {}", place, bad)), text);
                }
            }
            BOOST_TEST(contains(refusal([&] { once(options, {not_a_number, not_a_number}); }), "token 0 of 2 is nan"));
            BOOST_TEST(contains(refusal([&] { once(options, {-infinity, -infinity}); }), "none of the 2 logits"));
            BOOST_TEST(contains(refusal([&] { once(options, {}); }), "none of the 0 logits"));
            BOOST_TEST(once(options, {-infinity, -infinity, -7, -infinity}) == 2);
        }
    }
}

BOOST_AUTO_TEST_CASE(b65_a_sampler_goes_on_after_a_broken_row_as_if_it_had_not_been) {
    Sampler broken({.seed = 3}), whole({.seed = 3});
    const std::vector<double> logits = random_logits(50, 1);
    sample(broken, logits);
    sample(whole, logits);
    BOOST_CHECK_THROW(sample(broken, {1, not_a_number}), Error);
    BOOST_TEST(broken.position() == whole.position());
    BOOST_TEST(sample(broken, logits) == sample(whole, logits));
}

BOOST_AUTO_TEST_CASE(draws_follow_the_softmax_at_every_temperature) {
    const std::vector<double> p = {0.4, 0.05, 0.3, 0.15, 0.1};
    check_distribution({.seed = 1}, logits_of(p), p);
    std::vector<double> hot, cold;
    for (const double value : p) {
        hot.push_back(std::sqrt(value));
        cold.push_back(value * value);
    }
    check_distribution({.temperature = 2.0, .seed = 2}, logits_of(p), hot);
    check_distribution({.temperature = 0.5, .seed = 3}, logits_of(p), cold);
    check_distribution({.seed = 4}, {0.0, -infinity, 0.0}, {0.5, 0.0, 0.5});
}

BOOST_AUTO_TEST_CASE(each_filter_keeps_what_it_says_and_they_apply_in_the_documented_order) {
    const std::vector<double> p = {0.4, 0.05, 0.3, 0.15, 0.1}, logits = logits_of(p);
    check_distribution({.top_k = 2, .seed = 1}, logits, {0.4, 0, 0.3, 0, 0});
    check_distribution({.top_p = 0.6, .seed = 2}, logits, {0.4, 0, 0.3, 0, 0});
    check_distribution({.top_p = 0.8, .seed = 3}, logits, {0.4, 0, 0.3, 0.15, 0});
    check_distribution({.min_p = 0.3, .seed = 4}, logits, {0.4, 0, 0.3, 0.15, 0});
    // Top-p speaks of the probabilities that top-k left: 0.4 of 0.7 is less than 0.6; alone, 0.75 would need three.
    check_distribution({.top_k = 2, .top_p = 0.56, .seed = 5}, logits, {1, 0, 0, 0, 0});
    check_distribution({.top_k = 2, .top_p = 0.75, .seed = 6}, logits, {0.4, 0, 0.3, 0, 0});
    // Temperature comes before top-p: at 0.5 the first two have 0.888 of the sum.
    check_distribution({.temperature = 0.5, .top_p = 0.85, .seed = 7}, logits, {0.16, 0, 0.09, 0, 0});
    check_distribution({.top_p = 1e-300, .seed = 8}, logits, {1, 0, 0, 0, 0});
    check_distribution({.min_p = 1.0, .seed = 9}, logits, {1, 0, 0, 0, 0});
}

BOOST_AUTO_TEST_CASE(probabilities_that_meet_a_limit_exactly_are_enough_however_their_logits_are_rounded) {
    for (const bool as_float : {false, true}) {
        const auto logits = [&](const std::vector<double>& p) {
            std::vector<double> all = logits_of(p);
            for (double& logit : all) logit = as_float ? static_cast<float>(logit) : logit;
            return all;
        };
        check_distribution({.top_p = 0.8, .seed = 1}, logits({0.3, 0.1, 0.1, 0.5}), {0.3, 0, 0, 0.5});
        check_distribution({.top_p = 0.8, .seed = 2}, logits({0.5, 0.3, 0.2}), {0.5, 0.3, 0});
        check_distribution({.top_p = 0.9, .seed = 3}, logits({0.4, 0.3, 0.2, 0.1}), {0.4, 0.3, 0.2, 0});
        check_distribution({.top_k = 3, .top_p = 0.9, .seed = 4}, logits({0.05, 0.5, 0.4, 0.1}), {0, 0.5, 0.4, 0});
        check_distribution({.min_p = 0.6, .seed = 5}, logits({0.5, 0.3, 0.2}), {0.5, 0.3, 0});
        check_distribution({.min_p = 0.1, .seed = 6}, logits({0.8, 0.08, 0.12}), {0.8, 0.08, 0.12});
        check_distribution({.min_p = 1.0, .seed = 7}, logits({0.5, 0.499, 0.001}), {1, 0, 0});
    }
}

BOOST_AUTO_TEST_CASE(equal_logits_are_kept_from_the_lowest_id) {
    const std::vector<double> flat(6, 1.0);
    check_distribution({.top_k = 3, .seed = 1}, flat, {1, 1, 1, 0, 0, 0});
    check_distribution({.top_p = 0.6, .seed = 2}, flat, {1, 1, 1, 1, 0, 0});
    check_distribution({.min_p = 1.0, .seed = 3}, flat, {1, 1, 1, 1, 1, 1});
}

BOOST_AUTO_TEST_CASE(top_k_of_one_is_greedy) {
    for (std::uint64_t seed = 0; seed < 50; ++seed) {
        const std::vector<double> logits = random_logits(300, seed);
        BOOST_TEST(once({.top_k = 1, .seed = seed}, logits) == once({.temperature = 0.0}, logits));
    }
    BOOST_TEST(once({.top_k = 1}, {5, 7, 7}) == 1);
}

BOOST_AUTO_TEST_CASE(filters_that_keep_all_change_nothing) {
    const std::vector<double> logits = random_logits(1000, 5);
    const Ids plain = many({.seed = 9}, logits, 500);
    for (const Index all : {1000, 5000}) {
        BOOST_TEST(many({.top_k = all, .seed = 9}, logits, 500) == plain, boost::test_tools::per_element());
    }
    BOOST_TEST(many({.top_p = 1.0, .min_p = 0.0, .seed = 9}, logits, 500) == plain, boost::test_tools::per_element());
    BOOST_TEST(many({.seed = 9}, logits, 500, {1, 2, 3}) == plain, boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(top_p_agrees_with_a_full_sort_when_many_stay) {
    const std::vector<double> logits = random_logits(5000, 6);
    std::vector<std::size_t> order(logits.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return logits[a] > logits[b]; });
    double total = 0.0;
    for (const double logit : logits) total += std::exp(logit);
    for (const double top_p : {0.5, 0.9, 0.99}) {
        std::vector<bool> stays(logits.size());
        double sum = 0.0;
        for (std::size_t place = 0; sum < top_p * total; ++place) {
            stays[order[place]] = true;
            sum += std::exp(logits[order[place]]);
        }
        for (const std::int32_t id : many({.top_p = top_p, .seed = 4}, logits, 1000)) {
            BOOST_TEST(stays[static_cast<std::size_t>(id)]);
        }
    }
}

BOOST_AUTO_TEST_CASE(the_repetition_penalty_weakens_each_seen_token_once_and_before_the_temperature) {
    const std::vector<double> logits = {2.0, -1.0, 1.0};
    const std::vector<double> expected = {std::exp(1.0), std::exp(-2.0), std::exp(1.0)};
    check_distribution({.repetition_penalty = 2.0, .seed = 1}, logits, expected, {0, 1, 0, 0, 1});
    BOOST_TEST(once({.temperature = 0.0, .repetition_penalty = 3.0}, {2.0, 1.0}, {0}) == 1);
    BOOST_TEST(once({.temperature = 0.0, .repetition_penalty = 3.0}, {-infinity, -5.0}, {0, 1}) == 1);
    for (const std::int32_t bad : {-1, 2, (std::numeric_limits<std::int32_t>::max)()}) {
        const std::string text = refusal([&] { once({.repetition_penalty = 1.1}, {2.0, 1.0}, {0, bad}); });
        BOOST_TEST(contains(text, fmt::format("below 2, got {}", bad)), text);
    }
    // A penalty that takes the only logit out of the finite numbers.
    BOOST_CHECK_THROW(once({.repetition_penalty = 1e300}, {-1e300}, {0}), Error);
    BOOST_CHECK_THROW(once({.repetition_penalty = 1e-300}, {1e300}, {0}), Error);
}

BOOST_AUTO_TEST_CASE(seed_stream_and_position_are_the_whole_state) {
    const std::vector<double> logits = random_logits(1000, 7);
    const auto draws = [&](Sampler sampler) {
        Ids ids;
        for (int draw = 0; draw < 20; ++draw) ids.push_back(sample(sampler, logits));
        return ids;
    };
    const Ids first = draws(Sampler({.seed = 5}));
    BOOST_TEST((first == draws(Sampler({.seed = 5}))));
    BOOST_TEST((first != draws(Sampler({.seed = 6}))));
    BOOST_TEST((first != draws(Sampler({.seed = 5}, 1))));
    const Ids later = draws(Sampler({.seed = 5}, 0, 8));
    BOOST_TEST(std::equal(first.begin() + 8, first.end(), later.begin()));
}

BOOST_AUTO_TEST_CASE(float_logits_are_taken_as_they_are) {
    const std::vector<float> logits = {0.5f, 2.0f, -std::numeric_limits<float>::infinity()};
    Sampler narrow({.seed = 1}), wide({.seed = 1});
    for (int draw = 0; draw < 100; ++draw) {
        BOOST_TEST(narrow.sample(std::span<const float>(logits), {}) == sample(wide, {0.5, 2.0, -infinity}));
    }
}

BOOST_AUTO_TEST_SUITE_END()
