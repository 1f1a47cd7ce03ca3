// Whole decoding on the GPU: recorded steps against eager ones, sequences together against alone, steps against whole
// passes, drawing against the sampler.
#include <boost/test/unit_test.hpp>

#include <list>
#include <numeric>

#include "conformance/device.hpp"
#include "kimik3/cuda.cuh"
#include "support/models.hpp"

using namespace kimik3;
using namespace kimik3::test;

namespace {

std::vector<std::int32_t> some_tokens(Index count, std::uint64_t seed, Index vocabulary) {
    Philox random(seed);
    std::vector<std::int32_t> tokens;
    for (Index i = 0; i < count; ++i)
        tokens.push_back(static_cast<std::int32_t>(random.below(static_cast<std::uint64_t>(vocabulary))));
    return tokens;
}

template <class T>
std::vector<double> numbers(MatrixView<const T> m) {
    std::vector<double> all;
    for (Index r = 0; r < m.rows; ++r)
        for (Index c = 0; c < m.cols; ++c) all.push_back(static_cast<double>(m(r, c)));
    return all;
}

template <class Model>
std::vector<double> logits_after(Model& model, typename Model::State& state, Tokens tokens,
                                 const std::vector<Index>& counts, const std::vector<Index>& slots) {
    std::vector<typename Model::Number> memory;
    return numbers(on_host(model.context(), model.step(state, tokens, counts, slots), memory));
}

double apart(const std::vector<double>& found, const std::vector<double>& expected) {
    double error = 0, size = 1e-30;
    for (std::size_t i = 0; i < found.size(); ++i)
        error += (found[i] - expected[i]) * (found[i] - expected[i]), size += expected[i] * expected[i];
    return std::sqrt(error / size);
}

/// Recorded steps of one model against another's, whose state is a new copy each time, so that it records nothing; and
/// every sequence alone against all together.
template <class T>
void check_recorded() {
    using Model = KimiK3<presets::golden, Cuda, T>;
    Model recorded(cuda(), 3), eager(cuda(), 3), alone(cuda(), 3);
    const Index batch = 3, vocabulary = Model::config.vocab_size;
    auto together = recorded.new_state(batch, 60);
    std::list<typename Model::State> others;  // none is given back, which would end the recordings too
    others.push_back(eager.new_state(batch, 60));
    std::vector<typename Model::State> single;
    for (Index s = 0; s < batch; ++s) {
        const auto prompt = some_tokens(1 + 4 * s, 50 + static_cast<std::uint64_t>(s), vocabulary);
        recorded.step(together, prompt, s), eager.step(others.back(), prompt, s);
        single.push_back(alone.new_state(1, 60));
        alone.step(single.back(), prompt);
    }
    std::vector<Index> slots{2, 0, 1};
    for (Index step = 0; step < 24; ++step) {
        if (step == 8) slots = {1, 2};  // one has ended
        if (step == 16) {               // and is begun again as a copy of another
            together.copy_slot(2, 0), others.back().copy_slot(2, 0);
            single[0] = single[2];
            slots = {0, 1, 2};
        }
        const std::vector<Index> counts(slots.size(), 1);
        const auto tokens =
            some_tokens(static_cast<Index>(slots.size()), 100 + static_cast<std::uint64_t>(step), vocabulary);
        others.push_back(others.back());
        const auto found = logits_after(recorded, together, tokens, counts, slots),
                   expected = logits_after(eager, others.back(), tokens, counts, slots);
        BOOST_CHECK_MESSAGE(found == expected, "recorded step " << step << " differs from the eager one");
        for (std::size_t s = 0; s < slots.size(); ++s) {
            const auto one = logits_after(alone, single[to_size(slots[s])], {&tokens[s], 1}, {1}, {0});
            const std::vector<double> row(found.begin() + static_cast<std::ptrdiff_t>(s) * vocabulary,
                                          found.begin() + static_cast<std::ptrdiff_t>(s + 1) * vocabulary);
            // In double a step is made of cuBLAS's products, which depend on the number of rows.
            BOOST_CHECK_MESSAGE((has_steps<Cuda, T> ? one == row : apart(one, row) <= 1e-10),
                                "sequence " << slots[s] << " alone differs at step " << step);
        }
    }
}

/// The depth and widths of presets::k3_300m, with fewer tokens and experts; still more tokens than the head's blocks
/// take in one turn.
inline constexpr ModelConfig deep = [] {
    ModelConfig c = presets::k3_300m;
    c.vocab_size = 5000, c.num_experts = 6, c.max_seq_len = 64;
    return c;
}();

/// Prompts split in every way and continued token by token against a whole pass, by norm; in bf16 with settled choices.
template <ModelConfig config, class T>
void check_whole(Index batch, double tolerance) {
    using Model = KimiK3<config, Cuda, T>;
    Model model(cuda(), 3);
    if constexpr (Model::copies_weights) settle_choices(model);
    const Index length = 30, vocabulary = Model::config.vocab_size;
    const auto tokens = some_tokens(length, 9, vocabulary);
    std::vector<T> memory;
    model.evaluate(tokens, tokens);
    const auto whole = numbers(on_host(cuda(), model.logits(), memory));
    for (const Index first : {0, 1, 13}) {
        auto state = model.new_state(batch, 40);
        std::vector<Index> slots, counts(to_size(batch), 1);
        for (Index s = 0; s < batch; ++s) {
            slots.push_back(s);
            if (first > 0) model.step(state, Tokens(tokens).first(to_size(first)), s);
        }
        std::vector<double> found, expected;
        for (Index t = first; t < length; ++t) {
            const std::vector<std::int32_t> now(to_size(batch), tokens[to_size(t)]);
            const auto logits = logits_after(model, state, now, counts, slots);
            for (Index s = 0; s < batch; ++s)
                expected.insert(expected.end(), whole.begin() + t * vocabulary, whole.begin() + (t + 1) * vocabulary);
            found.insert(found.end(), logits.begin(), logits.end());
        }
        BOOST_TEST_CONTEXT(batch << " sequences, steps from " << first) {
            BOOST_CHECK_LE(apart(found, expected), tolerance);
        }
    }
}

/// Recorded steps against eager ones for more sequences than ops/step_products.hpp takes, where the bound that the host
/// sees would split the keys of attention into parts, and the past lengths do not.
template <ModelConfig config, class T>
void check_many(Index batch, Index past) {
    using Model = KimiK3<config, Cuda, T>;
    Model recorded(cuda(), 3), eager(cuda(), 3);
    const Index vocabulary = Model::config.vocab_size;
    auto together = recorded.new_state(batch, 300);
    std::list<typename Model::State> others;
    others.push_back(eager.new_state(batch, 300));
    std::vector<Index> slots(to_size(batch));
    std::iota(slots.begin(), slots.end(), Index{0});
    const auto prompts = some_tokens(past * batch, 7, vocabulary);
    const std::vector<Index> lengths(to_size(batch), past), counts(to_size(batch), 1);
    recorded.step(together, prompts, lengths, slots), eager.step(others.back(), prompts, lengths, slots);
    for (std::uint64_t step = 0; step < 4; ++step) {
        const auto tokens = some_tokens(batch, 20 + step, vocabulary);
        others.push_back(others.back());
        BOOST_CHECK_MESSAGE(logits_after(recorded, together, tokens, counts, slots) ==
                                logits_after(eager, others.back(), tokens, counts, slots),
                            "recorded step " << step << " differs from the eager one");
    }
}

/// Random numbers at the borders of tokens' shares, and a few roundings beside them: the token is that before or after
/// the border.
void check_borders(Index vocabulary, double spread) {
    Both logits = Both::random(1, vocabulary, 78, spread);
    std::vector<double> ends;
    double top = logits.host(0, 0), sum = 0;
    for (Index c = 1; c < vocabulary; ++c) top = (std::max)(top, logits.host(0, c));
    for (Index c = 0; c < vocabulary; ++c) ends.push_back(sum += std::exp(logits.host(0, c) - top));
    std::vector<SampleRow> rows;
    for (Index c = 0; c + 1 < vocabulary; ++c)
        for (int rounding = -1; rounding <= 1; ++rounding)
            rows.push_back({.vocabulary = vocabulary,
                            .uniform = std::clamp(ends[to_size(c)] / sum + rounding * 0x1p-54, 0.0, 1.0 - 0x1p-53)});
    std::vector<std::int32_t> found, again;
    sample(cuda(), MatrixView<const float>(logits.g()), rows, {}, found);
    sample(cuda(), MatrixView<const float>(logits.g()), rows, {}, again);
    BOOST_CHECK(found == again);
    Index far = 0;
    for (std::size_t i = 0; i < rows.size(); ++i)
        far += found[i] - static_cast<Index>(i / 3) != 0 && found[i] - static_cast<Index>(i / 3) != 1;
    BOOST_CHECK_MESSAGE(far == 0, far << " of " << rows.size() << " numbers near borders drew other tokens");
}

void check_drawing(const SamplingOptions& options, Index vocabulary, double spread, bool coarse) {
    const Index rows = 5;
    Both logits = Both::random(rows, vocabulary + 3, 77, spread);
    if (coarse)
        for (Index row = 0; row < rows; ++row)
            for (Index c = 0; c < logits.host.cols(); ++c) logits.host(row, c) = std::round(logits.host(row, c));
    logits.send();
    const auto history = some_tokens(20, 5, vocabulary);
    Index different = 0;
    for (std::uint64_t draw = 0; draw < 40; ++draw) {
        std::vector<SampleRow> asked;
        std::vector<std::int32_t> expected, found;
        for (Index row = 0; row < rows; ++row) {
            Sampler sampler(options, static_cast<std::uint64_t>(row), draw), same = sampler;
            std::vector<float> host;
            for (Index c = 0; c < vocabulary; ++c) host.push_back(static_cast<float>(logits.host(row, c)));
            expected.push_back(sampler.sample(std::span<const float>(host), history));
            asked.push_back(same.row(row, vocabulary));
            asked.back().history_size = static_cast<Index>(history.size());
            BOOST_CHECK_EQUAL(sampler.position(), same.position());
        }
        sample(cuda(), MatrixView<const float>(logits.g()), asked, history, found);
        for (std::size_t i = 0; i < found.size(); ++i) different += found[i] != expected[i];
    }
    BOOST_TEST_CONTEXT("temperature " << options.temperature << " top_k " << options.top_k << " top_p " << options.top_p
                                      << " min_p " << options.min_p << " vocabulary " << vocabulary) {
        BOOST_CHECK_EQUAL(different, 0);
    }
}

}  // namespace

BOOST_AUTO_TEST_SUITE(conformance_decoding)

BOOST_AUTO_TEST_CASE(recorded_steps_and_sequences_alone_to_the_bit) {
    check_recorded<float>();
    check_recorded<bf16>();
    check_recorded<double>();
}
BOOST_AUTO_TEST_CASE(recorded_steps_of_many_sequences_to_the_bit) { check_many<presets::tiny, bf16>(130, 3); }
BOOST_AUTO_TEST_CASE(steps_are_a_whole_pass) {
    // Steps round to bf16 in fewer places: 13 layers make 0.05 of that where no choice changes, and 0.3 to 1 else.
    for (const Index batch : {1, 10}) {
        check_whole<presets::golden, float>(batch, 1e-4);
        check_whole<presets::golden, bf16>(batch, 0.12);
        check_whole<deep, float>(batch, 1e-3);
        check_whole<deep, bf16>(batch, 0.12);
    }
}
BOOST_AUTO_TEST_CASE(tokens_are_drawn_by_the_law) {
    for (const Index vocabulary : {3, 67, 5000})
        for (const bool coarse : {false, true}) {
            check_drawing({.temperature = 0.0}, vocabulary, 2.0, coarse);
            check_drawing({.temperature = 0.0, .repetition_penalty = 1.7}, vocabulary, 2.0, coarse);
            check_drawing({.temperature = 1.0}, vocabulary, 2.0, coarse);
            check_drawing({.temperature = 0.7, .repetition_penalty = 1.3}, vocabulary, 2.0, coarse);
            check_drawing({.temperature = 1.3, .top_k = 10}, vocabulary, 2.0, coarse);
            check_drawing({.temperature = 1.3, .top_p = 0.9}, vocabulary, 2.0, coarse);
            check_drawing({.temperature = 0.8, .min_p = 0.05}, vocabulary, 2.0, coarse);
            check_drawing({.temperature = 0.9, .top_k = 40, .top_p = 0.8, .min_p = 0.02, .repetition_penalty = 1.1},
                          vocabulary, 3.0, coarse);
        }
}
BOOST_AUTO_TEST_CASE(numbers_at_borders_draw_a_token_beside_them) {
    check_borders(2500, 1.0);
    check_borders(1500, 0.0);
}
BOOST_AUTO_TEST_CASE(refused_rows) {
    Both logits = Both::random(4, 50, 1);
    logits.host(0, 7) = std::nan(""), logits.host(1, 9) = INFINITY;
    for (Index c = 0; c < 50; ++c) logits.host(2, c) = -INFINITY;
    logits.send();
    std::vector<SampleRow> rows;
    std::vector<std::int32_t> found;
    for (Index row = 0; row < 4; ++row)
        rows.push_back({.row = row, .vocabulary = 50, .temperature = 1.0, .uniform = 0.5});
    sample(cuda(), MatrixView<const float>(logits.g()), rows, {}, found);
    BOOST_CHECK(found[0] == failed_row && found[1] == failed_row && found[2] == failed_row && found[3] >= 0);
}

BOOST_AUTO_TEST_SUITE_END()
