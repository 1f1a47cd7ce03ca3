#pragma once
// What a model costs: parameters, those active for one token, and floating-point operations. A multiply and an add are
// two operations. Backward costs twice forward. KDA in chunks of C: 6 D^2 + 3 C D + C^2 a head and token (Kimi Linear,
// 2510.26692); attention over the half of the context that causality leaves on average.

#include <algorithm>
#include <charconv>
#include <string>
#include <string_view>
#include <vector>

#include "kimik3/config/model_config.hpp"
#include "kimik3/tensor/parameters.hpp"

namespace kimik3 {

struct ParameterCount {
    Index total = 0;   // the tied embedding once, buffers included
    Index active = 0;  // of a token: chosen experts only
};

inline ParameterCount count_parameters(const ModelConfig& c, const std::vector<ParameterInfo>& parameters) {
    ParameterCount count;
    Index routed = 0;
    for (const ParameterInfo& tensor : parameters) {
        count.total += tensor.count;
        if (tensor.experts > 0) routed += tensor.count;
    }
    count.active =
        count.total - (c.num_experts > 0 ? routed / c.num_experts * (c.num_experts - c.num_experts_per_token) : 0);
    return count;
}

/// The parameters of one part of a model.
struct ParameterPart {
    std::string name;
    Index tensors = 0, total = 0, active = 0;  // elements; active: of a token
};

/// All parameters, each in one part, in the order in which the parts first appear.
inline std::vector<ParameterPart> parameter_parts(const ModelConfig& c, const std::vector<ParameterInfo>& parameters) {
    const auto part_of = [&](std::string_view name) -> std::string_view {
        if (name.starts_with("model.embed_tokens")) return c.tie_embeddings ? "embedding and head" : "embedding";
        if (name.starts_with("lm_head")) return "head";
        if (name.find("_res_norm.") != name.npos || name.find("_res_proj.") != name.npos) return "Attention Residuals";
        constexpr std::string_view layers = "model.layers.";
        if (!name.starts_with(layers)) return "norms";
        Index layer = 0;
        std::from_chars(name.data() + layers.size(), name.data() + name.size(), layer);
        name.remove_prefix(name.find('.', layers.size()) + 1);
        if (name.starts_with("self_attn.")) return c.layer_types[layer] == 'K' ? "KDA" : "Gated MLA";
        if (name.starts_with("mlp.")) return "dense feed-forward";
        if (!name.starts_with("block_sparse_moe.")) return "norms";
        if (name.find(".shared_experts.") != name.npos) return "shared experts";
        return name.find(".experts.") != name.npos ? "routed experts" : "router and latent projections";
    };
    std::vector<ParameterPart> parts;
    for (const ParameterInfo& tensor : parameters) {
        const std::string_view name = part_of(tensor.name);
        auto part = std::ranges::find(parts, name, &ParameterPart::name);
        if (part == parts.end()) part = parts.insert(part, {std::string(name)});
        ++part->tensors;
        part->total += tensor.count;
        part->active = tensor.experts > 0 ? part->total / tensor.experts * c.num_experts_per_token : part->total;
    }
    return parts;
}

/// Operations of one token's forward with its head in a sequence of length tokens.
inline double forward_flops_per_token(const ModelConfig& c, const std::vector<ParameterInfo>& parameters,
                                      Index length) {
    double flops = 0;
    for (const ParameterInfo& tensor : parameters) {
        if (!tensor.rule.decay || tensor.shape.size() != 2) continue;  // products are made with decayed matrices alone
        if (!c.tie_embeddings && tensor.name == "model.embed_tokens.weight") continue;  // a look-up
        const double share = tensor.experts > 0
                                 ? static_cast<double>(c.num_experts_per_token) / static_cast<double>(c.num_experts)
                                 : 1.0;
        flops += 2.0 * share * static_cast<double>(tensor.count);
    }
    const double d = c.kda_head_dim, chunk = c.kda_chunk_size, seen = static_cast<double>(length) / 2.0;
    for (int layer = 0; layer < c.num_layers; ++layer) {
        if (c.layer_types[layer] == 'K') flops += c.kda_heads * (6.0 * d * d + 3.0 * chunk * d + chunk * chunk);
        else flops += 2.0 * c.mla_heads * (c.qk_head_dim() + c.v_head_dim) * seen;
    }
    return flops;
}

/// Operations of one token in training: forward and backward.
inline double training_flops_per_token(const ModelConfig& c, const std::vector<ParameterInfo>& parameters,
                                       Index length) {
    return 3.0 * forward_flops_per_token(c, parameters, length);
}

}  // namespace kimik3
