// The optimizer and the balance over a whole model.
#include <boost/test/unit_test.hpp>

#include <set>

#include "support/models.hpp"

using namespace kimik3;
using namespace kimik3::test;

namespace {

using Model = KimiK3<presets::golden>;

TokenLoader some_data(Index batch) {
    Philox random(2);
    std::vector<std::int32_t> ids(200);
    for (auto& id : ids) id = static_cast<std::int32_t>(random.below(20));
    std::vector<Shard> shards;
    shards.emplace_back("made up", ids, presets::golden.vocab_size);
    return TokenLoader(TokenWindows(std::move(shards), 12), batch, Order::shuffled, 1);
}

bool ends_with_any(std::string_view name, std::initializer_list<std::string_view> tails) {
    return std::any_of(tails.begin(), tails.end(), [&](std::string_view tail) { return name.ends_with(tail); });
}

std::vector<float> biases(const Model& model) {
    std::vector<float> all;
    for (const ParameterInfo& tensor : model.parameters())
        if (tensor.name.ends_with("e_score_correction_bias")) {
            const auto values = tensor_of(model.weights(), tensor);
            all.insert(all.end(), values.begin(), values.end());
        }
    return all;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(model_groups)

BOOST_AUTO_TEST_CASE(b44_muon_takes_the_hidden_matrices_of_a_model_and_adamw_the_rest_each_once) {
    const Model model(Context<Cpu>(1), 1);
    const Optimizer<Cpu, float> optimizer(model.parameters(), model.weights().size, {});
    std::set<std::string> names;
    Index blocks = 0;
    for (const ParameterGroup& group : optimizer.groups()) {
        BOOST_TEST(names.insert(group.name).second, group.name);
        const bool by_adamw =
            ends_with_any(group.name, {"embed_tokens.weight", "A_log", "dt_bias", "conv1d.weight", ".b_proj.weight"}) ||
            group.name.find("norm") != std::string::npos || group.name.find("_res") != std::string::npos;
        const GroupKind expected = group.name.ends_with("e_score_correction_bias") ? GroupKind::none
                                   : by_adamw                                      ? GroupKind::adamw
                                                                                   : GroupKind::muon;
        BOOST_TEST((group.kind == expected), group.name);
        blocks += group.kind == GroupKind::muon ? group.blocks : 0;
    }
    BOOST_TEST(names.count("model.embed_tokens.weight") == 1u);
    BOOST_TEST(names.count("lm_head.weight") == 0u);
    BOOST_TEST(optimizer.newton_schulz_blocks() == blocks);
}

BOOST_AUTO_TEST_CASE(b44_after_a_step_of_a_model_no_matrix_of_muon_is_a_gradient_step) {
    Model model(Context<Cpu>(1), 1);
    const std::vector<float> before(model.weights().begin(), model.weights().end());
    TrainingOptions options;
    options.schedule = {.kind = ScheduleKind::constant, .max_lr = 1e-2, .total_steps = 10};
    options.optimizer.weight_decay = 0;
    Trainer trainer(model, some_data(8), options);
    trainer.step();
    for (std::size_t p = 0; p < model.parameters().size(); ++p) {
        const ParameterInfo& tensor = model.parameters()[p];
        if (trainer.optimizer().groups()[p].kind != GroupKind::muon) continue;
        double apart = 0, size = 0;
        for (Index e = tensor.offset; e < tensor.offset + tensor.count; ++e) {
            const double gradient_step = -1e-2 * static_cast<double>(model.gradients()[e]);
            const double step = static_cast<double>(model.weights()[e]) - static_cast<double>(before[to_size(e)]);
            apart += (step - gradient_step) * (step - gradient_step);
            size += gradient_step * gradient_step;
        }
        BOOST_TEST((size == 0 || std::sqrt(apart / size) > 1e-3), tensor.name);
    }
}

BOOST_AUTO_TEST_CASE(b33_a_step_moves_the_bias_once_however_it_is_cut_or_recomputed) {
    std::vector<float> expected;
    for (Keep keep : {Keep::activations, Keep::sums}) {
        for (Index batch : {4, 2, 1}) {
            Model model(Context<Cpu>(1), 4);
            model.keep(keep);
            TrainingOptions options;
            options.accumulation = 4 / batch;
            options.schedule = {.kind = ScheduleKind::constant, .max_lr = 1e-3, .total_steps = 10};
            Trainer trainer(model, some_data(batch), options);
            const std::vector<float> before = biases(model);
            trainer.step();
            const std::vector<float> after = biases(model);
            BOOST_TEST(after.size() == 4u * 8u);
            for (std::size_t layer = 0; layer < 4; ++layer)  // every layer of experts has moved
                BOOST_TEST(!std::equal(after.begin() + 8 * static_cast<Index>(layer),
                                       after.begin() + 8 * static_cast<Index>(layer + 1),
                                       before.begin() + 8 * static_cast<Index>(layer)));
            if (expected.empty()) expected = after;
            BOOST_TEST(after == expected, boost::test_tools::per_element());
            for (const Balance& balance : model.balances())
                for (Index b = 0; b < balance.histogram.size(); ++b) BOOST_REQUIRE_EQUAL(balance.histogram.data[b], 0);
        }
    }
}

BOOST_AUTO_TEST_CASE(b43_a_projection_that_starts_at_zero_trains_without_nan) {
    Model model(Context<Cpu>(1), 4);
    for (const ParameterInfo& tensor : model.parameters())
        if (ends_with_any(tensor.name, {"o_proj.weight", "w2.weight", "down_proj.weight"}))
            std::fill_n(model.weights().data + tensor.offset, tensor.count, 0.0f);
    TrainingOptions options;
    options.schedule = {.kind = ScheduleKind::constant, .max_lr = 1e-2, .total_steps = 10};
    Trainer trainer(model, some_data(4), options);
    for (int step = 0; step < 3; ++step) BOOST_TEST(trainer.step().applied);
    for (float weight : model.weights()) BOOST_REQUIRE(std::isfinite(weight));
}

BOOST_AUTO_TEST_SUITE_END()
