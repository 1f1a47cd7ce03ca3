#pragma once
// The table of parameters of a config that is known at run time only: the names, shapes and rules that
// KimiK3<config>::parameters() lists, without a model, for converters and readers of files. The offsets are of a flat
// array of its own: the tensors outside of the layers come first, then the layers.

#include "kimik3/model/model_params.hpp"
#include "kimik3/model/parameter_layout.hpp"

namespace kimik3 {
namespace detail {

template <class Attention, class FeedForward>
void add_block_parameters(const ModelConfig& c, const std::string& prefix, ParameterTable& table) {
    typename BlockLayer<DecoderBlock<Attention, FeedForward>, Cpu, float>::template ParamsOf<float, float> block;
    block.fields(c, PrefixedVisit(prefix, table));
}

}  // namespace detail

/// Throws Error where the config breaks a rule.
inline std::vector<ParameterInfo> parameters_of(const ModelConfig& c) {
    check_invariants(c);
    ParameterTable table;
    ModelParams<LayerList<>, Cpu, float, float> outside;
    outside.fields(c, table);
    for (Index layer = 0; layer < c.num_layers; ++layer) {
        const std::string prefix = "model.layers." + std::to_string(layer) + ".";
        const bool kda = c.layer_types[layer] == Kda::letter, dense = layer < c.num_dense_layers;
        if (kda && dense) detail::add_block_parameters<Kda, DenseFfn>(c, prefix, table);
        else if (kda) detail::add_block_parameters<Kda, LatentMoe>(c, prefix, table);
        else if (dense) detail::add_block_parameters<GatedMla, DenseFfn>(c, prefix, table);
        else detail::add_block_parameters<GatedMla, LatentMoe>(c, prefix, table);
    }
    return table.entries();
}

}  // namespace kimik3
