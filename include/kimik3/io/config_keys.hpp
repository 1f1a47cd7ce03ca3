#pragma once
// The keys of config.json, as the released K3 file has them: which field of ModelConfig a key stands for, which keys
// must have one of a few values because the architecture knows no other, and which say nothing about the text model.
// Source: config.json and configuration_kimi_k3.py of the released checkpoint (spec 9.1).

#include <string_view>
#include <type_traits>

#include "kimik3/config/model_config.hpp"

namespace kimik3::detail {

/// The objects of the file. A flat file has no outer one: its text keys stand at the top.
enum class ConfigSection { outer, text, linear, ours };

/// The name of a section's object; empty for the two that may stand at the top.
constexpr std::string_view section_name(ConfigSection section) {
    return section == ConfigSection::linear ? "linear_attn_config" : section == ConfigSection::ours ? "kimik3" : "";
}

/// Calls visit(section, key, field) for every field that has a key of its own and a value in every model. The others
/// are layer_types (linear_attn_config.kda_layers and .full_attn_layers, counted from 1), the numbers in
/// visit_nullable_fields and the pairs of a switch and a number in visit_switched_fields. Keys of the section kimik3
/// may be missing: the released file has none.
template <class Config, class Visit>
constexpr void visit_config_fields(Config& c, Visit&& visit) {
    using enum ConfigSection;
    visit(text, "vocab_size", c.vocab_size);
    visit(text, "hidden_size", c.hidden_size);
    visit(text, "num_hidden_layers", c.num_layers);
    visit(text, "first_k_dense_replace", c.num_dense_layers);
    visit(text, "max_position_embeddings", c.max_seq_len);
    visit(text, "rms_norm_eps", c.rms_norm_eps);
    visit(text, "tie_word_embeddings", c.tie_embeddings);
    visit(text, "initializer_range", c.init_std);

    visit(linear, "num_heads", c.kda_heads);
    visit(linear, "head_dim", c.kda_head_dim);
    visit(linear, "short_conv_kernel_size", c.kda_conv_size);

    visit(text, "num_attention_heads", c.mla_heads);
    visit(text, "kv_lora_rank", c.kv_lora_rank);
    visit(text, "qk_nope_head_dim", c.qk_nope_head_dim);
    visit(text, "qk_rope_head_dim", c.qk_rope_head_dim);
    visit(text, "v_head_dim", c.v_head_dim);
    visit(text, "mla_use_output_gate", c.mla_output_gate);

    visit(text, "intermediate_size", c.dense_intermediate_size);
    visit(text, "num_experts", c.num_experts);
    visit(text, "num_experts_per_token", c.num_experts_per_token);
    visit(text, "num_shared_experts", c.num_shared_experts);
    visit(text, "moe_intermediate_size", c.moe_intermediate_size);
    visit(text, "moe_renormalize", c.moe_renormalize);
    visit(text, "latent_moe_use_norm", c.latent_norm);
    visit(text, "routed_scaling_factor", c.routed_scaling_factor);
    visit(text, "hidden_act", c.hidden_act);
    visit(text, "activation_situ_beta", c.situ_beta);
    visit(text, "activation_situ_linear_beta", c.situ_linear_beta);

    visit(ours, "mla_lora_norm_eps", c.mla_lora_norm_eps);
    visit(ours, "kda_gate_rank", c.kda_gate_rank);
    visit(ours, "kda_output_gate", c.kda_output_gate);
    visit(ours, "kda_output_gate_rank", c.kda_output_gate_rank);
    visit(ours, "kda_implementation", c.kda_implementation);
    visit(ours, "kda_chunk_size", c.kda_chunk_size);
}

/// Calls visit(section, key, number) for the sizes of projections that a model may lack: 0 here, null or missing there.
template <class Config, class Visit>
constexpr void visit_nullable_fields(Config& c, Visit&& visit) {
    visit(ConfigSection::text, "q_lora_rank", c.q_lora_rank);
    visit(ConfigSection::text, "routed_expert_hidden_size", c.moe_latent_size);
}

/// Calls visit(section, key, is_on, number) for the numbers whose absence switches a mechanism off. While it is off the
/// number stands under the same key in the section kimik3, so that it is not lost.
template <class Config, class Visit>
constexpr void visit_switched_fields(Config& c, Visit&& visit) {
    visit(ConfigSection::text, "attn_res_block_size", c.attn_res, c.attn_res_block_size);
    bool bounded = c.kda_gate == DecayGate::bounded;
    visit(ConfigSection::linear, "gate_lower_bound", bounded, c.kda_lower_bound);
    if constexpr (!std::is_const_v<Config>) c.kda_gate = bounded ? DecayGate::bounded : DecayGate::softplus;
}

/// A key with few legal values: a JSON list of them, of which the first is written. Required: its absence would mean
/// another value to the reference.
struct ChoiceKey {
    ConfigSection section;
    std::string_view key;
    std::string_view valid;
    bool required;
    bool written;
};

inline constexpr std::string_view valid_dtypes = R"(["float32","bfloat16","float16","float64"])";

inline constexpr ChoiceKey choice_keys[] = {
    {ConfigSection::text, "architectures", R"([["KimiLinearForCausalLM"]])", false, true},
    {ConfigSection::text, "model_type", R"(["kimi_linear"])", true, true},
    {ConfigSection::text, "mla_use_nope", "[true]", true, true},
    {ConfigSection::text, "moe_layer_freq", "[1]", false, true},
    {ConfigSection::text, "moe_router_activation_func", R"(["sigmoid"])", false, true},
    {ConfigSection::text, "topk_method", R"(["noaux_tc"])", false, true},
    {ConfigSection::text, "num_expert_group", "[1]", false, true},
    {ConfigSection::text, "topk_group", "[1]", false, true},
    {ConfigSection::text, "use_grouped_topk", "[true,false]", false, false},  // one group: the same
    {ConfigSection::text, "num_nextn_predict_layers", "[0]", false, true},
    {ConfigSection::text, "chunk_size_feed_forward", "[0]", false, false},
    {ConfigSection::text, "pruned_heads", "[{}]", false, false},
    {ConfigSection::text, "add_cross_attention", "[false]", false, false},
    {ConfigSection::text, "is_encoder_decoder", "[false]", false, false},
    {ConfigSection::text, "dtype", valid_dtypes, false, false},
    {ConfigSection::text, "torch_dtype", valid_dtypes, false, false},
    {ConfigSection::outer, "architectures", R"([["KimiK3ForConditionalGeneration"]])", false, false},
    {ConfigSection::outer, "model_type", R"(["kimi_k3"])", false, false},
    {ConfigSection::outer, "dtype", valid_dtypes, false, false},
    {ConfigSection::outer, "torch_dtype", valid_dtypes, false, false},
};

/// Keys checked by rules of their own: num_key_value_heads equals num_attention_heads; model_max_length is Kimi
/// Linear's word for max_position_embeddings; a rope object must not scale, for that would change the softmax.
inline constexpr std::string_view ruled_text_keys[] = {"num_key_value_heads", "model_max_length", "rope_scaling",
                                                       "rope_parameters"};

/// Keys that say nothing about the text model's arithmetic: token ids, generation defaults, labels, vision, the storage
/// of quantised tensors (the names of a checkpoint's tensors tell it), the rotation's base (nothing is rotated).
inline constexpr std::string_view ignored_text_keys[] = {
    "_name_or_path", "auto_map", "bad_words_ids", "begin_suppress_tokens", "bos_token_id",
    "cross_attention_hidden_size", "decoder_start_token_id", "diversity_penalty", "do_sample", "early_stopping",
    "encoder_no_repeat_ngram_size", "eos_token_id", "exponential_decay_length_penalty", "finetuning_task",
    "forced_bos_token_id", "forced_eos_token_id", "head_dim", "id2label", "is_decoder", "label2id", "length_penalty",
    "max_length", "min_length", "no_repeat_ngram_size", "num_beam_groups", "num_beams", "num_return_sequences",
    "output_attentions", "output_hidden_states", "output_scores", "pad_token_id", "prefix", "problem_type",
    "quantization_config", "remove_invalid_values", "repetition_penalty", "return_dict", "return_dict_in_generate",
    "rope_theta", "sep_token_id", "suppress_tokens", "task_specific_params", "temperature", "tf_legacy_loss",
    "tie_encoder_decoder", "tokenizer_class", "top_k", "top_p", "torchscript", "transformers_version", "typical_p",
    "use_bfloat16", "use_cache",
};

inline constexpr std::string_view ignored_outer_keys[] = {
    "auto_map", "bos_token_id", "eos_token_id", "ignore_index", "image_placeholder", "media_placeholder_token_id",
    "pad_token_id", "quantization_config", "transformers_version", "use_cache", "vision_config",
};

}  // namespace kimik3::detail
