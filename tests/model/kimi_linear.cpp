// The Kimi Linear family as a whole model, and the parameters of the released models.
#include <set>

#include "kimik3/model/summary.hpp"
#include "support/model_gradients.hpp"

using namespace kimik3;
using namespace kimik3::test;

namespace {

using Model = KimiK3<presets::linear_tiny, Cpu, double>;
constexpr Index vocab = presets::linear_tiny.vocab_size;

/// Five times the usual start, so that every mechanism counts.
Model lively_model() {
    Model model(Context<Cpu>(2), 1);
    for (const ParameterInfo& tensor : model.parameters()) {
        if (tensor.rule.init != Init::normal) continue;
        for (double& w : VectorView(model.weights().data + tensor.offset, tensor.count)) w *= 5;
    }
    enliven(model);
    return model;
}

std::vector<std::int32_t> some_tokens(Index count) {
    Philox random(3);
    std::vector<std::int32_t> ids(to_size(count));
    for (auto& id : ids) id = static_cast<std::int32_t>(random.below(vocab));
    return ids;
}

std::vector<double> logits_of(Model& model, Tokens tokens) {
    model.evaluate(tokens, tokens);
    const auto all = elements(model.logits());
    return {all.begin(), all.end()};
}

/// The parameters of a config without their memory.
template <ModelConfig config>
std::vector<ParameterInfo> parameters_of() {
    ParameterTable table;
    ModelParams<schedule_of<config>, Cpu, float, float>().fields(config, FieldBinder<float, float>(table));
    return table.entries();
}

std::set<std::string> leafs_of(const std::vector<ParameterInfo>& parameters, const std::string& prefix) {
    std::set<std::string> leafs;
    for (const ParameterInfo& tensor : parameters)
        if (tensor.name.starts_with(prefix) && tensor.name.find(".experts.") == std::string::npos)
            leafs.insert(tensor.name.substr(prefix.size()));
    return leafs;
}

/// The released K3 (spec 9.1).
constexpr ModelConfig kimi_k3{
    .vocab_size = 163840, .hidden_size = 7168, .num_layers = 93, .layer_types = repeat_layers("KKKM", 23, "M"),
    .max_seq_len = 1048576, .tie_embeddings = false, .attn_res_block_size = 12,
    .kda_heads = 96, .kda_head_dim = 128, .kda_gate_rank = 128,
    .mla_heads = 96, .q_lora_rank = 1536, .kv_lora_rank = 512,
    .qk_nope_head_dim = 128, .qk_rope_head_dim = 64, .v_head_dim = 128,
    .dense_intermediate_size = 33792, .num_experts = 896, .num_experts_per_token = 16,
    .moe_intermediate_size = 3072, .moe_latent_size = 3584,
};

}  // namespace

BOOST_AUTO_TEST_SUITE(kimi_linear)

BOOST_AUTO_TEST_CASE(every_gradient_is_that_of_differences) {
    Model model = lively_model();
    const auto tokens = some_tokens(2 * 9);
    std::vector<std::int32_t> targets(tokens.rbegin(), tokens.rend());
    check_model_gradients(model, tokens, targets, 2, "linear_tiny");
}

BOOST_AUTO_TEST_CASE(causality_bit_for_bit) {
    Model model = lively_model();
    auto tokens = some_tokens(40);
    const std::vector<double> first = logits_of(model, tokens);
    tokens[20] = (tokens[20] + 1) % vocab;
    const std::vector<double> then = logits_of(model, tokens);
    BOOST_TEST(std::equal(first.begin(), first.begin() + 20 * vocab, then.begin()));
    BOOST_TEST(!std::equal(first.begin() + 20 * vocab, first.end(), then.begin() + 20 * vocab));
}

BOOST_AUTO_TEST_CASE(decoding_in_any_pieces_is_the_whole_pass) {
    Model model = lively_model();
    const auto tokens = some_tokens(40);
    const std::vector<double> whole = logits_of(model, tokens);
    for (const std::vector<Index>& pieces : {std::vector<Index>(40, 1), {40}, {7, 33}, {39, 1}}) {
        auto state = model.new_state(1, 64);
        std::vector<double> all;
        Index past = 0;
        for (const Index piece : pieces) {
            model.step(state, Tokens(tokens).subspan(to_size(past), to_size(piece)));
            const auto rows = elements(model.logits());
            all.insert(all.end(), rows.begin(), rows.end());
            past += piece;
        }
        KIMIK3_CHECK_CLOSE(all, whole, 1e-10);
    }
}

BOOST_AUTO_TEST_CASE(names_and_parameters_are_those_of_the_released_model) {
    const auto parameters = parameters_of<presets::kimi_linear_48b>();
    const std::set<std::string> kda{
        "input_layernorm.weight", "post_attention_layernorm.weight", "self_attn.q_proj.weight",
        "self_attn.k_proj.weight", "self_attn.v_proj.weight", "self_attn.q_conv1d.weight", "self_attn.k_conv1d.weight",
        "self_attn.v_conv1d.weight", "self_attn.f_a_proj.weight", "self_attn.f_b_proj.weight",
        "self_attn.b_proj.weight", "self_attn.A_log", "self_attn.dt_bias", "self_attn.g_a_proj.weight",
        "self_attn.g_b_proj.weight",
        "self_attn.o_norm.weight", "self_attn.o_proj.weight", "mlp.gate_proj.weight", "mlp.up_proj.weight",
        "mlp.down_proj.weight"};
    const std::set<std::string> mla{
        "input_layernorm.weight", "post_attention_layernorm.weight", "self_attn.q_proj.weight",
        "self_attn.kv_a_proj_with_mqa.weight", "self_attn.kv_a_layernorm.weight", "self_attn.kv_b_proj.weight",
        "self_attn.o_proj.weight", "block_sparse_moe.gate.weight", "block_sparse_moe.gate.e_score_correction_bias",
        "block_sparse_moe.shared_experts.gate_proj.weight", "block_sparse_moe.shared_experts.up_proj.weight",
        "block_sparse_moe.shared_experts.down_proj.weight"};
    BOOST_TEST(leafs_of(parameters, "model.layers.0.") == kda, boost::test_tools::per_element());
    BOOST_TEST(leafs_of(parameters, "model.layers.26.") == mla, boost::test_tools::per_element());
    const Index d = 2304, p = 4096;
    const Index kda_layer = 3 * p * d + 3 * 4 * p + 2 * (128 * d + p * 128) + 32 * d + 32 + p + 128 + d * p;
    const Index mla_layer = 32 * 192 * d + 576 * d + 512 + 32 * 256 * 512 + d * p;
    const Index moe = 256 * d + 256 + 257 * 3 * 1024 * d;
    const Index total = 2 * 163840 * d + d + 20 * kda_layer + 7 * mla_layer + 27 * 2 * d + 3 * 9216 * d + 26 * moe;
    BOOST_TEST(count_parameters(presets::kimi_linear_48b, parameters).total == total);
    BOOST_TEST(total / 100'000'000 == 491);  // 49.1 billion
}

BOOST_AUTO_TEST_CASE(k3_has_the_parameters_of_its_report) {
    const auto parameters = parameters_of<kimi_k3>();
    const ParameterCount count = count_parameters(kimi_k3, parameters);
    BOOST_TEST(count.total == 2'779'484'476'000);
    BOOST_TEST(count.active / 10'000'000 == 10536);  // 105.36 billion, both embeddings counted
}

BOOST_AUTO_TEST_SUITE_END()
