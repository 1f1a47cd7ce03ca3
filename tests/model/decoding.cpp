#include <boost/test/unit_test.hpp>

#include <cmath>
#include <limits>
#include <numeric>

#include "kimik3/core/rng.hpp"
#include "support/models.hpp"

using namespace kimik3;
using namespace kimik3::test;

namespace {

/// The model of case B09: three KDA layers and an MLA, blocks of two, one dense layer; lively enough to tell positions
/// apart.
constexpr ModelConfig four_layers = [] {
    ModelConfig c = presets::golden;
    c.num_layers = 4;
    c.layer_types = "KKKM";
    return c;
}();
using Model = KimiK3<four_layers>;

std::vector<std::int32_t> some_tokens(Index count, std::uint64_t stream) {
    Philox random(7, stream);
    std::vector<std::int32_t> tokens(to_size(count));
    for (auto& token : tokens) token = static_cast<std::int32_t>(random.below(to_size(four_layers.vocab_size)));
    return tokens;
}

/// Logits of every position from one forward of the whole.
std::vector<float> whole_forward(Model& model, Tokens tokens) {
    model.evaluate(tokens, tokens);
    const auto logits = elements(model.logits());
    return {logits.begin(), logits.end()};
}

/// Logits of every position from steps of the given sizes.
std::vector<float> in_pieces(Model& model, Tokens tokens, const std::vector<Index>& pieces) {
    Model::State state = model.new_state(1);
    std::vector<float> found;
    for (Index piece : pieces) {
        model.step(state, tokens.first(to_size(piece)));
        const auto logits = elements(model.logits());
        found.insert(found.end(), logits.begin(), logits.end());
        tokens = tokens.subspan(to_size(piece));
    }
    return found;
}

Index best(const float* logits) { return std::max_element(logits, logits + four_layers.vocab_size) - logits; }

}  // namespace

BOOST_AUTO_TEST_SUITE(decoding)

BOOST_AUTO_TEST_CASE(b09_every_split_of_a_prompt_gives_the_logits_of_the_whole) {
    Model model(Context<Cpu>(2), 1);
    const auto tokens = some_tokens(64, 0);
    const std::vector<float> expected = whole_forward(model, tokens);
    for (const auto& pieces : {std::vector<Index>{64},
                               std::vector<Index>(4, 16),
                               {7, 57},
                               {63, 1},
                               std::vector<Index>(64, 1),
                               {1, 2, 3, 58}}) {
        const std::vector<float> found = in_pieces(model, tokens, pieces);
        KIMIK3_CHECK_CLOSE(found, expected, 1e-4);
        for (Index t = 0; t < 64; ++t)
            BOOST_CHECK_EQUAL(best(&found[to_size(t * four_layers.vocab_size)]),
                              best(&expected[to_size(t * four_layers.vocab_size)]));
    }
}

BOOST_AUTO_TEST_CASE(b21_prompts_shorter_than_the_convolution_decode_like_the_whole) {
    Model model(Context<Cpu>(2), 2);
    for (Index prompt : {1, 2, 3}) {
        const auto tokens = some_tokens(prompt + 5, static_cast<std::uint64_t>(prompt));
        KIMIK3_CHECK_CLOSE(in_pieces(model, tokens, {prompt, 1, 1, 1, 1, 1}), whole_forward(model, tokens), 1e-5);
    }
}

BOOST_AUTO_TEST_CASE(b09_a_copied_state_goes_on_by_itself_and_a_snapshot_brings_the_past_back) {
    Model model(Context<Cpu>(2), 3);
    const auto prompt = some_tokens(20, 1), left = some_tokens(6, 2), right = some_tokens(6, 3);
    const auto run = [&](Model::State& state, Tokens tokens) {
        model.step(state, tokens);
        const auto logits = elements(model.logits());
        return std::vector(logits.begin(), logits.end());
    };
    Model::State state = model.new_state(1);
    run(state, prompt);
    Model::State snapshot = state;
    const auto went_left = run(state, left), went_right = run(snapshot, right);

    const auto fresh = [&](Tokens tokens) {
        Model::State again = model.new_state(1);
        run(again, prompt);
        return run(again, tokens);
    };
    BOOST_TEST(went_left == fresh(left));
    BOOST_TEST(went_right == fresh(right));

    Model::State slots = model.new_state(3);
    model.step(slots, prompt, 1);
    slots.copy_slot(1, 2);
    BOOST_CHECK_EQUAL(slots.length(2), 20);
    model.step(slots, left, 1);
    model.step(slots, right, 2);
    const auto logits = elements(model.logits());
    BOOST_TEST(std::vector(logits.begin(), logits.end()) == went_right);
}

BOOST_AUTO_TEST_CASE(b09_a_state_is_not_cut_to_a_length_that_it_does_not_know) {
    Model model(Context<Cpu>(1), 3);
    Model::State state = model.new_state(2);
    model.step(state, some_tokens(5, 1), 1);
    BOOST_CHECK_THROW(state.truncate(1, 3), Error);
    BOOST_CHECK_THROW(state.truncate(1, 6), Error);
    BOOST_CHECK_EQUAL(state.length(1), 5);
    state.truncate(1, 5);
    state.truncate(1, 0);
    BOOST_CHECK_EQUAL(state.length(1), 0);
}

BOOST_AUTO_TEST_CASE(b12_sequences_decoded_in_any_order_are_as_each_alone) {
    Model model(Context<Cpu>(2), 4);
    const std::vector<Index> lengths{1, 2, 3, 17, 64};
    std::vector<std::vector<std::int32_t>> texts;
    std::vector<std::vector<float>> alone;
    for (std::size_t s = 0; s < lengths.size(); ++s) {
        texts.push_back(some_tokens(lengths[s] + 24, s));
        alone.push_back(whole_forward(model, texts[s]));
    }
    Model::State state = model.new_state(5);
    std::vector<std::int32_t> packed;
    std::vector<Index> slots(5);
    std::iota(slots.begin(), slots.end(), Index{0});
    for (std::size_t s = 0; s < 5; ++s) packed.insert(packed.end(), texts[s].begin(), texts[s].begin() + lengths[s]);
    model.step(state, packed, lengths, slots);

    Philox random(11);
    for (int round = 0; round < 24; ++round) {
        std::vector<Index> chosen;
        for (Index s = 0; s < 5; ++s)
            if (random.below(2) == 1)
                chosen.insert(chosen.begin() + static_cast<Index>(random.below(chosen.size() + 1)), s);
        std::vector<std::int32_t> next;
        for (Index s : chosen) next.push_back(texts[to_size(s)][to_size(state.length(s))]);
        const std::vector<Index> ones(chosen.size(), 1);
        const auto logits = model.step(state, next, ones, chosen);
        for (std::size_t row = 0; row < chosen.size(); ++row) {
            const Index at = (state.length(chosen[row]) - 1) * four_layers.vocab_size;
            const std::span found(logits.row(static_cast<Index>(row)), to_size(logits.cols));
            KIMIK3_CHECK_CLOSE(found, std::span(alone[to_size(chosen[row])]).subspan(to_size(at), found.size()), 1e-5);
        }
    }
}

BOOST_AUTO_TEST_CASE(b12_a_broken_state_stays_in_its_slot) {
    Model model(Context<Cpu>(2), 5);
    Model::State state = model.new_state(2), sound = model.new_state(2);
    const auto prompt = some_tokens(9, 1);
    for (Model::State* s : {&state, &sound})
        for (Index slot : {0, 1}) model.step(*s, prompt, slot);
    state.layer_state<1>().each(
        [](auto rows) { std::fill_n(rows.row(0), rows.cols, std::numeric_limits<float>::quiet_NaN()); });
    const std::vector<std::int32_t> next{1, 1};
    const std::vector<Index> ones{1, 1}, slots{0, 1};
    const auto expected = model.step(sound, next, ones, slots);
    const std::vector<float> row(expected.row(1), expected.row(1) + expected.cols);
    const auto found = model.step(state, next, ones, slots);
    BOOST_CHECK(std::isnan(found(0, 0)));
    BOOST_TEST(std::vector<float>(found.row(1), found.row(1) + found.cols) == row);
}

BOOST_AUTO_TEST_CASE(b66_a_step_that_does_not_fit_is_refused_and_changes_nothing) {
    Model model(Context<Cpu>(1), 6);
    Model::State state = model.new_state(1, 16), twin = model.new_state(1, 16);
    const auto tokens = some_tokens(17, 1);
    BOOST_CHECK_THROW(model.step(state, tokens), Error);
    model.step(state, Tokens(tokens).first(16));
    BOOST_CHECK_THROW(model.step(state, Tokens(tokens).last(1)), Error);
    BOOST_CHECK_EQUAL(state.length(0), 16);

    for (std::int32_t wrong : {-1, four_layers.vocab_size, std::numeric_limits<std::int32_t>::max()}) {
        BOOST_CHECK_THROW(model.step(twin, Tokens(&wrong, 1)), Error);
        BOOST_CHECK_EQUAL(twin.length(0), 0);
    }
    const std::vector<Index> counts{1, 1}, same{0, 0}, outside{0, 1};
    BOOST_CHECK_THROW(model.step(twin, Tokens(tokens).first(2), counts, same), Error);
    BOOST_CHECK_THROW(model.step(twin, Tokens(tokens).first(2), counts, outside), Error);
    for (Index slots : {0, -1}) BOOST_CHECK_THROW(model.new_state(slots), Error);
    BOOST_CHECK_THROW(model.new_state(1, four_layers.max_seq_len + 1), Error);
}

BOOST_AUTO_TEST_CASE(a_step_of_no_tokens_changes_nothing) {
    Model model(Context<Cpu>(2), 6);
    Model::State state = model.new_state(2);
    const auto tokens = some_tokens(3, 1);
    const std::vector<Index> counts{0, 3}, slots{0, 1};
    model.step(state, tokens, counts, slots);
    BOOST_CHECK_EQUAL(state.length(0), 0);
    BOOST_CHECK_EQUAL(state.length(1), 3);
    const std::vector<Index> none{0, 0};
    model.step(state, {}, none, slots);
    BOOST_CHECK_EQUAL(state.length(1), 3);
}

BOOST_AUTO_TEST_SUITE_END()
