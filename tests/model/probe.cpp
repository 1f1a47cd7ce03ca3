#include "kimik3/model/probe.hpp"

#include <boost/test/unit_test.hpp>

#include <limits>
#include <numeric>

#include "support/models.hpp"

using namespace kimik3;
using namespace kimik3::test;

namespace {

using Model = KimiK3<presets::golden>;
constexpr ModelConfig config = presets::golden;

std::vector<std::int32_t> some_tokens(Index count, std::uint64_t stream) {
    Philox random(7, stream);
    std::vector<std::int32_t> tokens(to_size(count));
    for (auto& token : tokens) token = static_cast<std::int32_t>(random.below(config.vocab_size));
    return tokens;
}

std::vector<float> copy(VectorView<const float> flat) { return {flat.begin(), flat.end()}; }

VectorView<float> weight(Model& model, std::string_view name) {
    for (const ParameterInfo& tensor : model.parameters())
        if (tensor.name == name) return {model.weights().data + tensor.offset, tensor.count};
    fail("no tensor '{}'", name);
}

/// A model whose depth scorers have moved off zero.
Model some_model(int threads = 2) {
    Model model(Context<Cpu>(threads), 3);
    for (const ParameterInfo& tensor : model.parameters()) {
        if (!tensor.name.ends_with("_res_proj.weight")) continue;
        Philox random(5, tensor.count);
        for (float& w : weight(model, tensor.name)) w = static_cast<float>(random.normal());
    }
    return model;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(probe)

BOOST_AUTO_TEST_CASE(looking_inside_changes_no_bit_of_training) {
    Model model = some_model(), undisturbed = some_model();
    const auto tokens = some_tokens(3 * 13, 1), targets = some_tokens(3 * 13, 2), other = some_tokens(50, 3);
    for (int step = 0; step < 2; ++step) {
        for (Model* m : {&model, &undisturbed}) m->forward_backward(tokens, targets, 3);
        look_inside(model, other);
        BOOST_TEST((copy(model.gradients()) == copy(undisturbed.gradients())));
        for (std::size_t layer = 0; layer < model.balances().size(); ++layer) {
            const auto &found = model.balances()[layer].histogram, &expected = undisturbed.balances()[layer].histogram;
            BOOST_TEST(std::equal(found.data, found.data + found.size(), expected.data));
        }
        for (Model* m : {&model, &undisturbed}) m->update_balance();
        BOOST_TEST((copy(model.weights()) == copy(undisturbed.weights())));
    }
}

BOOST_AUTO_TEST_CASE(a_look_between_forward_and_backward_is_refused_and_not_taken_for_the_batch) {
    Model model = some_model();
    const auto tokens = some_tokens(20, 1);
    model.forward(tokens, tokens);
    look_inside(model, tokens);
    BOOST_CHECK_THROW(model.backward(), Error);
}

BOOST_AUTO_TEST_CASE(the_load_is_that_which_balancing_counts) {
    Model model = some_model();
    const auto tokens = some_tokens(2 * 31, 1);
    model.forward_backward(tokens, tokens, 2);
    Probe probe;
    probe.add(look_inside(model, tokens, 2));
    BOOST_REQUIRE_EQUAL(probe.load().size(), 4u);
    for (const Probe::Load& load : probe.load()) {
        const VectorView<std::int64_t> counted = model.balances()[to_size(load.layer)].load;
        BOOST_TEST(std::vector<Index>(counted.begin(), counted.end()) == load.tokens, boost::test_tools::per_element());
        double total = 0;
        for (Index e = 0; e < config.num_experts; ++e) total += probe.relative_load(load, e);
        BOOST_TEST(total == config.num_experts, boost::test_tools::tolerance(1e-12));
    }
}

BOOST_AUTO_TEST_CASE(depth_weights_of_every_site_that_mixes_add_up_to_one) {
    Model model = some_model();
    const Observation seen = look_inside(model, some_tokens(17, 1));
    std::vector<Index> candidates;
    for (const DepthWeights& site : seen.depth) {
        candidates.push_back(site.candidates);
        BOOST_REQUIRE_EQUAL(static_cast<Index>(site.weight.size()), 17 * site.candidates);
        for (auto token = site.weight.begin(); token != site.weight.end(); token += site.candidates) {
            BOOST_TEST(std::accumulate(token, token + site.candidates, 0.0) == 1.0, boost::test_tools::tolerance(1e-5));
        }
    }
    const std::vector<Index> expected{2, 2, 2, 2, 3, 3, 3, 3, 4, 4};  // blocks of two layers; the first site is alone
    BOOST_TEST(candidates == expected, boost::test_tools::per_element());
    BOOST_CHECK(seen.depth.front().site == DepthSite::feed_forward && seen.depth.front().layer == 0);
    BOOST_CHECK(seen.depth.back().site == DepthSite::output && seen.depth.back().layer == config.num_layers);
}

BOOST_AUTO_TEST_CASE(depth_weights_are_the_softmax_of_the_scores) {
    Model model = some_model();
    for (float& w : weight(model, "model.layers.0.self_attn.o_proj.weight")) w = 0;  // so the running sum is zero
    const auto tokens = some_tokens(11, 1);
    const DepthWeights site = look_inside(model, tokens).depth.front();
    const auto embedding = weight(model, "model.embed_tokens.weight"),
               scorer = weight(model, "model.layers.0.mlp_res_proj.weight");
    for (std::size_t n = 0; n < tokens.size(); ++n) {
        double squares = 0, along = 0;
        for (Index m = 0; m < config.hidden_size; ++m) {
            const double x = double{embedding[tokens[n] * config.hidden_size + m]};
            squares += x * x;
            along += x * double{scorer[m]};
        }
        const double score = along / std::sqrt(squares / config.hidden_size + config.rms_norm_eps);
        BOOST_TEST(site.weight[2 * n] == 1 / (1 + std::exp(-score)), boost::test_tools::tolerance(1e-5));
    }
}

BOOST_AUTO_TEST_CASE(half_lives_are_those_of_the_gate) {
    Model model = some_model();
    const std::string layer = "model.layers.1.self_attn.";
    for (float& w : weight(model, layer + "f_b_proj.weight")) w = 0;  // so the gate sees dt_bias alone
    const auto A_log = weight(model, layer + "A_log"), dt_bias = weight(model, layer + "dt_bias");
    for (float& a : A_log) a = 0.3f;
    const DecayHistogram seen = look_inside(model, some_tokens(9, 1)).decay[1];
    BOOST_CHECK_EQUAL(seen.layer, 1);
    std::vector<Index> expected(to_size(config.kda_heads * DecayHistogram::bins));
    for (Index h = 0; h < config.kda_heads; ++h) {
        for (Index channel = 0; channel < config.kda_head_dim; ++channel) {
            const double logit = double{dt_bias[h * config.kda_head_dim + channel]} * std::exp(double{A_log[h]});
            const double decay = config.kda_lower_bound / (1 + std::exp(-logit));
            expected[to_size(h * DecayHistogram::bins + DecayHistogram::bin_of(decay))] += 9;
        }
    }
    BOOST_TEST(seen.count == expected, boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(bins_hold_every_decay) {
    BOOST_CHECK_EQUAL(DecayHistogram::bin_of(-std::numbers::ln2 / 1.1), 10);
    BOOST_CHECK_EQUAL(DecayHistogram::bin_of(-std::numbers::ln2 / 11), 20);
    BOOST_CHECK_EQUAL(DecayHistogram::bin_of(-1e9), 0);
    for (double none : {-0.0, 0.0, -1e-300}) BOOST_CHECK_EQUAL(DecayHistogram::bin_of(none), DecayHistogram::bins - 1);
}

BOOST_AUTO_TEST_CASE(passes_add_up_and_neither_threads_nor_recomputing_matter) {
    Model model = some_model(), other = some_model(1);
    other.keep(Keep::sums);
    const auto tokens = some_tokens(40, 1);
    Probe whole, again, parts;
    whole.add(look_inside(model, tokens, 2));
    again.add(look_inside(other, tokens, 2));
    for (std::size_t first : {0u, 20u}) parts.add(look_inside(model, Tokens(tokens).subspan(first, 20)));
    BOOST_CHECK_EQUAL(parts.tokens(), 40);
    for (const Probe* probe : {&again, &parts}) {
        for (std::size_t l = 0; l < whole.load().size(); ++l)
            BOOST_TEST(probe->load()[l].tokens == whole.load()[l].tokens, boost::test_tools::per_element());
        for (std::size_t d = 0; d < whole.depth().size(); ++d)
            KIMIK3_CHECK_CLOSE(probe->depth()[d].sum, whole.depth()[d].sum, 1e-12);
        for (std::size_t h = 0; h < whole.decay().size(); ++h)
            BOOST_TEST(probe->decay()[h].count == whole.decay()[h].count, boost::test_tools::per_element());
    }
}

BOOST_AUTO_TEST_CASE(a_text_that_does_not_fit_is_refused) {
    Model model = some_model();
    BOOST_CHECK_THROW(look_inside(model, some_tokens(config.max_seq_len + 1, 1)), Error);
    BOOST_CHECK_THROW(look_inside(model, some_tokens(7, 1), 2), Error);
    BOOST_CHECK_THROW(look_inside(model, std::vector<std::int32_t>{config.vocab_size}), Error);
    Probe empty;
    BOOST_CHECK_EQUAL(empty.tokens(), 0);
}

BOOST_AUTO_TEST_SUITE_END()
