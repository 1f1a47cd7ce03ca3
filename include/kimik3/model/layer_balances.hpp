#pragma once
// The balancing statistics of every layer's router (ops/quantile_balance.hpp), in one block of memory.

#include <vector>

#include "kimik3/model/model_params.hpp"
#include "kimik3/ops/quantile_balance.hpp"

namespace kimik3 {

template <class Layers, class Backend, class T>
class LayerBalances {
public:
    explicit LayerBalances(const ModelConfig& config) {
        Arena measure;
        bind(config, measure);
        memory_ = Buffer<std::byte, Backend>(measure.used_bytes());
        Arena arena(memory_.data(), memory_.size());
        bind(config, arena);
    }

    /// One a layer; those of dense layers are empty.
    const std::vector<Balance>& layers() const { return layers_; }

private:
    void bind(const ModelConfig& config, Arena& arena) {
        layers_.assign(to_size(Layers::size), Balance{});
        static_for<Layers::size>([&](auto layer) {
            if constexpr (BlockLayer<typename Layers::template at<layer>, Backend, T>::routes)
                layers_[layer] = Balance::bind(arena, config.num_experts);
        });
    }

    std::vector<Balance> layers_;
    Buffer<std::byte, Backend> memory_;
};

}  // namespace kimik3
