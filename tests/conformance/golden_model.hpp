#pragma once
// The golden parameters in a model on either backend.

#include <algorithm>

#include "conformance/device.hpp"

namespace kimik3::test {

/// Sets every parameter of the model to "<prefix><its name>".
template <class Model>
void load(Model& model, const Golden& golden, const std::string& prefix) {
    using A = typename Model::A;
    std::vector<A> weights(to_size(model.weights().size), A(0));
    for (const ParameterInfo& tensor : model.parameters()) {
        const std::vector<double> values = golden.values(prefix + tensor.name);
        BOOST_REQUIRE_EQUAL(static_cast<Index>(values.size()), tensor.count);
        std::transform(values.begin(), values.end(), weights.begin() + tensor.offset,
                       [](double v) { return static_cast<A>(v); });
    }
    copy_from_host(model.context(), weights, model.weights());
}

template <class Backend, class T>
std::vector<T> elements_of(const Context<Backend>& ctx, VectorView<T> v) {
    std::vector<T> memory;
    const auto all = on_host(ctx, VectorView<const T>(v), memory);
    return {all.begin(), all.end()};
}

}  // namespace kimik3::test
