#pragma once
// A model as a GGUF file of the architecture kimi-k3, which llama.cpp runs (src/models/kimi-k3.cpp there; spec 9.4).
// The parameters come as the table and the flat array of a model, or of a checkpoint (model/runtime_parameters.hpp).
// llama.cpp keeps other forms of some: of AttnRes the product gamma pi, -exp(A_log), kv_b_proj cut into the keys' part,
// transposed a head, and the values' part, experts stacked, the embedding twice where the head is tied. It takes the
// norms of the MLA ranks with rms_norm_eps. So their inputs are scaled, by c = sqrt(rms_norm_eps / mla_lora_norm_eps):
// x c / sqrt(c^2 mean(x^2) + rms_norm_eps) = x / sqrt(mean(x^2) + mla_lora_norm_eps). One deviation is left: in the L2
// norm of KDA it adds rms_norm_eps, not 1e-6, to the sum of squares.

#include <cmath>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kimik3/config/invariants.hpp"
#include "kimik3/io/gguf_tokenizer.hpp"
#include "kimik3/io/gguf_writer.hpp"
#include "kimik3/tensor/parameters.hpp"

namespace kimik3 {

struct GgufModelOptions {
    GgufType type = GgufType::f16;              // f32, f16, bf16 or q8_0, of matrices; the rest is f32
    std::string name = "kimik3";                // general.name
    std::optional<Tokenizer> tokenizer{};       // none: the file has no vocabulary
    std::string pre{};                          // as in format_gguf_tokenizer
    std::function<void()> progress{};           // called before every tensor is written
};

/// What a user should know of the file that was written.
struct GgufModelReport {
    Index tensors = 0, bytes = 0;            // of the tensors
    std::vector<std::string> as_f16;         // tensors whose rows q8_0's blocks do not divide
    std::vector<std::string> warnings;       // of the tokenizer
};

/// Throws Error with a sentence where llama.cpp's kimi-k3 cannot express the config.
void check_gguf_config(const ModelConfig& config);

/// Writes the model; the old file, if any, stays as it was until the new one is whole.
GgufModelReport write_gguf_model(const std::string& path, const ModelConfig& config,
                                 const std::vector<ParameterInfo>& parameters, const float* weights,
                                 const GgufModelOptions& options);

namespace detail {

/// The tensors of the file, made from those of the checkpoint.
class GgufModelTensors {
public:
    GgufModelTensors(const ModelConfig& config, const std::vector<ParameterInfo>& parameters, const float* weights,
                     GgufType type)
        : c_(config), weights_(weights), type_(type) {
        for (const ParameterInfo& tensor : parameters) unused_.emplace(tensor.name, &tensor);
        all_ = unused_;
        matrix("token_embd.weight", "model.embed_tokens.weight");
        matrix("output.weight", c_.tie_embeddings ? "model.embed_tokens.weight" : "lm_head.weight");
        exact("output_norm.weight", "model.norm.weight");
        scorer("output_res_score.weight", "model.output_attn_res");
        for (Index layer = 0; layer < c_.num_layers; ++layer) {
            to_ = fmt::format("blk.{}.", layer), from_ = fmt::format("model.layers.{}.", layer);
            exact("attn_norm.weight", "input_layernorm.weight");
            exact("ffn_norm.weight", "post_attention_layernorm.weight");
            scorer("attn_res_score.weight", "self_attention_res");
            scorer("ffn_res_score.weight", "mlp_res");
            if (c_.layer_types[layer] == 'K') kda();
            else mla();
            if (layer < c_.num_dense_layers) feed_forward("mlp.", "");
            else moe();
        }
        if (!unused_.empty())
            fail("tensor '{}' has no place in a GGUF file of the architecture kimi-k3", unused_.begin()->first);
    }

    std::vector<GgufTensorToWrite> tensors;
    std::vector<std::string> as_f16;

private:
    using Sink = GgufTensorToWrite::Sink;

    void kda() {
        for (const char* which : {"q", "k", "v"}) {
            matrix(fmt::format("attn_{}.weight", which), fmt::format("self_attn.{}_proj.weight", which));
            const ParameterInfo& conv = take(fmt::format("self_attn.{}_conv1d.weight", which));
            add(fmt::format("ssm_conv1d_{}.weight", which), {1, conv.shape[0], 1, conv.shape.back()}, GgufType::f32,
                whole(conv));
        }
        matrix("ssm_f_a.weight", "self_attn.f_a_proj.weight");
        matrix("ssm_f_b.weight", "self_attn.f_b_proj.weight");
        matrix("ssm_beta.weight", "self_attn.b_proj.weight");
        matrix("ssm_g.weight", "self_attn.g_proj.weight");
        matrix("attn_output.weight", "self_attn.o_proj.weight");
        exact("ssm_dt.bias", "self_attn.dt_bias");
        exact("ssm_norm.weight", "self_attn.o_norm.weight");
        const ParameterInfo& a_log = take("self_attn.A_log");
        add("ssm_a", {a_log.count}, GgufType::f32, [numbers = numbers_of(a_log)](const Sink& sink) {
            std::vector<float> negative;
            for (const float a : numbers) negative.push_back(-std::exp(a));
            sink(negative);
        });
    }

    void mla() {
        const float scale = static_cast<float>(std::sqrt(c_.rms_norm_eps / c_.mla_lora_norm_eps));
        if (c_.q_lora_rank > 0) {
            scaled("attn_q_a.weight", "self_attn.q_a_proj.weight", c_.q_lora_rank, scale);
            exact("attn_q_a_norm.weight", "self_attn.q_a_layernorm.weight");
            matrix("attn_q_b.weight", "self_attn.q_b_proj.weight");
        } else {
            matrix("attn_q.weight", "self_attn.q_proj.weight");
        }
        scaled("attn_kv_a_mqa.weight", "self_attn.kv_a_proj_with_mqa.weight", c_.kv_lora_rank, scale);
        exact("attn_kv_a_norm.weight", "self_attn.kv_a_layernorm.weight");
        keys_and_values();
        if (c_.mla_output_gate) matrix("attn_gate.weight", "self_attn.g_proj.weight");
        matrix("attn_output.weight", "self_attn.o_proj.weight");
    }

    /// kv_b_proj [H (n + v), c] -> attn_k_b [H, c, n] and attn_v_b [H, v, c].
    void keys_and_values() {
        const Index heads = c_.mla_heads, rank = c_.kv_lora_rank, nope = c_.qk_nope_head_dim, value = c_.v_head_dim;
        const std::span<const float> kv = numbers_of(take("self_attn.kv_b_proj.weight"));
        add("attn_k_b.weight", {heads, rank, nope}, type_, [=](const Sink& sink) {
            std::vector<float> transposed(to_size(rank * nope));
            for (Index h = 0; h < heads; ++h) {
                for (Index i = 0; i < nope; ++i)
                    for (Index j = 0; j < rank; ++j)
                        transposed[to_size(j * nope + i)] = kv[to_size((h * (nope + value) + i) * rank + j)];
                sink(transposed);
            }
        });
        add("attn_v_b.weight", {heads, value, rank}, type_, [=](const Sink& sink) {
            for (Index h = 0; h < heads; ++h)
                sink(kv.subspan(to_size((h * (nope + value) + nope) * rank), to_size(value * rank)));
        });
    }

    void feed_forward(const std::string& from, const std::string& suffix) {
        for (const char* which : {"gate", "up", "down"})
            matrix(fmt::format("ffn_{}{}.weight", which, suffix), fmt::format("{}{}_proj.weight", from, which));
    }

    void moe() {
        exact("ffn_gate_inp.weight", "block_sparse_moe.gate.weight");
        exact("exp_probs_b.bias", "block_sparse_moe.gate.e_score_correction_bias");
        experts("ffn_gate_exps.weight", "w1");
        experts("ffn_up_exps.weight", "w3");
        experts("ffn_down_exps.weight", "w2");
        if (c_.moe_latent_size > 0) {
            matrix("ffn_routed_down.weight", "block_sparse_moe.routed_expert_down_proj.weight");
            if (c_.latent_norm) exact("ffn_routed_norm.weight", "block_sparse_moe.routed_expert_norm.weight");
            matrix("ffn_routed_up.weight", "block_sparse_moe.routed_expert_up_proj.weight");
        }
        if (c_.num_shared_experts > 0) feed_forward("block_sparse_moe.shared_experts.", "_shexp");
    }

    void experts(const std::string& name, const char* which) {
        std::vector<std::span<const float>> parts;
        std::vector<Index> shape;
        for (Index e = 0; e < c_.num_experts; ++e) {
            const ParameterInfo& part = take(fmt::format("block_sparse_moe.experts.{}.{}.weight", e, which));
            parts.push_back(numbers_of(part));
            shape = {c_.num_experts, part.shape[0], part.shape[1]};
        }
        add(name, shape, type_, [parts](const Sink& sink) {
            for (const auto& part : parts) sink(part);
        });
    }

    /// norm and proj of an AttnRes site as their product.
    void scorer(const std::string& name, const std::string& site) {
        if (!c_.attn_res) return;
        const std::span<const float> norm = numbers_of(take(site + "_norm.weight"));
        const std::span<const float> proj = numbers_of(take(site + "_proj.weight"));
        add(name, {static_cast<Index>(norm.size())}, GgufType::f32, [=](const Sink& sink) {
            std::vector<float> product;
            for (std::size_t i = 0; i < norm.size(); ++i) product.push_back(norm[i] * proj[i]);
            sink(product);
        });
    }

    /// A matrix whose first rows are multiplied by scale.
    void scaled(const std::string& name, const std::string& source, Index rows, float scale) {
        const ParameterInfo& tensor = take(source);
        const std::span<const float> numbers = numbers_of(tensor);
        const std::size_t count = to_size(rows * tensor.shape[1]);
        add(name, tensor.shape, type_, [=](const Sink& sink) {
            std::vector<float> changed(numbers.begin(), numbers.end());
            for (std::size_t i = 0; i < count; ++i) changed[i] *= scale;
            sink(changed);
        });
    }

    void matrix(const std::string& name, const std::string& source) {
        const ParameterInfo& tensor = take(source);
        add(name, tensor.shape, type_, whole(tensor));
    }
    void exact(const std::string& name, const std::string& source) {
        const ParameterInfo& tensor = take(source);
        add(name, tensor.shape, GgufType::f32, whole(tensor));
    }

    std::function<void(const Sink&)> whole(const ParameterInfo& tensor) const {
        return [numbers = numbers_of(tensor)](const Sink& sink) { sink(numbers); };
    }

    void add(const std::string& name, std::vector<Index> shape, GgufType type,
             std::function<void(const Sink&)> write_numbers) {
        if (shape.back() % describe(type).elements != 0) {
            type = GgufType::f16;
            as_f16.push_back(to_ + name);
        }
        tensors.push_back({to_ + name, type, std::move(shape), std::move(write_numbers)});
    }

    const ParameterInfo& take(const std::string& source) {
        const auto found = all_.find(from_ + source);
        require(found != all_.end(), "llama.cpp's kimi-k3 needs a tensor '{}', which the model does not have",
                from_ + source);
        unused_.erase(found->first);
        return *found->second;
    }

    std::span<const float> numbers_of(const ParameterInfo& tensor) const {
        return {weights_ + tensor.offset, to_size(tensor.count)};
    }

    const ModelConfig& c_;
    const float* weights_;
    GgufType type_;
    std::map<std::string_view, const ParameterInfo*> all_, unused_;
    std::string to_, from_;  // what names begin with in the file and in the checkpoint
};

/// llama.cpp's number for the type that most of a file has (llama.h, llama_ftype).
inline std::uint32_t gguf_file_type(GgufType type) {
    switch (type) {
        case GgufType::f32: return 0;
        case GgufType::f16: return 1;
        case GgufType::q8_0: return 7;
        case GgufType::bf16: return 32;
        default: fail("models are written as f32, f16, bf16 and q8_0, not as {}", describe(type).name);
    }
}

inline GgufMetadata gguf_model_keys(const ModelConfig& c, const GgufModelOptions& options) {
    GgufMetadata keys;
    const auto text = [&](const char* key, std::string value) { keys.emplace_back(key, std::move(value)); };
    const auto count = [&](const std::string& key, Index value) {
        keys.emplace_back("kimi-k3." + key, static_cast<std::uint32_t>(value));
    };
    const auto real = [&](const std::string& key, double value) {
        keys.emplace_back("kimi-k3." + key, static_cast<float>(value));
    };
    text("general.architecture", "kimi-k3");
    text("general.type", "model");
    text("general.name", options.name);
    keys.emplace_back("general.file_type", gguf_file_type(options.type));
    keys.emplace_back("general.quantization_version", std::uint32_t{2});
    count("vocab_size", c.vocab_size);
    count("context_length", c.max_seq_len);
    count("embedding_length", c.hidden_size);
    count("block_count", c.num_layers);
    count("feed_forward_length", c.dense_intermediate_size);
    count("attention.head_count", has_mla(c) ? c.mla_heads : c.kda_heads);
    std::vector<std::int32_t> kv_heads;  // none in a KDA layer; MLA reads one latent head
    for (Index layer = 0; layer < c.num_layers; ++layer) kv_heads.push_back(c.layer_types[layer] == 'K' ? 0 : 1);
    keys.emplace_back("kimi-k3.attention.head_count_kv", std::move(kv_heads));
    real("attention.layer_norm_rms_epsilon", c.rms_norm_eps);
    count("attention.key_length", Index{c.kv_lora_rank} + c.qk_rope_head_dim);
    count("attention.value_length", c.kv_lora_rank);
    count("attention.key_length_mla", c.qk_head_dim());
    count("attention.value_length_mla", c.v_head_dim);
    if (c.q_lora_rank > 0) count("attention.q_lora_rank", c.q_lora_rank);
    count("attention.kv_lora_rank", c.kv_lora_rank);
    count("rope.dimension_count", c.qk_rope_head_dim);
    count("ssm.conv_kernel", c.kda_conv_size);
    count("kda.head_dim", c.kda_head_dim);
    if (c.kda_gate == DecayGate::bounded) real("kda.gate_lower_bound", c.kda_lower_bound);
    count("leading_dense_block_count", c.num_dense_layers);
    count("expert_count", has_moe(c) ? c.num_experts : 0);
    count("expert_used_count", has_moe(c) ? c.num_experts_per_token : 0);
    count("expert_shared_count", c.num_shared_experts);
    count("expert_feed_forward_length", c.moe_intermediate_size);
    if (c.moe_latent_size > 0) count("expert_latent_length", c.moe_latent_size);
    count("expert_gating_func", 2);  // sigmoid
    real("expert_weights_scale", c.routed_scaling_factor);
    keys.emplace_back("kimi-k3.expert_weights_norm", c.moe_renormalize);
    real("activation.situ_beta", c.situ_beta);
    real("activation.situ_linear_beta", c.situ_linear_beta);
    count("attn_res.block_size", c.attn_res ? c.attn_res_block_size : 0);
    return keys;
}

}  // namespace detail

inline void check_gguf_config(const ModelConfig& c) {
    check_invariants(c);
    const bool kda = detail::has_kda(c);
    require(kda && detail::has_mla(c), "llama.cpp's kimi-k3 has layers of both kinds, KDA and MLA; this model has {}",
            detail::shown(c.layer_types));
    require(c.kda_heads == c.mla_heads,
            "llama.cpp's kimi-k3 has as many heads in KDA as in MLA; this model has {} and {}", c.kda_heads,
            c.mla_heads);
    require(c.kda_gate_rank == c.kda_head_dim,
            "llama.cpp's kimi-k3 has a KDA gate whose rank is the size of a head, {}; this model's rank is {}",
            c.kda_head_dim, c.kda_gate_rank);
    require(c.kda_output_gate, "llama.cpp's kimi-k3 has an output gate in KDA; this model has none");
    require(c.kda_output_gate_rank == 0, "llama.cpp's kimi-k3 has an output gate of full rank in KDA; this model's has "
            "rank {}", c.kda_output_gate_rank);
    require(c.hidden_act == Activation::situ, "llama.cpp's kimi-k3 has the activation situ; this model has {}",
            detail::shown(c.hidden_act));
    require(c.kda_conv_size >= 2, "llama.cpp's kimi-k3 has a short convolution of 2 taps or more; this model's has {}",
            c.kda_conv_size);
    constexpr int most_experts = 1024;
    require(!detail::has_moe(c) || c.num_experts <= most_experts, "llama.cpp has at most {} experts; this model has {}",
            most_experts, c.num_experts);
}

inline GgufModelReport write_gguf_model(const std::string& path, const ModelConfig& config,
                                        const std::vector<ParameterInfo>& parameters, const float* weights,
                                        const GgufModelOptions& options) {
    check_gguf_config(config);
    GgufModelReport report;
    GgufMetadata keys = detail::gguf_model_keys(config, options);
    if (options.tokenizer) {
        GgufVocabulary vocabulary = format_gguf_tokenizer(*options.tokenizer, config.vocab_size, options.pre);
        keys.insert(keys.end(), vocabulary.keys.begin(), vocabulary.keys.end());
        report.warnings = std::move(vocabulary.warnings);
    } else {
        keys.emplace_back("tokenizer.ggml.model", std::string("no_vocab"));
    }
    detail::GgufModelTensors model(config, parameters, weights, options.type);
    if (options.progress)
        for (GgufTensorToWrite& tensor : model.tensors)
            tensor.write_numbers = [&, write = std::move(tensor.write_numbers)](const GgufTensorToWrite::Sink& sink) {
                options.progress();
                write(sink);
            };
    write_gguf(path, keys, model.tensors);
    report.tensors = static_cast<Index>(model.tensors.size());
    for (const GgufTensorToWrite& tensor : model.tensors) report.bytes += detail::gguf_tensor_bytes(tensor);
    report.as_f16 = std::move(model.as_f16);
    return report;
}

}  // namespace kimik3
