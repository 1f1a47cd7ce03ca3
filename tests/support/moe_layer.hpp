#pragma once
// Stable LatentMoE with everything it reads and writes, for tests.

#include "kimik3/layers/latent_moe.hpp"
#include "kimik3/ops/cpu/add.hpp"
#include "kimik3/ops/cpu/expert_dispatch.hpp"
#include "kimik3/ops/cpu/expert_products.hpp"
#include "kimik3/ops/cpu/quantile_balance.hpp"
#include "kimik3/ops/cpu/rms_norm.hpp"
#include "kimik3/ops/cpu/router.hpp"
#include "support/layer_parameters.hpp"
#include "support/matrix.hpp"

namespace kimik3::test {

template <class T>
struct MoeLayer {
    using Layer = LatentMoeLayer<Cpu, T>;

    ModelConfig config;
    LayerParameters<Layer, T> fields;
    Matrix<T> x, dy, y, dx;
    Sequences sequences;
    std::vector<T> memory;  // of saved, NaN to begin with
    typename Layer::Saved saved;

    MoeLayer(const ModelConfig& c, Index tokens, std::uint64_t seed = 1)
        : config(c), fields(c, seed), x(Matrix<T>::random(tokens, c.hidden_size, seed + 1)),
          dy(Matrix<T>::random(tokens, c.hidden_size, seed + 2)), y(tokens, c.hidden_size), dx(tokens, c.hidden_size),
          sequences({0, tokens}) {
        Arena measure;
        Layer::bind_saved(measure, c, sequences);
        memory.assign(to_size(measure.used_bytes()) / sizeof(T) + 1, std::numeric_limits<T>::quiet_NaN());
        Arena arena(reinterpret_cast<std::byte*>(memory.data()), measure.used_bytes());
        saved = Layer::bind_saved(arena, c, sequences);
    }

    void forward(const Context<Cpu>& ctx, const Balance* balance = nullptr,
                 VectorView<const std::uint8_t> counted = {}) {
        Layer::forward(ctx, config, fields.params, sequences, x, y, saved);
        if (balance != nullptr) Layer::count(ctx, fields.params, saved, counted, *balance);
    }
    void backward(const Context<Cpu>& ctx) {
        Layer::backward(ctx, config, fields.params, fields.grads, sequences, x, dy, dx, saved);
    }
    /// Outputs and all gradients, one after another.
    std::vector<T> results() {
        std::vector<T> all = y.values();
        for (const std::vector<T>& more : {dx.values(), fields.gradients})
            all.insert(all.end(), more.begin(), more.end());
        return all;
    }
};

}  // namespace kimik3::test
