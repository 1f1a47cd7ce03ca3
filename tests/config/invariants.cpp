#include <boost/test/unit_test.hpp>

#include <cmath>
#include <limits>
#include <vector>

#include "kimik3/config/presets.hpp"

using namespace kimik3;

namespace {

constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();
constexpr double infinity = std::numeric_limits<double>::infinity();

std::vector<ModelConfig> broken_configs() {
    std::vector<ModelConfig> configs;
#define BREAK(...) configs.push_back([] { ModelConfig c = presets::golden; __VA_ARGS__; return c; }());
#include "breaks.def"
#undef BREAK
    return configs;
}

std::string complaint(const ModelConfig& config) {
    try {
        check_invariants(config);
    } catch (const Error& error) {
        return error.what();
    }
    return "";
}

ModelConfig changed(double ModelConfig::*field, double value) {
    ModelConfig config = presets::golden;
    config.*field = value;
    return config;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(invariant_table)

BOOST_AUTO_TEST_CASE(every_row_has_a_config_that_breaks_it_alone_and_the_error_says_its_sentence) {
    const auto table = invariants();
    const std::vector<ModelConfig> broken = broken_configs();
    BOOST_REQUIRE_EQUAL(broken.size(), table.size());
    for (std::size_t row = 0; row < table.size(); ++row) {
        for (std::size_t other = 0; other < table.size(); ++other)
            BOOST_TEST(table[other].holds(broken[row]) == (other != row), table[other].sentence << " in row " << row);
        BOOST_TEST(complaint(broken[row]).starts_with(std::string(table[row].sentence) + "; this config has "));
    }
}

BOOST_AUTO_TEST_CASE(the_error_shows_the_values_that_break_the_rule) {
    ModelConfig config = presets::golden;
    config.num_layers = 4;
    BOOST_TEST(complaint(config) ==
               "the layer pattern has one letter a layer; this config has layer_types = KKKMM, num_layers = 4");
    config = presets::golden;
    config.kda_gate = DecayGate::softplus;
    BOOST_TEST(complaint(config).ends_with("has kda_implementation = fused, kda_gate = softplus"));
}

BOOST_AUTO_TEST_CASE(nan_and_infinity_break_a_rule_in_every_number) {
    for (auto field : {&ModelConfig::rms_norm_eps, &ModelConfig::mla_lora_norm_eps, &ModelConfig::init_std,
                       &ModelConfig::kda_lower_bound, &ModelConfig::routed_scaling_factor, &ModelConfig::situ_beta,
                       &ModelConfig::situ_linear_beta})
        for (double value : {not_a_number, infinity, -infinity}) BOOST_TEST(complaint(changed(field, value)) != "");
}

BOOST_AUTO_TEST_CASE(sizes_of_a_layer_kind_count_only_when_the_schedule_holds_it) {
    ModelConfig config = presets::golden;
    config.layer_types = "MMMMM";
    config.kda_heads = config.kda_head_dim = config.kda_gate_rank = 0;
    BOOST_TEST(complaint(config) == "");
    config = presets::golden;
    config.layer_types = "KKKKK";
    config.mla_heads = config.q_lora_rank = config.kv_lora_rank = 0;
    BOOST_TEST(complaint(config) == "");
    config = presets::golden;
    config.num_dense_layers = 5;
    config.num_experts = config.moe_latent_size = 0;
    BOOST_TEST(complaint(config) == "");
    config.num_dense_layers = 6;
    BOOST_TEST(complaint(config) != "");
}

BOOST_AUTO_TEST_CASE(a_pattern_too_long_to_be_stored_breaks_the_schedule_rules) {
    for (int layers : {190, 191, 192, 250}) {
        ModelConfig config = presets::golden;
        config.num_layers = layers;
        config.layer_types = LayerPattern(std::string_view(std::string(to_size(layers), 'M')));
        BOOST_TEST((complaint(config) == "") == (layers == 190), layers);
    }
    ModelConfig config = presets::golden;
    config.num_layers = 190;
    config.layer_types = LayerPattern(std::string_view(std::string(250, 'M')));
    BOOST_TEST(complaint(config) != "");
}

BOOST_AUTO_TEST_CASE(the_chunkwise_kda_takes_chunks_of_16_and_the_softplus_gate) {
    ModelConfig config = presets::golden;
    config.kda_implementation = KdaImplementation::chunkwise;
    config.kda_chunk_size = 16;
    config.kda_gate = DecayGate::softplus;
    BOOST_TEST(complaint(config) == "");
    config.kda_gate = DecayGate::bounded;
    config.kda_lower_bound = -5.5;
    BOOST_TEST(complaint(config) != "");
}

BOOST_AUTO_TEST_CASE(ranks_and_latent_width_of_zero_stand_for_none) {
    ModelConfig config = presets::golden;
    config.q_lora_rank = config.moe_latent_size = 0;
    config.kda_output_gate_rank = config.hidden_size - 1;
    config.hidden_act = Activation::silu;
    BOOST_TEST(complaint(config) == "");
    config.q_lora_rank = -1;
    BOOST_TEST(complaint(config).starts_with("the heads, the ranks and the head sizes of MLA are positive"));
    config.q_lora_rank = 0;
    config.kda_output_gate_rank = -1;
    BOOST_TEST(complaint(config).starts_with("the rank of the KDA output gate is positive and below the hidden width"));
}

BOOST_AUTO_TEST_CASE(b36_one_expert_a_token_is_taken_without_renormalisation_only) {
    ModelConfig config = presets::golden;
    config.num_experts_per_token = 1;
    BOOST_TEST(complaint(config).find("the router could not learn") != std::string::npos);
    config.moe_renormalize = false;
    BOOST_TEST(complaint(config) == "");
}

BOOST_AUTO_TEST_SUITE_END()
