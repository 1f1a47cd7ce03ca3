#pragma once
// Models of the golden config, and their parameters from golden files.

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
