#pragma once
// The table of parameters of a config that is known at run time only: the names, shapes and rules that
// KimiK3<config>::parameters() lists, without a model, for converters and readers of files. The offsets are of a flat
// array of its own: the tensors outside of the layers come first, then the layers.

#include "kimik3/model/model_params.hpp"
#include "kimik3/model/parameter_layout.hpp"

namespace kimik3 {
namespace detail {

template <class Attention, class FeedForward>
void visit_block(const ModelConfig& c, FieldBinder<float, float>& visit) {
    typename BlockLayer<DecoderBlock<Attention, FeedForward>, Cpu, float>::template ParamsOf<float, float> block;
    block.fields(c, visit);
}

}  // namespace detail

/// Throws Error where the config breaks a rule.
inline std::vector<ParameterInfo> parameters_of(const ModelConfig& c) {
    check_invariants(c);
    ParameterTable table;
    FieldBinder<float, float> visit(table);
    ModelParams<LayerList<>, Cpu, float, float> outside;
    outside.fields(c, visit);
    for (Index layer = 0; layer < c.num_layers; ++layer) {
        const auto scope = visit.within_layer(layer);
        const bool kda = c.layer_types[layer] == Kda::letter, dense = layer < c.num_dense_layers;
        if (kda && dense) detail::visit_block<Kda, DenseFfn>(c, visit);
        else if (kda) detail::visit_block<Kda, LatentMoe>(c, visit);
        else if (dense) detail::visit_block<GatedMla, DenseFfn>(c, visit);
        else detail::visit_block<GatedMla, LatentMoe>(c, visit);
    }
    return table.entries();
}

}  // namespace kimik3
