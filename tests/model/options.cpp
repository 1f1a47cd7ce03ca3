#include <boost/test/unit_test.hpp>

#include "support/model_gradients.hpp"

using namespace kimik3;
using namespace kimik3::test;

namespace {

template <class Change>
constexpr ModelConfig changed(Change change) {
    ModelConfig c = golden_chunkwise;
    change(c);
    return c;
}

const std::vector<std::int32_t> tokens = [] {
    Philox random(3);
    std::vector<std::int32_t> ids(2 * 19);
    for (auto& id : ids) id = static_cast<std::int32_t>(random.below(67));
    return ids;
}();

template <ModelConfig config>
std::vector<double> logits_of() {
    KimiK3<config, Cpu, double> model(Context<Cpu>(2), 1);
    enliven(model);
    model.evaluate(tokens, tokens, 2);
    const auto logits = elements(model.logits());
    return {logits.begin(), logits.end()};
}

template <ModelConfig config>
void check_that_it_changes(const char* option) {
    static const std::vector<double> usual = logits_of<golden_chunkwise>();
    BOOST_CHECK_MESSAGE(relative_error(logits_of<config>(), usual) > 1e-6, option << " has no effect");
}

template <ModelConfig config>
void check_gradients(const char* variant) {
    KimiK3<config, Cpu, double> model(Context<Cpu>(2), 1);
    enliven(model);
    std::vector<std::int32_t> targets(tokens.rbegin(), tokens.rend());
    targets[4] = ignored_target;
    check_model_gradients(model, tokens, targets, 2, variant);
}

constexpr ModelConfig softplus_gate = changed([](ModelConfig& c) { c.kda_gate = DecayGate::softplus; });
constexpr ModelConfig plain = changed([](ModelConfig& c) { c.attn_res = false; });
constexpr ModelConfig ungated = changed([](ModelConfig& c) { c.kda_output_gate = c.mla_output_gate = false; });
constexpr ModelConfig untied = changed([](ModelConfig& c) { c.tie_embeddings = false; });
constexpr ModelConfig unnormed = changed([](ModelConfig& c) { c.latent_norm = false; });
constexpr ModelConfig raw_weights = changed([](ModelConfig& c) { c.moe_renormalize = false; });
constexpr ModelConfig one_expert =
    changed([](ModelConfig& c) { c.moe_renormalize = false, c.num_experts_per_token = 1; });
constexpr ModelConfig many_experts = changed([](ModelConfig& c) { c.num_experts_per_token = c.num_experts - 1; });
constexpr ModelConfig all_dense = changed([](ModelConfig& c) { c.num_dense_layers = c.num_layers; });
constexpr ModelConfig deep_blocks = changed([](ModelConfig& c) { c.attn_res_block_size = 3; });
constexpr ModelConfig other_kda_output_gate = changed([](ModelConfig& c) { c.kda_output_gate = false; });
constexpr ModelConfig other_mla_output_gate = changed([](ModelConfig& c) { c.mla_output_gate = false; });
constexpr ModelConfig other_routed_scaling_factor = changed([](ModelConfig& c) { c.routed_scaling_factor = 1.0; });
constexpr ModelConfig other_kda_lower_bound = changed([](ModelConfig& c) { c.kda_lower_bound = -2.0; });
constexpr ModelConfig other_situ_beta = changed([](ModelConfig& c) { c.situ_beta = 0.5; });
constexpr ModelConfig other_situ_linear_beta = changed([](ModelConfig& c) { c.situ_linear_beta = 0.5; });
constexpr ModelConfig other_rms_norm_eps = changed([](ModelConfig& c) { c.rms_norm_eps = 1e-2; });
constexpr ModelConfig other_mla_lora_norm_eps = changed([](ModelConfig& c) { c.mla_lora_norm_eps = 1e-2; });
constexpr ModelConfig other_init_std = changed([](ModelConfig& c) { c.init_std = 0.2; });
constexpr ModelConfig other_num_experts_per_token = changed([](ModelConfig& c) { c.num_experts_per_token = 3; });
constexpr ModelConfig all_mla = changed([](ModelConfig& c) { c.layer_types = "MMMMM"; });

}  // namespace

BOOST_AUTO_TEST_SUITE(model_options)

BOOST_AUTO_TEST_CASE(b23_every_switch_changes_the_logits) {
    check_that_it_changes<softplus_gate>("kda_gate");
    check_that_it_changes<plain>("attn_res");
    check_that_it_changes<other_kda_output_gate>("kda_output_gate");
    check_that_it_changes<other_mla_output_gate>("mla_output_gate");
    check_that_it_changes<untied>("tie_embeddings");
    check_that_it_changes<unnormed>("latent_norm");
    check_that_it_changes<raw_weights>("moe_renormalize");
    check_that_it_changes<deep_blocks>("attn_res_block_size");
}

BOOST_AUTO_TEST_CASE(b23_every_number_changes_the_logits) {
    check_that_it_changes<other_routed_scaling_factor>("routed_scaling_factor");
    check_that_it_changes<other_kda_lower_bound>("kda_lower_bound");
    check_that_it_changes<other_situ_beta>("situ_beta");
    check_that_it_changes<other_situ_linear_beta>("situ_linear_beta");
    check_that_it_changes<other_rms_norm_eps>("rms_norm_eps");
    check_that_it_changes<other_mla_lora_norm_eps>("mla_lora_norm_eps");
    check_that_it_changes<other_init_std>("init_std");
    check_that_it_changes<other_num_experts_per_token>("num_experts_per_token");
}

BOOST_AUTO_TEST_CASE(how_kda_is_computed_changes_nothing) {
    BOOST_CHECK_LE(relative_error(logits_of<presets::golden>(), logits_of<golden_chunkwise>()), 1e-11);
}

BOOST_AUTO_TEST_CASE(gradients_of_every_variant_are_those_of_differences) {
    check_gradients<softplus_gate>("softplus_gate");
    check_gradients<plain>("plain");
    check_gradients<ungated>("ungated");
    check_gradients<untied>("untied");
    check_gradients<unnormed>("unnormed");
    check_gradients<raw_weights>("raw_weights");
    check_gradients<one_expert>("one_expert");
    check_gradients<many_experts>("many_experts");
    check_gradients<all_dense>("all_dense");
    check_gradients<deep_blocks>("deep_blocks");
    check_gradients<all_mla>("all_mla");
}

BOOST_AUTO_TEST_CASE(a_schedule_by_hand_is_the_schedule_of_the_config) {
    using ByHand = LayerList<DecoderBlock<Kda, DenseFfn>, DecoderBlock<Kda, LatentMoe>, DecoderBlock<Kda, LatentMoe>,
                             DecoderBlock<GatedMla, LatentMoe>, DecoderBlock<GatedMla, LatentMoe>>;
    static_assert(std::is_same_v<schedule_of<presets::golden>, ByHand>);
    static_assert(schedule_agrees<ByHand, presets::golden>());
    static_assert(!schedule_agrees<LayerList<DecoderBlock<Kda, DenseFfn>>, presets::golden>());
    static_assert(!schedule_agrees<schedule_of<all_mla>, presets::golden>());
    static_assert(repeat_layers("KKKM", 3, "M") == presets::k3_300m.layer_types);
}

BOOST_AUTO_TEST_CASE(a_block_of_any_depth_stores_what_came_in_at_its_first_layer) {
    // Candidates before the attention of every layer and before the head.
    const auto candidates = [](int layers, int block) {
        ModelConfig c = presets::golden;
        c.attn_res_block_size = block;
        std::vector<Index> all;
        for (Index layer = 0; layer <= layers; ++layer) all.push_back(Depth::of(c, layer).endpoints + 1);
        return all;
    };
    BOOST_TEST(candidates(13, 2) == (std::vector<Index>{1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7, 8}));
    BOOST_TEST(candidates(4, 1) == (std::vector<Index>{1, 2, 3, 4, 5}));
    BOOST_TEST(candidates(4, 9) == (std::vector<Index>{1, 2, 2, 2, 2}));
    BOOST_TEST(candidates(93, 12).back() == 9);  // of K3
}

BOOST_AUTO_TEST_SUITE_END()
