#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>

#include "kimik3/core/rng.hpp"
#include "kimik3/model/runtime_parameters.hpp"
#include "kimik3/model/summary.hpp"
#include "support/models.hpp"

using namespace kimik3;
using namespace kimik3::test;

namespace {

using Model = KimiK3<presets::golden>;
using Exact = KimiK3<presets::golden, Cpu, double>;
constexpr Index vocab = presets::golden.vocab_size;

std::vector<std::int32_t> some_tokens(Index count, std::uint64_t stream) {
    Philox random(7, stream);
    std::vector<std::int32_t> tokens(to_size(count));
    for (auto& token : tokens) token = static_cast<std::int32_t>(random.below(vocab));
    return tokens;
}

std::vector<float> copy(VectorView<const float> flat) { return {flat.begin(), flat.end()}; }
std::vector<double> copy(VectorView<const double> flat) { return {flat.begin(), flat.end()}; }

std::vector<std::int64_t> counted(const Model& model) {
    std::vector<std::int64_t> all;
    for (const Balance& balance : model.balances())
        all.insert(all.end(), balance.histogram.data, balance.histogram.data + balance.histogram.size());
    return all;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(training)

BOOST_AUTO_TEST_CASE(causality_bit_for_bit) {
    Model model(Context<Cpu>(2), 1);
    for (Index length : {9, 40, 70}) {
        auto tokens = some_tokens(length, 0);
        const auto before = [&] {
            model.forward(tokens, tokens);
            const auto logits = elements(model.logits());
            return std::vector(logits.begin(), logits.end());
        };
        const std::vector<float> first = before();
        for (Index t : {Index{1}, length / 2, length - 1}) {
            const std::int32_t kept = tokens[to_size(t)];
            tokens[to_size(t)] = (kept + 1) % vocab;
            const std::vector<float> then = before();
            tokens[to_size(t)] = kept;
            BOOST_TEST(std::equal(first.begin(), first.begin() + t * vocab, then.begin()),
                       "length " << length << ", token " << t);
            BOOST_TEST(!std::equal(first.begin() + t * vocab, first.end(), then.begin() + t * vocab));
        }
    }
}

BOOST_AUTO_TEST_CASE(any_number_of_threads_gives_the_same_bits) {
    const auto tokens = some_tokens(3 * 41, 1), targets = some_tokens(3 * 41, 2);
    std::vector<float> expected;
    for (int threads : {1, 2, 3}) {
        Model model(Context<Cpu>(threads), 1);
        const double loss = model.forward_backward(tokens, targets, 3);
        std::vector<float> all = copy(model.gradients());
        all.push_back(static_cast<float>(loss));
        if (expected.empty()) expected = all;
        BOOST_TEST((all == expected), threads << " threads");
    }
}

BOOST_AUTO_TEST_CASE(packed_documents_are_as_each_alone) {
    Model model(Context<Cpu>(2), 2);
    const auto tokens = some_tokens(32, 1), targets = some_tokens(32, 2);
    model.evaluate(tokens, targets, Sequences({0, 7, 7, 32}));
    const std::vector<float> packed = copy(model.token_losses());
    for (const auto& [begin, end] : {std::pair{0, 7}, std::pair{7, 32}}) {
        const auto part = [&](const auto& ids) { return Tokens(ids).subspan(to_size(begin), to_size(end - begin)); };
        model.evaluate(part(tokens), part(targets));
        KIMIK3_CHECK_CLOSE(copy(model.token_losses()), std::vector(packed.begin() + begin, packed.begin() + end), 1e-5);
    }
}

BOOST_AUTO_TEST_CASE(the_gradient_of_packed_documents_is_the_sum_of_each_alone) {
    Exact packed(Context<Cpu>(2), 2), alone(Context<Cpu>(2), 2);
    const auto tokens = some_tokens(40, 1), targets = some_tokens(40, 2);
    const std::vector<std::size_t> borders{0, 1, 1, 8, 40};
    packed.forward_backward(tokens, targets, Sequences({borders.begin(), borders.end()}));
    for (std::size_t d = 0; d + 1 < borders.size(); ++d) {
        const std::size_t length = borders[d + 1] - borders[d];
        const auto part = [&](const auto& ids) { return Tokens(ids).subspan(borders[d], length); };
        alone.forward_backward(part(tokens), part(targets), 1, static_cast<double>(length) / 40);
    }
    KIMIK3_CHECK_CLOSE(copy(alone.gradients()), copy(packed.gradients()), 1e-10);
}

BOOST_AUTO_TEST_CASE(evaluation_touches_nothing_of_training) {
    Model model(Context<Cpu>(2), 3), undisturbed(Context<Cpu>(2), 3);
    const auto tokens = some_tokens(40, 1), targets = some_tokens(40, 2);
    for (Model* m : {&model, &undisturbed}) m->forward_backward(tokens, targets, 2);
    model.evaluate(targets, tokens, 4);
    BOOST_TEST((copy(model.gradients()) == copy(undisturbed.gradients())));
    BOOST_TEST((copy(model.weights()) == copy(undisturbed.weights())));
    BOOST_TEST((counted(model) == counted(undisturbed)));
}

BOOST_AUTO_TEST_CASE(b33_every_token_is_counted_once_however_the_batch_is_cut_or_recomputed) {
    const auto tokens = some_tokens(4 * 11, 1), targets = some_tokens(4 * 11, 2);
    std::vector<std::int64_t> expected;
    for (Keep keep : {Keep::activations, Keep::sums}) {
        for (std::size_t rows : {4, 2, 1}) {
            Model model(Context<Cpu>(2), 4);
            model.keep(keep);
            for (std::size_t first = 0; first < 4; first += rows) {
                const auto part = [&](const auto& ids) { return Tokens(ids).subspan(first * 11, rows * 11); };
                model.forward(part(tokens), part(targets), static_cast<Index>(rows));
                model.backward();
            }
            const auto found = counted(model);
            if (expected.empty()) expected = found;
            BOOST_TEST((found == expected));
            BOOST_CHECK_EQUAL(std::accumulate(found.begin(), found.end(), std::int64_t{0}),
                              4 * 44 * presets::golden.num_experts);
            model.update_balance();
            for (std::int64_t left : counted(model)) BOOST_REQUIRE_EQUAL(left, 0);
        }
    }
}

BOOST_AUTO_TEST_CASE(what_is_kept_is_chosen_before_a_forward_and_not_between_it_and_backward) {
    const auto tokens = some_tokens(2 * 33, 1), targets = some_tokens(2 * 33, 2);
    Model model(Context<Cpu>(2), 1);
    model.forward_backward(tokens, targets, 2);
    const std::vector<float> expected = copy(model.gradients());
    for (const Keep before : {Keep::activations, Keep::sums}) {
        for (const Keep after : {Keep::activations, Keep::sums}) {
            model.zero_gradients();
            model.keep(before);
            model.forward(tokens, targets, 2);
            model.keep(after);
            model.backward();
            BOOST_TEST(copy(model.gradients()) == expected);
        }
    }
}

BOOST_AUTO_TEST_CASE(b34_ignored_tokens_do_not_move_the_balance) {
    const auto tokens = some_tokens(24, 1);
    auto targets = some_tokens(24, 2);
    Model model(Context<Cpu>(2), 4), cut(Context<Cpu>(2), 4);
    cut.forward_backward(Tokens(tokens).first(16), Tokens(targets).first(16));
    std::fill(targets.begin() + 16, targets.end(), ignored_target);
    model.forward_backward(tokens, targets);
    BOOST_TEST((counted(model) == counted(cut)));
}

BOOST_AUTO_TEST_CASE(b49_nothing_to_predict_is_loss_zero_and_no_gradient) {
    Model model(Context<Cpu>(2), 5);
    const auto tokens = some_tokens(12, 1);
    const std::vector<std::int32_t> targets(12, ignored_target);
    const Loss loss = model.forward_backward(tokens, targets);
    BOOST_CHECK_EQUAL(loss.loss, 0.0);
    BOOST_CHECK_EQUAL(loss.counted, 0);
    for (float g : model.gradients()) BOOST_REQUIRE_EQUAL(g, 0.0f);
    BOOST_CHECK_EQUAL(model.forward({}, {}, 1).loss, 0.0);
    model.backward();
}

BOOST_AUTO_TEST_CASE(micro_batches_scaled_by_their_share_of_counted_tokens_are_the_whole_batch) {
    Exact whole(Context<Cpu>(2), 1), parts(Context<Cpu>(2), 1);
    const auto tokens = some_tokens(3 * 12, 1);
    auto targets = some_tokens(3 * 12, 2);
    std::fill(targets.begin() + 9, targets.begin() + 24, ignored_target);  // 9, 0 and 12 are left
    const double expected = whole.forward_backward(tokens, targets, 3);
    double loss = 0;
    for (std::size_t row = 0; row < 3; ++row) {
        const Tokens wanted = Tokens(targets).subspan(12 * row, 12);
        const double share = static_cast<double>(check_targets(wanted, vocab)) / 21.0;
        loss += share * parts.forward_backward(Tokens(tokens).subspan(12 * row, 12), wanted, 1, share);
    }
    BOOST_TEST(std::abs(loss - expected) < 1e-12);
    KIMIK3_CHECK_CLOSE(copy(parts.gradients()), copy(whole.gradients()), 1e-10);
}

BOOST_AUTO_TEST_CASE(b36_b38_unchosen_experts_get_no_gradient_and_every_other_tensor_some) {
    Model model(Context<Cpu>(2), 6);
    const auto tokens = some_tokens(3, 1), targets = some_tokens(3, 2);
    model.forward_backward(tokens, targets);
    Index idle = 0;
    for (const ParameterInfo& tensor : model.parameters()) {
        const auto gradient = tensor_of(model.gradients(), tensor);
        const bool zero = std::all_of(gradient.begin(), gradient.end(), [](float g) { return g == 0.0f; });
        // At the start, scorers are zero, so their norms have no gradient yet; the first layer has nothing to choose
        // from.
        const bool may_be_zero = !tensor.rule.trained || tensor.experts > 0 ||
                                 tensor.name.find("_res_norm") != std::string::npos ||
                                 tensor.name.find("layers.0.self_attention_res") != std::string::npos;
        BOOST_TEST((!zero || may_be_zero), tensor.name);
        idle += zero && tensor.experts > 0 ? 1 : 0;
    }
    BOOST_CHECK_GT(idle, 0);
}

BOOST_AUTO_TEST_CASE(wrong_input_is_refused_by_name_and_changes_nothing) {
    Model model(Context<Cpu>(2), 7);
    const auto ok = some_tokens(10, 1);
    const auto refused = [&](Tokens tokens, Tokens targets, Index batch, const char* sentence) {
        BOOST_CHECK_EXCEPTION(model.forward_backward(tokens, targets, batch), Error, [&](const Error& error) {
            return std::string(error.what()).find(sentence) != std::string::npos;
        });
    };
    for (std::int32_t wrong : {-1, presets::golden.vocab_size, std::numeric_limits<std::int32_t>::max()}) {
        auto tokens = ok;
        tokens[7] = wrong;
        refused(tokens, ok, 1, "token ids lie in [0, 67), got");
        refused(ok, tokens, 1, "at position 7");
    }
    refused(ok, ok, 3, "10 tokens do not make 3 sequences of equal length");
    refused(ok, Tokens(ok).first(9), 1, "10 tokens, 9 targets");
    const auto long_text = some_tokens(129, 1);
    refused(long_text, long_text, 1, "at most 128 tokens, got 129");
    BOOST_CHECK_THROW(model.backward(), Error);
    BOOST_CHECK_EXCEPTION(model.logits(), Error, [](const Error& error) {
        return error.what() == std::string("logits are those of a pass, and the model has made none");
    });
    for (float g : model.gradients()) BOOST_REQUIRE_EQUAL(g, 0.0f);

    model.forward(ok, ok);
    model.backward();
    BOOST_CHECK_THROW(model.backward(), Error);
    model.weights()[0] = std::numeric_limits<float>::quiet_NaN();
    BOOST_CHECK_EXCEPTION(model.forward(std::vector<std::int32_t>{0}, std::vector<std::int32_t>{1}), Error,
                          [](const Error&) { return true; });
}

BOOST_AUTO_TEST_CASE(b39_experts_that_give_nothing_are_as_none) {
    Model silent(Context<Cpu>(2), 8), without(Context<Cpu>(2), 8);
    const auto tokens = some_tokens(20, 1);
    const auto zero = [](Model& model, std::string_view tail) {
        for (const ParameterInfo& tensor : model.parameters())
            if (tensor.name.ends_with(tail)) std::fill_n(model.weights().data + tensor.offset, tensor.count, 0.0f);
    };
    zero(silent, ".w2.weight");
    zero(without, "routed_expert_up_proj.weight");
    silent.evaluate(tokens, tokens);
    without.evaluate(tokens, tokens);
    KIMIK3_CHECK_CLOSE(elements(silent.logits()), elements(without.logits()), 1e-6);
}

BOOST_AUTO_TEST_CASE(b39_the_first_loss_is_that_of_a_guess) {
    constexpr ModelConfig wide = [] {
        ModelConfig c = presets::golden;
        c.vocab_size = 49152, c.hidden_size = 640, c.init_std = 0.002;
        return c;
    }();
    KimiK3<wide> model(Context<Cpu>(2), 9);
    std::vector<std::int32_t> tokens(32), targets(32);
    for (std::size_t t = 0; t < 32; ++t)
        tokens[t] = static_cast<std::int32_t>(t * 1501), targets[t] = static_cast<std::int32_t>(t * 1213 + 7);
    const double loss = model.evaluate(tokens, targets);
    BOOST_CHECK_GT(loss, 10.78);
    BOOST_CHECK_LT(loss, 10.85);
}

BOOST_AUTO_TEST_CASE(b38_parameters_are_counted_by_hand) {
    const auto table = [](auto model_params, const ModelConfig& c) {
        ParameterTable table;
        model_params.fields(c, FieldBinder<float, float>(table));
        return table.entries();
    };
    const ModelConfig &large = presets::k3_300m;
    const auto entries = table(ModelParams<schedule_of<presets::k3_300m>, Cpu, float, float>{}, large);
    const Index kda = 4 * 640 * 640 + 3 * 640 * 4 + 640 * 128 * 2 + 5 * 640 + 5 + 640 + 128 + 640 * 640;
    const Index mla = 256 * 640 + 256 + 960 * 256 + 192 * 640 + 128 + 1280 * 128 + 2 * 640 * 640;
    const Index moe = 64 * 640 + 64 + 2 * 320 * 640 + 320 + 3 * 640 * 576 + 64 * 3 * 320 * 288;
    const Index total = 49152 * 640 + 9 * kda + 4 * mla + 3 * 640 * 3072 + 12 * moe + 13 * 6 * 640 + 3 * 640;
    const ParameterCount count = count_parameters(large, entries);
    BOOST_CHECK_EQUAL(count.total, total);
    BOOST_CHECK_EQUAL(count.active, total - 12 * 60 * 3 * 320 * 288);

    ParameterCount parts;
    for (const ParameterPart& part : parameter_parts(large, entries)) {
        parts.total += part.total, parts.active += part.active;
        if (part.name == "KDA") BOOST_CHECK_EQUAL(part.total, 9 * kda);
        if (part.name == "Gated MLA") BOOST_CHECK_EQUAL(part.total, 4 * mla);
        if (part.name == "Attention Residuals") BOOST_CHECK_EQUAL(part.tensors, 13 * 4 + 2);
        if (part.name == "routed experts") BOOST_CHECK_EQUAL(part.active, 12 * 4 * 3 * 320 * 288);
    }
    BOOST_CHECK_EQUAL(parts.total, count.total);
    BOOST_CHECK_EQUAL(parts.active, count.active);
}

BOOST_AUTO_TEST_CASE(b38_a_config_known_at_run_time_has_the_table_of_its_model) {
    const auto sorted = [](std::vector<ParameterInfo> table) {
        std::ranges::sort(table, {}, &ParameterInfo::name);
        return table;
    };
    const auto ours = sorted(parameters_of(Model::config)), models = sorted(Model(Context<Cpu>(1), 1).parameters());
    BOOST_REQUIRE_EQUAL(ours.size(), models.size());
    std::set<Index> places;
    for (std::size_t t = 0; t < ours.size(); ++t) {
        BOOST_TEST(ours[t].name == models[t].name);
        BOOST_TEST(ours[t].shape == models[t].shape, boost::test_tools::per_element());
        places.insert(ours[t].offset);
    }
    BOOST_CHECK_EQUAL(places.size(), ours.size());
}

BOOST_AUTO_TEST_CASE(the_memory_of_a_step_is_known_before_it) {
    Model model(Context<Cpu>(1), 1);
    const Index kept = model.training_bytes(2, 30);
    model.keep(Keep::sums);
    BOOST_CHECK_LT(model.training_bytes(2, 30), kept / 2);
    BOOST_CHECK_GT(model.training_bytes(4, 30), model.training_bytes(2, 30));
}

BOOST_AUTO_TEST_SUITE_END()
