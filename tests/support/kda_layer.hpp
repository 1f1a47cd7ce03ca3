#pragma once
// A KDA layer with parameters, activations and gradients for tests.

#include "kimik3/layers/kda.hpp"
#include "kimik3/ops/cpu/decay_gate.hpp"
#include "kimik3/ops/cpu/gated_norm.hpp"
#include "kimik3/ops/cpu/kda_chunk.hpp"
#include "kimik3/ops/cpu/kda_fused.hpp"
#include "kimik3/ops/cpu/kda_recurrent.hpp"
#include "kimik3/ops/cpu/l2_norm.hpp"
#include "kimik3/ops/cpu/matmul.hpp"
#include "kimik3/ops/cpu/short_conv.hpp"
#include "kimik3/ops/cpu/sigmoid.hpp"
#include "support/layer_parameters.hpp"
#include "support/matrix.hpp"

namespace kimik3::test {

/// Memory for a list of activations, all bits set (NaN).
template <class Bind>
auto bound(Buffer<std::byte>& memory, Bind&& bind) {
    Arena size;
    bind(size);
    memory = Buffer<std::byte>(size.used_bytes() + 1);
    std::memset(memory.data(), 0xff, to_size(memory.size()));
    Arena arena(memory.data(), memory.size());
    return bind(arena);
}

template <class T, KdaImplementation implementation>
struct KdaLayerCase {
    using Layer = KdaLayer<implementation, Cpu, T>;

    KdaLayerCase(const ModelConfig& c, Sequences sequences, std::uint64_t seed = 1)
        : config(c),
          seq(std::move(sequences)),
          fields(c, seed),
          x(Matrix<T>::random(seq.tokens(), c.hidden_size, seed + 1)),
          dy(Matrix<T>::random(seq.tokens(), c.hidden_size, seed + 2)),
          y(seq.tokens(), c.hidden_size),
          dx(seq.tokens(), c.hidden_size) {}

    void forward(const Context<Cpu>& ctx) {
        saved = bound(memory, [&](Arena& arena) { return Layer::bind_saved(arena, config, seq); });
        Layer::forward(ctx, config, fields.params, seq, x, y, saved);
    }
    void backward(const Context<Cpu>& ctx) {
        Layer::backward(ctx, config, fields.params, fields.grads, seq, x, dy, dx, saved);
    }
    void run(const Context<Cpu>& ctx) {
        forward(ctx);
        backward(ctx);
    }

    ModelConfig config;
    Sequences seq;
    LayerParameters<Layer, T> fields;
    Matrix<T> x, dy, y, dx;
    Buffer<std::byte> memory;
    typename Layer::Saved saved{};
};

/// body(layer) with the layer that the config asks for.
template <class T, class Body>
void with_kda_layer(const ModelConfig& config, const Sequences& seq, Body&& body) {
    if (config.kda_implementation == KdaImplementation::fused) {
        KdaLayerCase<T, KdaImplementation::fused> layer(config, seq);
        body(layer);
    } else {
        KdaLayerCase<T, KdaImplementation::chunkwise> layer(config, seq);
        body(layer);
    }
}

/// Slots of decoding state for a layer, NaN to begin with, and runs of tokens through them.
template <class T, KdaImplementation implementation>
struct KdaDecoder {
    using Layer = KdaLayer<implementation, Cpu, T>;

    KdaDecoder(KdaLayerCase<T, implementation>& owner, Index slots) : layer(owner) {
        state = bound(memory, [&](Arena& arena) { return Layer::bind_state(arena, owner.config, slots, 64); });
    }

    /// The next rows of several sequences: sequence s takes rows [first[s], first[s] + count[s]) of inputs[s].
    std::vector<T> take(const Context<Cpu>& ctx, const std::vector<std::vector<T>>& tokens,
                        const std::vector<Index>& slots, const std::vector<Index>& past) {
        const Index width = layer.config.hidden_size;
        std::vector<Index> offsets{0};
        std::vector<T> all;
        for (const auto& rows : tokens) {
            all.insert(all.end(), rows.begin(), rows.end());
            offsets.push_back(static_cast<Index>(all.size()) / width);
        }
        const Sequences seq(offsets, slots, past);
        Buffer<std::byte> scratch;
        auto saved = bound(scratch, [&](Arena& arena) { return Layer::bind_saved(arena, layer.config, seq); });
        Matrix<T> x = Matrix<T>::of(seq.tokens(), width, all), y(seq.tokens(), width);
        Layer::forward(ctx, layer.config, layer.fields.params, seq, x, y, saved, &state);
        return y.values();
    }

    KdaLayerCase<T, implementation>& layer;
    Buffer<std::byte> memory;
    typename Layer::State state{};
};

}  // namespace kimik3::test
