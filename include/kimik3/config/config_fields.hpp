#pragma once
// The fields of ModelConfig by name, in their order, for what walks all of them: presets that are written as code, and
// the tests that no field is lost on the way to a file and back.

#include "kimik3/config/model_config.hpp"

namespace kimik3 {

/// Calls visit(name, field) for every field.
template <class Config, class Visit>
constexpr void visit_fields(Config& c, Visit&& visit) {
#define KIMIK3_FIELD(name) visit(std::string_view(#name), c.name);
    KIMIK3_FIELD(vocab_size)
    KIMIK3_FIELD(hidden_size)
    KIMIK3_FIELD(num_layers)
    KIMIK3_FIELD(layer_types)
    KIMIK3_FIELD(num_dense_layers)
    KIMIK3_FIELD(max_seq_len)
    KIMIK3_FIELD(rms_norm_eps)
    KIMIK3_FIELD(mla_lora_norm_eps)
    KIMIK3_FIELD(tie_embeddings)
    KIMIK3_FIELD(init_std)
    KIMIK3_FIELD(attn_res)
    KIMIK3_FIELD(attn_res_block_size)
    KIMIK3_FIELD(kda_heads)
    KIMIK3_FIELD(kda_head_dim)
    KIMIK3_FIELD(kda_conv_size)
    KIMIK3_FIELD(kda_gate_rank)
    KIMIK3_FIELD(kda_gate)
    KIMIK3_FIELD(kda_lower_bound)
    KIMIK3_FIELD(kda_output_gate)
    KIMIK3_FIELD(kda_output_gate_rank)
    KIMIK3_FIELD(kda_implementation)
    KIMIK3_FIELD(kda_chunk_size)
    KIMIK3_FIELD(mla_heads)
    KIMIK3_FIELD(q_lora_rank)
    KIMIK3_FIELD(kv_lora_rank)
    KIMIK3_FIELD(qk_nope_head_dim)
    KIMIK3_FIELD(qk_rope_head_dim)
    KIMIK3_FIELD(v_head_dim)
    KIMIK3_FIELD(mla_output_gate)
    KIMIK3_FIELD(dense_intermediate_size)
    KIMIK3_FIELD(num_experts)
    KIMIK3_FIELD(num_experts_per_token)
    KIMIK3_FIELD(num_shared_experts)
    KIMIK3_FIELD(moe_intermediate_size)
    KIMIK3_FIELD(moe_latent_size)
    KIMIK3_FIELD(moe_renormalize)
    KIMIK3_FIELD(latent_norm)
    KIMIK3_FIELD(routed_scaling_factor)
    KIMIK3_FIELD(hidden_act)
    KIMIK3_FIELD(situ_beta)
    KIMIK3_FIELD(situ_linear_beta)
#undef KIMIK3_FIELD
}

}  // namespace kimik3
