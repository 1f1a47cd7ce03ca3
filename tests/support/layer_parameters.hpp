#pragma once
// The parameters and gradients of one layer, in flat arrays that tests fill and read by name.

#include <span>
#include <string>
#include <vector>

#include "kimik3/config/model_config.hpp"
#include "kimik3/core/dtype.hpp"
#include "kimik3/core/rng.hpp"
#include "kimik3/model/parameter_layout.hpp"

namespace kimik3::test {

template <class Layer, class T>
class LayerParameters {
public:
    /// Weights are normal numbers of that scale, norms about one; gradients are zero.
    explicit LayerParameters(const ModelConfig& config, std::uint64_t seed = 1, double scale = 0.3) {
        ParameterTable table;
        params.fields(config, FieldBinder<T, T>(table));
        entries = table.entries();
        weights.assign(to_size(table.size()), T(0));
        gradients.assign(weights.size(), T(0));
        params.fields(config, FieldBinder<T, T>(weights.data(), weights.data()));
        grads.fields(config, FieldBinder<T, T>(gradients.data(), gradients.data()));
        Philox numbers(seed);
        for (const ParameterInfo& entry : entries)
            for (T& value : weight(entry))
                value = static_cast<T>((entry.rule.init == Init::ones ? 1.0 : 0.0) + scale * numbers.normal());
    }
    LayerParameters(const LayerParameters&) = delete;

    std::span<T> weight(const ParameterInfo& entry) { return {weights.data() + entry.offset, to_size(entry.count)}; }
    std::span<T> gradient(const ParameterInfo& entry) {
        return {gradients.data() + entry.offset, to_size(entry.count)};
    }
    const ParameterInfo& entry(const std::string& name) const {
        for (const ParameterInfo& candidate : entries)
            if (candidate.name == name) return candidate;
        fail("the layer has no parameter {}", name);
    }
    std::span<T> weight(const std::string& name) { return weight(entry(name)); }
    std::span<T> gradient(const std::string& name) { return gradient(entry(name)); }

    std::vector<ParameterInfo> entries;
    std::vector<T> weights, gradients;
    typename Layer::Params params;
    typename Layer::Grads grads;
};

}  // namespace kimik3::test
