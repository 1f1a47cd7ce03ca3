#pragma once
// The gradients of whole models against differences of the loss.

#include <boost/test/unit_test.hpp>
#include <cmath>

#include "kimik3/core/rng.hpp"
#include "support/models.hpp"

namespace kimik3::test {

/// Moves what starts at zero or one off it, so that every parameter counts; a tensor's move depends on its name alone.
template <class Model>
void enliven(Model& model) {
    for (const ParameterInfo& tensor : model.parameters()) {
        if (tensor.rule.init != Init::zeros && tensor.rule.init != Init::ones) continue;
        Philox random(5, detail::hash_name(tensor.name));
        for (auto& w : VectorView(model.weights().data + tensor.offset, tensor.count))
            w += static_cast<typename Model::A>(random.normal() * (tensor.rule.trained ? 0.2 : 0.05));
    }
}

/// The gradient along a random direction of every tensor, against differences of the loss.
template <class Model>
void check_model_gradients(Model& model, Tokens tokens, Tokens targets, Index batch, const char* variant) {
    model.forward_backward(tokens, targets, batch);
    for (const ParameterInfo& tensor : model.parameters()) {
        if (!tensor.rule.trained) continue;
        const VectorView<double> w(model.weights().data + tensor.offset, tensor.count);
        const std::vector<double> kept(w.begin(), w.end());
        std::vector<double> direction(kept.size());
        Philox random(9, detail::hash_name(tensor.name));
        double along = 0, size = 0;
        for (Index i = 0; i < tensor.count; ++i) {
            direction[to_size(i)] = random.normal() / std::sqrt(static_cast<double>(tensor.count));
            along += direction[to_size(i)] * model.gradients()[tensor.offset + i];
            size += std::abs(direction[to_size(i)] * model.gradients()[tensor.offset + i]);
        }
        const auto at = [&](double step) {
            for (Index i = 0; i < tensor.count; ++i) w[i] = kept[to_size(i)] + step * direction[to_size(i)];
            const double loss = model.evaluate(tokens, targets, batch);
            std::copy(kept.begin(), kept.end(), w.begin());
            return loss;
        };
        const double h = 1e-5, difference = (8 * (at(h) - at(-h)) - (at(2 * h) - at(-2 * h))) / (12 * h);
        BOOST_CHECK_MESSAGE(std::abs(difference - along) <= 1e-7 * std::max(size, 1e-2),
                            variant << ", " << tensor.name << ": " << along << " against " << difference);
    }
}

}  // namespace kimik3::test
