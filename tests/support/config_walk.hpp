#pragma once
// A walk over all fields of ModelConfig, each changed to another legal value, for the laws that no field is lost.

#include <utility>
#include <vector>

#include "kimik3/config/config_fields.hpp"
#include "kimik3/config/presets.hpp"

namespace kimik3::test {

/// The addresses of all fields, as the struct has them: a field that is added must be added here, and then, so that a
/// test holds, to visit_fields.
inline std::vector<const void*> field_addresses(const ModelConfig& config) {
    const auto& [a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, b0, b1, b2, b3, b4, b5, b6, b7, b8, b9, c0, c1, c2, c3, c4, c5,
                 c6, c7, c8, c9, d0, d1, d2, d3, d4, d5, d6, d7, d8, d9, e0] = config;
    return {&a0, &a1, &a2, &a3, &a4, &a5, &a6, &a7, &a8, &a9, &b0, &b1, &b2, &b3, &b4, &b5, &b6, &b7,
            &b8, &b9, &c0, &c1, &c2, &c3, &c4, &c5, &c6, &c7, &c8, &c9, &d0, &d1, &d2, &d3, &d4, &d5,
            &d6, &d7, &d8, &d9, &e0};
}

/// A config that stays legal when any one field changes.
inline constexpr ModelConfig roomy = [] {
    ModelConfig config = presets::golden;
    config.layer_types = "KKKMM";
    config.kda_implementation = KdaImplementation::chunkwise;
    config.kda_lower_bound = -4.5;
    return config;
}();

/// The same with every mechanism off or in its other form, as in Kimi Linear.
inline constexpr ModelConfig roomy_linear = [] {
    ModelConfig config = roomy;
    config.kda_gate = DecayGate::softplus;
    config.attn_res = config.tie_embeddings = config.latent_norm = false;
    config.kda_output_gate = config.mla_output_gate = false;
    config.q_lora_rank = config.moe_latent_size = 0;
    config.kda_output_gate_rank = 7;
    config.hidden_act = Activation::silu;
    return config;
}();

template <class Field>
void change(Field& field) {
    if constexpr (std::is_same_v<Field, int>) ++field;
    else if constexpr (std::is_same_v<Field, double>) field *= 0.9;
    else if constexpr (std::is_same_v<Field, LayerPattern>) std::swap(field.letters[1], field.letters[3]);
    else field = field == Field{} ? Field{1} : Field{};  // a switch or one of two words
}

/// One config a field, that field changed, with the field's name.
inline std::vector<std::pair<std::string_view, ModelConfig>> changed_configs(const ModelConfig& base) {
    std::vector<std::string_view> names;
    visit_fields(base, [&](std::string_view name, const auto&) { names.push_back(name); });
    std::vector<std::pair<std::string_view, ModelConfig>> all;
    for (std::string_view wanted : names) {
        ModelConfig c = base;
        visit_fields(c, [&](std::string_view name, auto& field) {
            if (name == wanted) change(field);
        });
        if (wanted == "num_layers") c.layer_types.letters[base.num_layers] = 'K';
        if (wanted == "kda_chunk_size") c.kda_chunk_size = base.kda_chunk_size == 64 ? 32 : 64;
        if (wanted == "kda_implementation") c.kda_gate = DecayGate::bounded;
        if (wanted == "kda_gate" && c.kda_gate == DecayGate::softplus) c.kda_implementation = {};  // chunkwise
        all.emplace_back(wanted, c);
    }
    return all;
}

}  // namespace kimik3::test
