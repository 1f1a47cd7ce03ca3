#pragma once
// Gated MLA with everything it reads and writes, for tests.

#include "kimik3/layers/mla.hpp"
#include "kimik3/ops/cpu/causal_attention.hpp"
#include "kimik3/ops/cpu/latent_attention.hpp"
#include "kimik3/ops/cpu/matmul.hpp"
#include "kimik3/ops/cpu/rms_norm.hpp"
#include "kimik3/ops/cpu/sigmoid_gate.hpp"
#include "support/layer_parameters.hpp"
#include "support/matrix.hpp"

namespace kimik3::test {

/// The sizes that the layer reads.
inline ModelConfig mla_config(Index width, Index q_rank, Index kv_rank, Index heads, Index nope, Index shared,
                              Index value) {
    ModelConfig c;
    c.hidden_size = static_cast<int>(width);
    c.q_lora_rank = static_cast<int>(q_rank), c.kv_lora_rank = static_cast<int>(kv_rank);
    c.mla_heads = static_cast<int>(heads), c.qk_nope_head_dim = static_cast<int>(nope);
    c.qk_rope_head_dim = static_cast<int>(shared), c.v_head_dim = static_cast<int>(value);
    return c;
}

template <class T>
struct MlaTest {
    using Layer = MlaLayer<Cpu, T>;

    ModelConfig config;
    LayerParameters<Layer, T> fields;
    Sequences seq;
    Matrix<T> x, dy, y, dx;

    MlaTest(const ModelConfig& c, Sequences sequences, std::uint64_t seed = 1)
        : config(c),
          fields(c, seed),
          seq(std::move(sequences)),
          x(Matrix<T>::random(seq.tokens(), c.hidden_size, seed + 1)),
          dy(Matrix<T>::random(seq.tokens(), c.hidden_size, seed + 2)),
          y(seq.tokens(), c.hidden_size),
          dx(seq.tokens(), c.hidden_size) {}

    /// Memory that a bind function lays out, NaN to begin with.
    template <class Bind>
    static auto bound(std::vector<T>& memory, Bind&& bind) {
        Arena measure;
        bind(measure);
        memory.assign(to_size(measure.used_bytes()) / sizeof(T) + 1, std::numeric_limits<T>::quiet_NaN());
        Arena arena(reinterpret_cast<std::byte*>(memory.data()), measure.used_bytes());
        return bind(arena);
    }

    void run(const Context<Cpu>& ctx, bool with_backward = false) {
        std::vector<T> memory;
        auto saved = bound(memory, [&](Arena& arena) { return Layer::bind_saved(arena, config, seq); });
        Layer::forward(ctx, config, fields.params, seq, x, y, saved);
        if (with_backward) Layer::backward(ctx, config, fields.params, fields.grads, seq, x, dy, dx, saved);
    }
    /// Outputs and all gradients, one after another.
    std::vector<T> results() {
        std::vector<T> all = y.values();
        for (const std::vector<T>& more : {dx.values(), fields.gradients})
            all.insert(all.end(), more.begin(), more.end());
        return all;
    }
};

/// Decoding with the parameters of a layer.
template <class T>
struct MlaDecoder {
    using Layer = MlaLayer<Cpu, T>;

    MlaTest<T>& layer;
    std::vector<T> memory;
    typename Layer::State state;

    MlaDecoder(MlaTest<T>& of, Index slots, Index max_len) : layer(of) {
        state = MlaTest<T>::bound(memory,
                                  [&](Arena& arena) { return Layer::bind_state(arena, layer.config, slots, max_len); });
    }
    /// Takes in the rows of x, as many as seq says.
    std::vector<T> step(const Context<Cpu>& ctx, const Sequences& seq, MatrixView<const T> x) {
        std::vector<T> scratch;
        auto saved =
            MlaTest<T>::bound(scratch, [&](Arena& arena) { return Layer::bind_saved(arena, layer.config, seq); });
        Matrix<T> y(seq.tokens(), layer.config.hidden_size);
        Layer::forward(ctx, layer.config, layer.fields.params, seq, x, y, saved, &state);
        return y.values();
    }
};

}  // namespace kimik3::test
