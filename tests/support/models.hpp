#pragma once
// Models of the golden config, their parameters from golden files, and choices of experts that roundings leave alone.

#include "kimik3/kimik3.hpp"
#include "support/golden.hpp"

namespace kimik3::test {

/// The golden config with the readable KDA.
inline constexpr ModelConfig golden_chunkwise = [] {
    ModelConfig c = presets::golden;
    c.kda_implementation = KdaImplementation::chunkwise;
    c.kda_chunk_size = 16;
    return c;
}();

/// Sets every parameter of the model to "<prefix><its name>".
template <class Model>
void load_parameters(Model& model, const Golden& golden, const std::string& prefix) {
    for (const ParameterInfo& tensor : model.parameters()) {
        const std::vector<double> values = golden.values(prefix + tensor.name);
        BOOST_REQUIRE_EQUAL(static_cast<Index>(values.size()), tensor.count);
        for (Index i = 0; i < tensor.count; ++i)
            model.weights()[tensor.offset + i] = static_cast<typename Model::A>(values[to_size(i)]);
    }
}

/// Biases so far apart that all tokens choose the same experts, however their scores are rounded. In bf16 two ways of
/// rounding make other choices here and there, and from then on other numbers.
template <class Model>
void settle_choices(Model& model) {
    using A = typename Model::A;
    const VectorView<A> weights = model.weights();
    Index layer = 0;
    for (const ParameterInfo& tensor : model.parameters()) {
        if (!tensor.name.ends_with("e_score_correction_bias")) continue;
        ++layer;
        std::vector<A> bias;
        for (Index e = 0; e < tensor.count; ++e) bias.push_back(static_cast<A>(2 * ((e + 5 * layer) % tensor.count)));
        copy_from_host(model.context(), bias, VectorView<A>(weights.data + tensor.offset, tensor.count));
    }
}

/// One tensor of a flat array.
template <class A>
std::span<const A> tensor_of(VectorView<A> flat, const ParameterInfo& tensor) {
    return {flat.data + tensor.offset, to_size(tensor.count)};
}

template <class T>
std::span<const T> elements(MatrixView<const T> m) {
    return {m.data, to_size(m.size())};
}

}  // namespace kimik3::test
