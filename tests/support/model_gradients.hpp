#pragma once
// The gradients of whole models against differences of the loss.

#include <boost/test/unit_test.hpp>
#include <cmath>
#include <map>

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

/// The gradient along a random direction of every tensor, those of a layer's experts together, against differences of
/// the loss.
template <class Model>
void check_model_gradients(Model& model, Tokens tokens, Tokens targets, Index batch, const char* variant) {
    model.forward_backward(tokens, targets, batch);
    std::map<std::string, std::vector<ParameterInfo>> groups;
    for (const ParameterInfo& tensor : model.parameters()) {
        std::string name = tensor.name;
        if (const auto at = name.find(".experts."); at != name.npos) name.erase(at + 9, name.find('.', at + 9) - at - 9);
        if (tensor.rule.trained) groups[name].push_back(tensor);
    }
    const VectorView<double> w = model.weights();
    const std::vector<double> kept(w.begin(), w.end());
    for (const auto& [name, tensors] : groups) {
        std::vector<std::pair<Index, double>> direction;
        double along = 0, size = 0;
        for (const ParameterInfo& tensor : tensors) {
            Philox random(9, detail::hash_name(tensor.name));
            for (Index i = tensor.offset; i < tensor.offset + tensor.count; ++i) {
                direction.emplace_back(i, random.normal() / std::sqrt(static_cast<double>(tensor.count)));
                along += direction.back().second * model.gradients()[i];
                size += std::abs(direction.back().second * model.gradients()[i]);
            }
        }
        const auto at = [&](double step) {
            for (const auto& [i, d] : direction) w[i] = kept[to_size(i)] + step * d;
            const double loss = model.evaluate(tokens, targets, batch);
            for (const auto& [i, d] : direction) w[i] = kept[to_size(i)];
            return loss;
        };
        const double h = 1e-5, difference = (8 * (at(h) - at(-h)) - (at(2 * h) - at(-2 * h))) / (12 * h);
        const double mean = size / static_cast<double>(tensors.size());
        BOOST_CHECK_MESSAGE(std::abs(difference - along) <= 1e-7 * std::max(mean, 1e-2),
                            variant << ", " << name << ": " << along << " against " << difference);
    }
}

}  // namespace kimik3::test
