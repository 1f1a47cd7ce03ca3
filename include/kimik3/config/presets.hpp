#pragma once
// The models that the programs offer by name. A preset is a ModelConfig value: KimiK3<presets::tiny>. Sizes follow the
// released K3: three KDA layers to one of Gated MLA, the last layer MLA, the first feed-forward dense, the rest Stable
// LatentMoE with two shared experts, a tied head.

#include "kimik3/config/invariants.hpp"

#pragma push_macro("small")  // which windows.h defines
#undef small

namespace kimik3::presets {

/// The model of the golden files: small odd sizes, every mechanism on.
inline constexpr ModelConfig golden{
    .vocab_size = 67, .hidden_size = 48, .num_layers = 5, .layer_types = "KKKM M", .max_seq_len = 128, .init_std = 0.1,
    .kda_heads = 3, .kda_head_dim = 16, .kda_gate_rank = 16,
    .mla_heads = 3, .q_lora_rank = 24, .kv_lora_rank = 16,
    .qk_nope_head_dim = 16, .qk_rope_head_dim = 8, .v_head_dim = 16,
    .dense_intermediate_size = 80, .num_experts = 8, .num_experts_per_token = 2,
    .moe_intermediate_size = 20, .moe_latent_size = 24, .routed_scaling_factor = 2.5,
};

/// 2M parameters: learns to spell in a minute or two on two cores.
inline constexpr ModelConfig tiny{
    .vocab_size = 1024, .hidden_size = 128, .num_layers = 5, .layer_types = "KKKM M", .max_seq_len = 512,
    .kda_heads = 4, .kda_head_dim = 32, .kda_gate_rank = 32,
    .mla_heads = 4, .q_lora_rank = 64, .kv_lora_rank = 32,
    .qk_nope_head_dim = 32, .qk_rope_head_dim = 16, .v_head_dim = 32,
    .dense_intermediate_size = 384, .num_experts = 16, .num_experts_per_token = 2,
    .moe_intermediate_size = 80, .moe_latent_size = 64,
};

/// 12.7M parameters: the size of the benchmarks.
inline constexpr ModelConfig small{
    .vocab_size = 4096, .hidden_size = 256, .num_layers = 9, .layer_types = "KKKM KKKM M",
    .kda_heads = 4, .kda_head_dim = 64, .kda_gate_rank = 64,
    .mla_heads = 4, .q_lora_rank = 96, .kv_lora_rank = 64,
    .qk_nope_head_dim = 32, .qk_rope_head_dim = 16, .v_head_dim = 32,
    .dense_intermediate_size = 768, .num_experts = 16, .num_experts_per_token = 2,
    .moe_intermediate_size = 128, .moe_latent_size = 128,
};

/// 294.5M parameters, 95.4M active.
inline constexpr ModelConfig k3_300m{
    .vocab_size = 49152, .hidden_size = 640, .num_layers = 13, .layer_types = "KKKM KKKM KKKM M",
    .kda_heads = 5, .kda_head_dim = 128, .kda_gate_rank = 128, .kda_chunk_size = 64,
    .mla_heads = 5, .q_lora_rank = 256, .kv_lora_rank = 128,
    .qk_nope_head_dim = 128, .qk_rope_head_dim = 64, .v_head_dim = 128,
    .dense_intermediate_size = 3072, .num_experts = 64, .num_experts_per_token = 4,
    .moe_intermediate_size = 288, .moe_latent_size = 320,
};

/// A small model of the Kimi Linear family: plain residuals, softplus decay, output gate of KDA of low rank, MLA with
/// neither query rank nor gate, SwiGLU, routed experts at the hidden width, an untied head.
inline constexpr ModelConfig linear_tiny{
    .vocab_size = 1024, .hidden_size = 96, .num_layers = 5, .layer_types = "KKKM M", .max_seq_len = 512,
    .tie_embeddings = false, .attn_res = false,
    .kda_heads = 3, .kda_head_dim = 32, .kda_gate_rank = 32, .kda_gate = DecayGate::softplus,
    .kda_output_gate_rank = 32, .kda_implementation = KdaImplementation::chunkwise,
    .mla_heads = 3, .kv_lora_rank = 32,
    .qk_nope_head_dim = 32, .qk_rope_head_dim = 16, .v_head_dim = 32, .mla_output_gate = false,
    .dense_intermediate_size = 288, .num_experts = 16, .num_experts_per_token = 2, .num_shared_experts = 1,
    .moe_intermediate_size = 48, .routed_scaling_factor = 2.446, .hidden_act = Activation::silu,
};

/// Kimi-Linear-48B-A3B as it was released (spec 9.3).
inline constexpr ModelConfig kimi_linear_48b{
    .vocab_size = 163840, .hidden_size = 2304, .num_layers = 27, .layer_types = repeat_layers("KKKM", 6, "KKM"),
    .max_seq_len = 1048576, .tie_embeddings = false, .attn_res = false,
    .kda_heads = 32, .kda_head_dim = 128, .kda_gate_rank = 128, .kda_gate = DecayGate::softplus,
    .kda_output_gate_rank = 128, .kda_implementation = KdaImplementation::chunkwise,
    .mla_heads = 32, .kv_lora_rank = 512,
    .qk_nope_head_dim = 128, .qk_rope_head_dim = 64, .v_head_dim = 128, .mla_output_gate = false,
    .dense_intermediate_size = 9216, .num_experts = 256, .num_experts_per_token = 8, .num_shared_experts = 1,
    .moe_intermediate_size = 1024, .routed_scaling_factor = 2.446, .hidden_act = Activation::silu,
};

struct Named {
    std::string_view name;
    const ModelConfig& config;
};

/// Every preset, for programs that choose one by its name at run time.
inline constexpr Named all[] = {{"golden", golden},   {"tiny", tiny},
                                {"small", small},     {"k3_300m", k3_300m},
                                {"linear_tiny", linear_tiny}, {"kimi_linear_48b", kimi_linear_48b}};

/// The preset of that name, or Error with the list of names.
inline const ModelConfig& find(std::string_view name) {
    std::string names;
    for (const Named& preset : all) {
        if (preset.name == name) return preset.config;
        names += (names.empty() ? "" : ", ") + std::string(preset.name);
    }
    fail("the presets are {}; there is none named \"{}\"", names, name);
}

/// The preset whose width and depth are nearest to those of a config that equals none of them.
inline const Named& nearest(const ModelConfig& config) {
    const auto distance = [&](const ModelConfig& other) {
        const Index width = Index{config.hidden_size} - other.hidden_size;
        const Index depth = Index{config.num_layers} - other.num_layers;
        return (width < 0 ? -width : width) + 16 * (depth < 0 ? -depth : depth);
    };
    const Named* best = all;
    for (const Named& preset : all)
        if (distance(preset.config) < distance(best->config)) best = &preset;
    return *best;
}

/// The line of CMake that makes a preset of a config.json, named by its whole path, for a target
/// (cmake/kimik3AddPreset.cmake).
inline std::string add_preset_line(std::string_view target, std::string_view config_json) {
    return fmt::format("kimik3_add_preset({} \"{}\")", target, config_json);
}

}  // namespace kimik3::presets

#pragma pop_macro("small")
