#pragma once
// KDA with a saved state a chunk, on the GPU, for any decay.

#include "kimik3/ops/cuda/kda_walk.cuh"
#include "kimik3/ops/cuda/widened.cuh"
#include "kimik3/ops/kda_chunk.hpp"

namespace kimik3 {
namespace gpu {

template <class T>
void require_chunks(const Sequences& seq, Index chunk, const KdaSizes& sizes, In<T> states) {
    require(chunk >= 16 && chunk % 16 == 0, "kda: the chunk is a multiple of 16, got {}", chunk);
    if (states.rows != 0) require_shape("kda: states", states, kda_chunks(seq, chunk), sizes.heads * sizes.state());
}

/// call(the input in float32).
template <class Call>
void with_wide_input(Widened& wide, const KdaInput<bf16>& in, Call&& call) {
    call(KdaInput<float>{wide.of(in.q), wide.of(in.k), wide.of(in.v), wide.of(in.g), wide.of(in.beta), in.initial});
}
/// call(gradients in float32), which then go to their places.
template <class Call>
void with_wide_gradient(Widened& wide, const KdaGradient<bf16>& to, Call&& call) {
    const KdaGradient<float> g{wide.result(to.q), wide.result(to.k),    wide.result(to.v),
                               wide.result(to.g), wide.result(to.beta), to.initial};
    call(g);
    wide.back(g.q, to.q), wide.back(g.k, to.k), wide.back(g.v, to.v), wide.back(g.g, to.g), wide.back(g.beta, to.beta);
}

}  // namespace gpu

template <class T>
void kda_chunk_forward(const Context<Cuda>& ctx, const Sequences& seq, Index heads, Index chunk,
                       std::type_identity_t<KdaInput<T>> in, Out<T> o,
                       std::type_identity_t<Out<accumulator_t<T>>> final, std::type_identity_t<Out<T>> states) {
    const gpu::KdaSizes sizes{detail::kda_shape<T>(seq, heads, in, o, final)};
    gpu::require_chunks<T>(seq, chunk, sizes, states);
    if constexpr (std::is_same_v<T, bf16>) {
        gpu::Widened wide(ctx, seq.tokens(), in.q, in.k, in.v, in.g, in.beta, o, states);
        gpu::with_wide_input(wide, in, [&](const KdaInput<float>& wide_in) {
            const MatrixView<float> wide_o = wide.result(o), wide_states = wide.result(states);
            gpu::walk_forward<float>(ctx, seq, sizes, chunk, wide_in, wide_o, final, wide_states);
            wide.back(wide_o, o), wide.back(wide_states, states);
        });
    } else {
        gpu::walk_forward<T>(ctx, seq, sizes, chunk, in, o, final, states);
    }
}

template <class T>
void kda_chunk_backward(const Context<Cuda>& ctx, const Sequences& seq, Index heads, Index chunk,
                        std::type_identity_t<KdaInput<T>> in, In<T> states, In<T> d_o, In<accumulator_t<T>> dfinal,
                        const KdaGradient<T>& gradient) {
    const gpu::KdaSizes sizes{detail::kda_shape<T>(seq, heads, in, d_o, dfinal)};
    gpu::require_chunks<T>(seq, chunk, sizes, states);
    if constexpr (std::is_same_v<T, bf16>) {
        gpu::Widened wide(ctx, seq.tokens(), in.q, in.k, in.v, in.g, in.beta, d_o, in.q, in.k, in.v, in.g, in.beta,
                          states);
        gpu::with_wide_input(wide, in, [&](const KdaInput<float>& wide_in) {
            gpu::with_wide_gradient(wide, gradient, [&](const KdaGradient<float>& to) {
                gpu::walk_backward<float>(ctx, seq, sizes, chunk, wide_in, wide.whole(states), wide.of(d_o), dfinal,
                                          to);
            });
        });
    } else {
        gpu::walk_backward<T>(ctx, seq, sizes, chunk, in, states, d_o, dfinal, gradient);
    }
}

}  // namespace kimik3
