#include "kimik3/generate/generate.hpp"

#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <iterator>
#include <limits>
#include <set>

#include "support/models.hpp"

using namespace kimik3;
using namespace kimik3::test;

namespace {

constexpr Index vocab = presets::golden.vocab_size;
using Model = KimiK3<presets::golden>;
using Prompt = std::vector<std::int32_t>;

Prompt some_prompt(Index count, std::uint64_t stream = 0) {
    Philox random(11, stream);
    Prompt prompt(to_size(count));
    for (auto& token : prompt) token = static_cast<std::int32_t>(random.below(vocab));
    return prompt;
}

const GenerateOptions greedy{.temperature = 0, .max_tokens = 8};

/// All tokens of a batch, prompts among them.
template <class M>
std::vector<Prompt> run(BatchGeneration<M>& batch) {
    while (batch.next()) {
    }
    std::vector<Prompt> all;
    for (Index s = 0; s < batch.size(); ++s) all.emplace_back(batch.tokens(s).begin(), batch.tokens(s).end());
    return all;
}
template <class M>
std::vector<Prompt> generated(M& model, const std::vector<Prompt>& prompts, const GenerateOptions& options) {
    BatchGeneration batch(model, prompts, options);
    return run(batch);
}

std::string refusal(Model& model, const std::vector<Prompt>& prompts, const GenerateOptions& options) {
    try {
        BatchGeneration(model, std::span(prompts), options);
    } catch (const Error& error) {
        return error.what();
    }
    return "accepted";
}

void check_refused(Model& model, const Prompt& prompt, const GenerateOptions& options, std::string_view part) {
    const std::string said = refusal(model, {prompt}, options);
    BOOST_TEST((said.find(part) != said.npos), said);
}

struct Models {
    Model model{Context<Cpu>(1), 1};
};

}  // namespace

BOOST_FIXTURE_TEST_SUITE(generation, Models)

BOOST_AUTO_TEST_CASE(greedy_tokens_are_the_highest_logits_of_full_forwards) {
    const Prompt prompt = some_prompt(21);
    Prompt expected = prompt;
    while (expected.size() < prompt.size() + 24) {
        model.evaluate(expected, expected);
        const auto logits = model.logits();
        const float* last = logits.row(logits.rows - 1);
        expected.push_back(static_cast<std::int32_t>(std::max_element(last, last + vocab) - last));
    }
    GenerateOptions options = greedy;
    options.max_tokens = 24;
    BOOST_TEST(generated(model, {prompt}, options).front() == expected, boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(a_batch_of_unequal_prompts_is_each_alone) {
    std::vector<Prompt> prompts;
    for (Index length : {1, 2, 3, 17, 64, 5})
        prompts.push_back(some_prompt(length, static_cast<std::uint64_t>(length)));
    for (Index chunk : {1, 3, 7, 256}) {
        GenerateOptions options = greedy;
        options.prefill_chunk = chunk;
        const auto together = generated(model, prompts, options);
        for (std::size_t s = 0; s < prompts.size(); ++s) {
            const Prompt alone = generated(model, {prompts[s]}, greedy).front();
            BOOST_TEST(together[s] == alone, boost::test_tools::per_element());
            BOOST_TEST(alone.size() == prompts[s].size() + 8);
        }
    }
}

BOOST_AUTO_TEST_CASE(sequences_that_end_leave_the_others_alone) {
    const std::vector<Prompt> prompts = {some_prompt(4, 1), some_prompt(9, 2), some_prompt(6, 3)};
    const auto all = generated(model, prompts, greedy);
    GenerateOptions options = greedy;
    options.stop_ids = {all[1][9 + 2]};  // at the latest, the second sequence ends after two tokens
    BatchGeneration batch(model, prompts, options);
    const auto found = run(batch);
    BOOST_TEST((batch.finish(1) == Finish::stop_token));
    for (std::size_t s = 0; s < 3; ++s) {
        const auto stop = std::find(all[s].begin() + static_cast<std::ptrdiff_t>(prompts[s].size()), all[s].end(),
                                    options.stop_ids[0]);
        BOOST_TEST(found[s] == Prompt(all[s].begin(), stop), boost::test_tools::per_element());
    }
}

BOOST_AUTO_TEST_CASE(a_sequence_stopped_from_outside_gives_no_more) {
    const std::vector<Prompt> prompts = {some_prompt(4, 1), some_prompt(9, 2)};
    const auto all = generated(model, prompts, greedy);
    BatchGeneration batch(model, prompts, greedy);
    batch.next();
    batch.stop(0);
    const auto found = run(batch);
    BOOST_TEST(found[0].size() == 5);
    BOOST_TEST((batch.finish(0) == Finish::stopped));
    BOOST_TEST(!batch.token(0).has_value());
    BOOST_TEST(found[1] == all[1], boost::test_tools::per_element());
    BOOST_TEST((batch.finish(1) == Finish::max_tokens));
    batch.stop(1);  // it has ended by itself
    BOOST_TEST((batch.finish(1) == Finish::max_tokens));
    BOOST_CHECK_THROW(batch.stop(2), Error);
    BOOST_CHECK_THROW(batch.token(-1), Error);
}

BOOST_AUTO_TEST_CASE(b66_generation_ends_where_the_context_does) {
    const auto ends = [&](Index prompt, Index asked) {
        GenerateOptions options = greedy;
        options.context = 16;
        options.max_tokens = asked;
        Generation sequence(model, some_prompt(prompt), options);
        Index given = 0;
        while (sequence.next()) ++given;
        BOOST_TEST(!sequence.next().has_value());
        return std::pair(given, std::string(name_of(sequence.finish())));
    };
    using Ends = std::pair<Index, std::string>;
    BOOST_TEST((ends(16, 20) == Ends{1, "context full"}));
    BOOST_TEST((ends(10, 20) == Ends{7, "context full"}));
    BOOST_TEST((ends(10, 7) == Ends{7, "max tokens"}));
    BOOST_TEST((ends(1, 100) == Ends{16, "context full"}));
    GenerateOptions options = greedy;
    options.context = 16;
    check_refused(model, some_prompt(17), options, "a prompt has at most 16 tokens, the context; this one has 17");
    options.context = 129;
    check_refused(model, some_prompt(1), options, "1 to 128 tokens");
    options.context = -1;
    check_refused(model, some_prompt(1), options, "1 to 128 tokens");
}

BOOST_AUTO_TEST_CASE(b66_a_batch_ends_each_sequence_at_its_own_place) {
    GenerateOptions options = greedy;
    options.context = 16;
    options.max_tokens = 5;
    BatchGeneration batch(model, std::vector<Prompt>{some_prompt(16), some_prompt(3), some_prompt(14)}, options);
    const auto found = run(batch);
    BOOST_TEST(found[0].size() == 17);
    BOOST_TEST(found[1].size() == 8);
    BOOST_TEST(found[2].size() == 17);
    for (Index s : {0, 2}) BOOST_TEST((batch.finish(s) == Finish::context_full));
    BOOST_TEST((batch.finish(1) == Finish::max_tokens));
    for (Index s : {0, 1, 2}) BOOST_TEST(batch.state().length(s) <= 16);
}

BOOST_AUTO_TEST_CASE(b66_an_empty_prompt_starts_from_the_begin_token_or_is_refused) {
    check_refused(model, {}, greedy, "an empty prompt needs a token to begin from");
    GenerateOptions options = greedy;
    options.begin_id = 5;
    const Prompt from_nothing = generated(model, {{}}, options).front();
    BOOST_TEST(from_nothing.front() == 5);
    BOOST_TEST(from_nothing == generated(model, {{5}}, greedy).front(), boost::test_tools::per_element());
    BOOST_TEST(generated(model, {{7}}, options).front().front() == 7);  // no begin token before a prompt
    options.begin_id = vocab;
    check_refused(model, {}, options, "got 67");
}

BOOST_AUTO_TEST_CASE(b66_ids_outside_of_the_vocabulary_are_refused) {
    for (std::int32_t id : {-1, static_cast<std::int32_t>(vocab), std::numeric_limits<std::int32_t>::max()}) {
        const std::string got = fmt::format("got {}", id);
        check_refused(model, {1, id, 2}, greedy, got);
        GenerateOptions options = greedy;
        options.stop_ids = {1, id};
        check_refused(model, {1}, options, got);
    }
}

BOOST_AUTO_TEST_CASE(options_out_of_range_are_refused) {
    const Prompt prompt = {1};
    check_refused(model, prompt, {.max_tokens = -1}, "0 or more, got -1");
    check_refused(model, prompt, {.prefill_chunk = 0}, "at least one token, got 0");
    check_refused(model, prompt, {.temperature = -1}, "temperature");
    check_refused(model, prompt, {.top_p = 0}, "top_p");
    BOOST_TEST(refusal(model, {}, greedy).find("at least one") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(b61_either_of_two_stop_tokens_ends_the_text_and_is_not_in_it) {
    const Prompt prompt = some_prompt(6);
    GenerateOptions options{.temperature = 1, .seed = 3, .max_tokens = 40};
    const Prompt free = generated(model, {prompt}, options).front();
    BOOST_REQUIRE_EQUAL(free.size(), 46u);
    const std::int32_t first = free[6 + 10], second = free[6 + 20];
    for (const std::vector<std::int32_t>& stops :
         {std::vector{first}, std::vector{second}, std::vector{second, first}}) {
        options.stop_ids = stops;
        Generation sequence(model, prompt, options);
        while (sequence.next()) {
        }
        BOOST_TEST((sequence.finish() == Finish::stop_token));
        const auto end = std::find_first_of(free.begin() + 6, free.end(), stops.begin(), stops.end());
        BOOST_TEST(Prompt(sequence.tokens().begin(), sequence.tokens().end()) == Prompt(free.begin(), end),
                   boost::test_tools::per_element());
        BOOST_TEST(!sequence.next().has_value());
    }
}

BOOST_AUTO_TEST_CASE(b61_a_stop_token_in_the_prompt_is_text) {
    GenerateOptions options = greedy;
    const Prompt prompt = some_prompt(6), free = generated(model, {prompt}, greedy).front();
    std::set<std::int32_t> given(free.begin() + 6, free.end());
    for (std::int32_t id : prompt)
        if (!given.contains(id)) options.stop_ids.push_back(id);
    BOOST_REQUIRE(!options.stop_ids.empty());
    BOOST_TEST(generated(model, {prompt}, options).front() == free, boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(b63_temperature_zero_and_tiny_ones_are_greedy_whatever_the_seed) {
    const std::vector<Prompt> prompts = {some_prompt(6, 1), some_prompt(6, 2)};
    const auto expected = generated(model, prompts, greedy);
    for (double temperature : {0.0, 1e-30}) {
        for (std::uint64_t seed : {0u, 1u, 99u})
            BOOST_TEST(
                (generated(model, prompts, {.temperature = temperature, .seed = seed, .max_tokens = 8}) == expected));
    }
}

BOOST_AUTO_TEST_CASE(b65_in_a_batch_only_the_broken_sequence_fails) {
    static constexpr ModelConfig untied_config = [] {
        ModelConfig c = presets::golden;
        c.tie_embeddings = false;
        return c;
    }();
    using Untied = KimiK3<untied_config>;
    Untied untied(Context<Cpu>(1), 1);
    const ParameterInfo* table = nullptr;
    for (const ParameterInfo& tensor : untied.parameters())
        if (tensor.name.ends_with("embed_tokens.weight")) table = &tensor;
    BOOST_REQUIRE(table != nullptr);

    std::vector<Prompt> prompts = {some_prompt(7, 1), some_prompt(12, 2), some_prompt(5, 3)};
    const auto whole = generated(untied, prompts, greedy);
    std::set<std::int32_t> used;
    for (std::size_t s : {0u, 2u}) used.insert(whole[s].begin(), whole[s].end());
    std::int32_t broken = 0;
    while (used.contains(broken)) ++broken;
    for (double temperature : {0.0, 1.0}) {
        for (float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
            GenerateOptions options = greedy;
            options.temperature = temperature;
            options.stop_ids = {broken};  // what is drawn at random may not break a sequence later on
            const auto expected = generated(untied, prompts, options);
            Prompt& prompt = prompts[1];
            const Prompt kept = prompt;
            prompt[4] = broken;
            std::vector<float> row(untied.weights().data + table->offset + broken * untied_config.hidden_size,
                                   untied.weights().data + table->offset + (broken + 1) * untied_config.hidden_size);
            std::fill_n(untied.weights().data + table->offset + broken * untied_config.hidden_size,
                        untied_config.hidden_size, bad);

            BatchGeneration batch(untied, prompts, options);
            BOOST_TEST(batch.next());
            BOOST_TEST((batch.finish(1) == Finish::failed));
            BOOST_TEST(!batch.token(1).has_value());
            BOOST_TEST(!batch.error(1).empty());
            const auto found = run(batch);
            BOOST_TEST(found[1] == prompt, boost::test_tools::per_element());
            for (std::size_t s : {0u, 2u}) BOOST_TEST(found[s] == expected[s], boost::test_tools::per_element());

            Generation alone(untied, prompt, options);
            BOOST_CHECK_THROW(alone.next(), Error);
            BOOST_TEST((alone.finish() == Finish::failed));
            BOOST_CHECK_THROW(alone.next(), Error);  // not taken for an end
            std::copy(row.begin(), row.end(),
                      untied.weights().data + table->offset + broken * untied_config.hidden_size);
            prompt = kept;
        }
    }
}

BOOST_AUTO_TEST_CASE(b66_ids_that_the_tokenizer_lacks_are_never_drawn) {
    GenerateOptions options{.temperature = 100, .max_tokens = 100};
    options.vocabulary = 5;
    const Prompt found = generated(model, {{3}}, options).front();
    BOOST_TEST((std::set<std::int32_t>(found.begin(), found.end()) == std::set<std::int32_t>{0, 1, 2, 3, 4}));
    options.barred = {1, 4, 66};
    const Prompt fewer = generated(model, {{3}}, options).front();
    BOOST_TEST((std::set<std::int32_t>(fewer.begin(), fewer.end()) == std::set<std::int32_t>{0, 2, 3}));
    const std::int32_t first = generated(model, {{3}}, greedy).front().at(1);
    GenerateOptions without = greedy;
    without.barred = {first};
    BOOST_TEST(generated(model, {{3}}, without).front().at(1) != first);
    options.barred = {vocab};
    check_refused(model, {3}, options, "67");
    options.barred.clear();
    options.vocabulary = vocab + 1;
    check_refused(model, {3}, options, "tokens are drawn from 0 (all) to 67 ids, got 68");
}

BOOST_AUTO_TEST_CASE(no_tokens_are_asked_for) {
    GenerateOptions options = greedy;
    options.max_tokens = 0;
    Generation sequence(model, some_prompt(3), options);
    BOOST_TEST(!sequence.next().has_value());
    BOOST_TEST((sequence.finish() == Finish::max_tokens));
    BOOST_TEST(sequence.tokens().size() == 3);
    for (std::int32_t token : generate(model, some_prompt(3), options)) BOOST_ERROR(token);
}

BOOST_AUTO_TEST_CASE(a_range_for_gives_the_tokens_one_by_one) {
    const Prompt prompt = some_prompt(5),
                 expected = generated(model, {prompt}, {.temperature = 0.8, .max_tokens = 8}).front();
    Prompt found = prompt;
    for (std::int32_t token : generate(model, prompt, {.temperature = 0.8f, .max_tokens = 8})) found.push_back(token);
    const Prompt nearly = generated(model, {prompt}, {.temperature = 0.8f, .max_tokens = 8}).front();
    BOOST_TEST(found == nearly, boost::test_tools::per_element());
    auto sequence = generate(model, prompt, {.temperature = 0.8, .max_tokens = 8});
    static_assert(std::input_iterator<decltype(sequence.begin())>);
    Prompt again = prompt;
    std::ranges::copy(sequence, std::back_inserter(again));
    BOOST_TEST(again == expected, boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(a_seed_gives_its_tokens_again_and_another_gives_others) {
    const std::vector<Prompt> prompts = {some_prompt(5)};
    const auto with_seed = [&](std::uint64_t seed) {
        return generated(model, prompts, {.temperature = 2, .seed = seed, .max_tokens = 30}).front();
    };
    BOOST_TEST((with_seed(1) == with_seed(1)));
    BOOST_TEST((with_seed(1) != with_seed(2)));
}

BOOST_AUTO_TEST_CASE(equal_prompts_of_a_batch_draw_different_tokens) {
    const auto all = generated(model, std::vector<Prompt>(4, some_prompt(5)), {.temperature = 2, .max_tokens = 30});
    BOOST_TEST(std::set<Prompt>(all.begin(), all.end()).size() == 4);
}

BOOST_AUTO_TEST_CASE(a_sequence_of_a_batch_draws_what_it_would_alone_with_its_stream) {
    const std::vector<Prompt> prompts = {some_prompt(4, 1), some_prompt(30, 2), some_prompt(1, 3)};
    GenerateOptions options{.temperature = 2, .top_p = 0.9, .seed = 9, .stream = 5, .max_tokens = 20};
    const auto together = generated(model, prompts, options);
    for (const Prompt& found : together) {
        const Prompt prompt = prompts[options.stream - 5];
        BOOST_TEST(generated(model, {prompt}, options).front() == found, boost::test_tools::per_element());
        ++options.stream;
    }
}

BOOST_AUTO_TEST_CASE(top_k_of_one_and_a_penalty_do_what_the_sampler_does) {
    const std::vector<Prompt> prompts = {some_prompt(5)};
    BOOST_TEST((generated(model, prompts, {.temperature = 1, .top_k = 1, .max_tokens = 8}) ==
                generated(model, prompts, greedy)));
    GenerateOptions options = greedy;
    options.repetition_penalty = 1e9;
    options.max_tokens = 40;
    const Prompt all = generated(model, {{3}}, options).front();
    BOOST_TEST(std::set<std::int32_t>(all.begin(), all.end()).size() > 30);  // hardly a token comes twice
}

BOOST_AUTO_TEST_CASE(a_generation_may_be_moved) {
    const Prompt prompt = some_prompt(5), expected = generated(model, {prompt}, greedy).front();
    std::vector<Generation<Model>> several;
    for (int s = 0; s < 3; ++s) several.emplace_back(model, prompt, greedy);
    for (auto& sequence : several) sequence.next();
    several.erase(several.begin());
    for (auto& sequence : several) {
        while (sequence.next()) {
        }
        BOOST_TEST(Prompt(sequence.tokens().begin(), sequence.tokens().end()) == expected,
                   boost::test_tools::per_element());
    }
}

BOOST_AUTO_TEST_SUITE_END()
