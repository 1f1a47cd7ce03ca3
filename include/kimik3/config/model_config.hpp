#pragma once
// ModelConfig: everything that fixes the shape of a Kimi K3 text model, as one value that is a template argument.
// Batch and sequence lengths are not in it: they stay run-time values. The rules are in config/invariants.hpp.

#include <string_view>

#include "kimik3/core/base.hpp"

namespace kimik3 {

/// The attention kind of every layer, one letter a layer, K for KDA and M for Gated MLA; spaces are for the eye.
struct LayerPattern {
    static constexpr int capacity = 192;
    char letters[capacity]{};

    constexpr LayerPattern() = default;
    template <std::size_t length>
    constexpr LayerPattern(const char (&text)[length]) : LayerPattern(std::string_view(text, length - 1)) {}
    constexpr explicit LayerPattern(std::string_view text) {
        int used = 0;
        for (char letter : text)
            if (letter != ' ' && used < capacity - 1) letters[used++] = letter;
    }

    constexpr int size() const {
        int used = 0;
        while (used < capacity && letters[used] != 0) ++used;
        return used;
    }
    constexpr char operator[](Index layer) const { return letters[layer]; }
    constexpr bool operator==(const LayerPattern&) const = default;
};

/// pattern repeats times, then last: repeat_layers("KKKM", 3, "M").
constexpr LayerPattern repeat_layers(std::string_view pattern, int repeats, std::string_view last = "") {
    LayerPattern layers;
    int used = 0;
    const auto append = [&](std::string_view letters) {
        for (char letter : letters)
            if (letter != ' ' && used < LayerPattern::capacity - 1) layers.letters[used++] = letter;
    };
    for (int r = 0; r < repeats; ++r) append(pattern);
    append(last);
    return layers;
}

/// The log-decay of KDA, from z = f_b(f_a x) + dt_bias (spec 2.2): bounded is g_min sigmoid(e^A z), softplus is
/// -e^A softplus(z).
enum class DecayGate : std::uint8_t { bounded, softplus };

constexpr std::string_view name_of(DecayGate gate) {
    return gate == DecayGate::bounded ? "bounded" : gate == DecayGate::softplus ? "softplus" : "";
}

/// chunkwise: the readable composition of one operation a step, either gate.
/// fused: the fast path, which keeps a chunk of a head in cache from the raw projections to the output.
enum class KdaImplementation : std::uint8_t { chunkwise, fused };

constexpr std::string_view name_of(KdaImplementation implementation) {
    return implementation == KdaImplementation::chunkwise ? "chunkwise"
           : implementation == KdaImplementation::fused   ? "fused"
                                                          : "";
}

/// What the gate of every feed-forward goes through: situ is SiTU-GLU (spec 5), silu is SwiGLU, silu(gate) up.
enum class Activation : std::uint8_t { situ, silu };

constexpr std::string_view name_of(Activation activation) {
    return activation == Activation::situ ? "situ" : activation == Activation::silu ? "silu" : "";
}

struct ModelConfig {
    int vocab_size = 0;
    int hidden_size = 0;
    int num_layers = 0;
    LayerPattern layer_types{};
    int num_dense_layers = 1;  // the first layers have a dense feed-forward, the rest Stable LatentMoE
    int max_seq_len = 2048;
    double rms_norm_eps = 1e-5;
    double mla_lora_norm_eps = 1e-6;
    bool tie_embeddings = true;
    double init_std = 0.02;

    // Attention Residuals; off: the plain residual stream.
    bool attn_res = true;
    int attn_res_block_size = 2;  // in decoder layers

    // Kimi Delta Attention
    int kda_heads = 0;
    int kda_head_dim = 0;  // of keys and of values
    int kda_conv_size = 4;
    int kda_gate_rank = 0;
    DecayGate kda_gate = DecayGate::bounded;
    double kda_lower_bound = -5.0;  // of the log-decay, bounded gate only
    bool kda_output_gate = true;
    int kda_output_gate_rank = 0;  // 0: full rank
    KdaImplementation kda_implementation = KdaImplementation::fused;
    int kda_chunk_size = 32;

    // Gated MLA
    int mla_heads = 0;
    int q_lora_rank = 0;  // 0: one matrix q_proj
    int kv_lora_rank = 0;
    int qk_nope_head_dim = 0;
    int qk_rope_head_dim = 0;  // the key slice shared by all heads; nothing is rotated
    int v_head_dim = 0;
    bool mla_output_gate = true;

    // Feed-forward
    int dense_intermediate_size = 0;
    int num_experts = 0;
    int num_experts_per_token = 0;
    int num_shared_experts = 2;
    int moe_intermediate_size = 0;
    int moe_latent_size = 0;      // 0: routed experts work at the hidden width, without projections and norm
    bool moe_renormalize = true;  // chosen scores are divided by their sum
    bool latent_norm = true;
    double routed_scaling_factor = 1.0;
    Activation hidden_act = Activation::situ;
    double situ_beta = 4.0;
    double situ_linear_beta = 25.0;

    constexpr int kda_width() const { return kda_heads * kda_head_dim; }
    constexpr int qk_head_dim() const { return qk_nope_head_dim + qk_rope_head_dim; }
    constexpr int expert_width() const { return moe_latent_size > 0 ? moe_latent_size : hidden_size; }
    constexpr int shared_intermediate_size() const { return num_shared_experts * moe_intermediate_size; }
    constexpr bool operator==(const ModelConfig&) const = default;
};

}  // namespace kimik3
