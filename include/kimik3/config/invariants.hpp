#pragma once
// The rules that a ModelConfig keeps, one row a rule: its predicate over the config c, its sentence, and the fields to
// show when it is broken. The table is read twice: Validated<config> asserts every row when a config is a template
// argument, and check_invariants(config) throws Error with the same sentence when a config was read at run time.
// Sizes of a layer kind count only when the schedule holds that kind: an all-MLA model needs no KDA sizes.
// Every comparison of a floating-point field is written so that NaN breaks it.

#include <algorithm>
#include <array>
#include <limits>
#include <string>
#include <type_traits>

#include "kimik3/config/model_config.hpp"
#include "kimik3/core/error.hpp"

// The schedule ends two letters before the capacity, so that a longer pattern, cut when it was stored, breaks its row.
#define KIMIK3_INVARIANTS(RULE)                                                                                        \
    RULE(c.num_layers >= 1 && c.num_layers <= LayerPattern::capacity - 2, "a model has 1 to 190 layers",               \
         c.num_layers)                                                                                                 \
    RULE(c.layer_types.size() == c.num_layers, "the layer pattern has one letter a layer", c.layer_types,              \
         c.num_layers)                                                                                                 \
    RULE(only_letters(c.layer_types, "KM"), "every letter of the layer pattern is K (KDA) or M (Gated MLA)",           \
         c.layer_types)                                                                                                \
    RULE(c.num_dense_layers >= 0 && c.num_dense_layers <= c.num_layers,                                                \
         "the dense layers number at least 0 and at most all layers", c.num_dense_layers, c.num_layers)                \
    RULE(positive(c.vocab_size, c.hidden_size, c.max_seq_len),                                                         \
         "the vocabulary, the hidden width and the sequence length are positive", c.vocab_size, c.hidden_size,         \
         c.max_seq_len)                                                                                                \
    RULE(positive(c.rms_norm_eps, c.mla_lora_norm_eps), "the epsilon of every norm is positive and finite",            \
         c.rms_norm_eps, c.mla_lora_norm_eps)                                                                          \
    RULE(positive(c.init_std), "the initial standard deviation is positive and finite", c.init_std)                    \
    RULE(c.attn_res_block_size >= 1, "an Attention Residuals block has at least one layer", c.attn_res_block_size)     \
    RULE(!has_kda(c) || positive(c.kda_heads, c.kda_head_dim, c.kda_gate_rank),                                        \
         "the heads, the head size and the gate rank of KDA are positive", c.kda_heads, c.kda_head_dim,                \
         c.kda_gate_rank)                                                                                              \
    RULE(!has_kda(c) || c.kda_head_dim <= 256, "a KDA head is at most 256 wide", c.kda_head_dim)                       \
    RULE(!has_kda(c) || c.kda_conv_size >= 1, "the short convolution has at least one tap", c.kda_conv_size)           \
    RULE(!has_kda(c) || c.kda_gate_rank < c.hidden_size, "the KDA gate rank is below the hidden width",                \
         c.kda_gate_rank, c.hidden_size)                                                                               \
    RULE(!has_kda(c) || (c.kda_output_gate_rank >= 0 && c.kda_output_gate_rank < c.hidden_size),                       \
         "the rank of the KDA output gate is positive and below the hidden width, or 0 for full rank",                 \
         c.kda_output_gate_rank, c.hidden_size)                                                                        \
    RULE(c.kda_gate == DecayGate::bounded || c.kda_gate == DecayGate::softplus,                                        \
         "the KDA decay gate is bounded or softplus", c.kda_gate)                                                      \
    RULE(c.kda_lower_bound >= -5.0 && c.kda_lower_bound < 0.0, "the bound of the KDA log-decay lies in [-5, 0)",       \
         c.kda_lower_bound)                                                                                            \
    RULE(c.kda_implementation == KdaImplementation::chunkwise || c.kda_implementation == KdaImplementation::fused,     \
         "the KDA implementation is chunkwise or fused", c.kda_implementation)                                         \
    RULE(c.kda_chunk_size == 16 || c.kda_chunk_size == 32 || c.kda_chunk_size == 64,                                   \
         "the KDA chunk size is 16, 32 or 64", c.kda_chunk_size)                                                       \
    RULE(c.kda_implementation != KdaImplementation::fused || c.kda_chunk_size != 16,                                   \
         "the fused KDA takes chunks of 32 or 64; the chunkwise one also 16", c.kda_implementation, c.kda_chunk_size)  \
    RULE(c.kda_implementation != KdaImplementation::fused || c.kda_gate != DecayGate::softplus,                        \
         "the fused KDA needs the bounded decay gate; the chunkwise one takes both", c.kda_implementation, c.kda_gate) \
    RULE(!has_mla(c) || (positive(c.mla_heads, c.kv_lora_rank, c.qk_nope_head_dim, c.qk_rope_head_dim, c.v_head_dim) &&\
                         c.q_lora_rank >= 0),                                                                          \
         "the heads, the ranks and the head sizes of MLA are positive; the query rank may be 0 for none",              \
         c.mla_heads, c.q_lora_rank, c.kv_lora_rank, c.qk_nope_head_dim, c.qk_rope_head_dim, c.v_head_dim)             \
    RULE(!has_mla(c) || (c.q_lora_rank < c.hidden_size && c.kv_lora_rank < c.hidden_size),                             \
         "the ranks of MLA are below the hidden width", c.q_lora_rank, c.kv_lora_rank, c.hidden_size)                  \
    RULE(!has_dense(c) || c.dense_intermediate_size >= 1, "the dense feed-forward has a positive width",               \
         c.dense_intermediate_size)                                                                                    \
    RULE(!has_moe(c) || (positive(c.num_shared_experts, c.moe_intermediate_size) && c.moe_latent_size >= 0),           \
         "the shared experts, the expert width and the latent width are positive; the latent width may be 0 for none", \
         c.num_shared_experts, c.moe_intermediate_size, c.moe_latent_size)                                             \
    RULE(!has_moe(c) || c.moe_latent_size < c.hidden_size,                                                             \
         "the latent width of the experts is below the hidden width", c.moe_latent_size, c.hidden_size)                \
    RULE(!has_moe(c) || (c.num_experts_per_token >= 1 && c.num_experts_per_token < c.num_experts),                     \
         "a token goes to at least one expert and not to all", c.num_experts_per_token, c.num_experts)                 \
    RULE(!has_moe(c) || c.num_experts_per_token != 1 || !c.moe_renormalize,                                            \
         "one expert a token is not renormalised: its weight would always be 1 and the router could not learn",        \
         c.num_experts_per_token, c.moe_renormalize)                                                                   \
    RULE(positive(c.routed_scaling_factor), "the routed scaling factor is positive and finite",                        \
         c.routed_scaling_factor)                                                                                      \
    RULE(c.hidden_act == Activation::situ || c.hidden_act == Activation::silu, "the activation is situ or silu",       \
         c.hidden_act)                                                                                                 \
    RULE(positive(c.situ_beta, c.situ_linear_beta), "the betas of SiTU are positive and finite", c.situ_beta,          \
         c.situ_linear_beta)                                                                                           \
    RULE(fits(c.kda_heads, c.kda_head_dim) && fits(c.mla_heads, Index{c.qk_nope_head_dim} + c.qk_rope_head_dim) &&     \
             fits(c.mla_heads, Index{c.qk_nope_head_dim} + c.v_head_dim) &&                                            \
             fits(c.num_shared_experts, c.moe_intermediate_size),                                                      \
         "heads times head size and shared experts times expert width stay below 2^31", c.kda_heads, c.kda_head_dim,   \
         c.mla_heads, c.qk_nope_head_dim, c.qk_rope_head_dim, c.v_head_dim, c.num_shared_experts,                      \
         c.moe_intermediate_size)

namespace kimik3 {
namespace detail {

template <class... Numbers>
constexpr bool positive(Numbers... value) {
    return ((value > 0 && value <= (std::numeric_limits<Numbers>::max)()) && ...);
}

constexpr bool fits(Index count, Index size) {
    constexpr Index limit = (std::numeric_limits<int>::max)();
    return count <= limit && size <= limit && count * size <= limit;
}

constexpr bool only_letters(const LayerPattern& pattern, std::string_view allowed) {
    for (Index layer = 0; layer < pattern.size(); ++layer)
        if (allowed.find(pattern[layer]) == allowed.npos) return false;
    return true;
}

constexpr bool has_kda(const ModelConfig& c) { return !only_letters(c.layer_types, "M"); }
constexpr bool has_mla(const ModelConfig& c) { return !only_letters(c.layer_types, "K"); }
constexpr bool has_dense(const ModelConfig& c) { return c.num_dense_layers > 0; }
constexpr bool has_moe(const ModelConfig& c) { return c.num_dense_layers < c.num_layers; }

inline std::string shown(double value) { return fmt::format("{}", value); }
inline std::string shown(int value) { return fmt::format("{}", value); }
inline std::string shown(bool value) { return value ? "true" : "false"; }
inline std::string shown(const LayerPattern& value) { return std::string(value.letters, to_size(value.size())); }
template <class Enum>
    requires std::is_enum_v<Enum>
std::string shown(Enum value) {
    const std::string_view name = name_of(value);
    return name.empty() ? fmt::format("{}", static_cast<int>(value)) : std::string(name);
}

/// "num_layers = 5, layer_types = KKKM" from the expressions "c.num_layers, c.layer_types" and their values.
template <class... Values>
std::string shown_fields(std::string_view expressions, const Values&... values) {
    std::string text;
    const auto add = [&](const std::string& value) {
        const std::size_t end = (std::min)(expressions.find(','), expressions.size());
        if (!text.empty()) text += ", ";
        text += fmt::format("{} = {}", expressions.substr(2, end - 2), value);
        expressions.remove_prefix((std::min)(end + 2, expressions.size()));
    };
    (add(shown(values)), ...);
    return text;
}

}  // namespace detail

struct Invariant {
    std::string_view sentence;
    bool (*holds)(const ModelConfig&);
    std::string (*values)(const ModelConfig&);
};

/// The table, in the order in which rules are checked.
constexpr auto invariants() {
    using namespace detail;
#define KIMIK3_ROW(predicate, text, ...)                                        \
    Invariant{text, [](const ModelConfig& c) -> bool { return predicate; },     \
              [](const ModelConfig& c) { return shown_fields(#__VA_ARGS__, __VA_ARGS__); }},
    return std::to_array<Invariant>({KIMIK3_INVARIANTS(KIMIK3_ROW)});
#undef KIMIK3_ROW
}

/// Throws Error with the sentence of the first broken rule and the values that break it.
inline void check_invariants(const ModelConfig& config) {
    for (const Invariant& rule : invariants())
        if (!rule.holds(config)) fail("{}; this config has {}", rule.sentence, rule.values(config));
}

namespace detail {
template <ModelConfig c>
struct Validated {
#define KIMIK3_ROW(predicate, text, ...) static_assert(predicate, "kimik3: " text);
    KIMIK3_INVARIANTS(KIMIK3_ROW)
#undef KIMIK3_ROW
    static constexpr bool value = true;
};
}  // namespace detail

/// True, or a compile error that begins with the sentence of the broken rule.
template <ModelConfig config>
inline constexpr bool valid = detail::Validated<config>::value;

}  // namespace kimik3
