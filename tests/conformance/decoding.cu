// Whole decoding on the GPU: recorded steps against eager ones, sequences together against alone, steps against whole
// passes.
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

BOOST_AUTO_TEST_SUITE_END()
