#pragma once
// Token-by-token KDA on the GPU. Backward first walks forward to save the states before its segments.

#include "kimik3/ops/cuda/kda_walk.cuh"
#include "kimik3/ops/kda_recurrent.hpp"

namespace kimik3 {
namespace gpu {

inline constexpr Index walk_segment = 32;

}  // namespace gpu

template <class T>
void kda_recurrent_forward(const Context<Cuda>& ctx, const Sequences& seq, Index heads,
                           std::type_identity_t<KdaInput<T>> in, Out<T> o,
                           std::type_identity_t<Out<accumulator_t<T>>> final) {
    const gpu::KdaSizes sizes = gpu::kda_sizes<T>(seq, heads, in.q, in.k, in.v, in.g, in.beta, o, in.initial, final);
    gpu::walk_forward<T>(ctx, seq, sizes, gpu::walk_segment, in, o, final, {});
}

template <class T>
void kda_recurrent_backward(const Context<Cuda>& ctx, const Sequences& seq, Index heads,
                            std::type_identity_t<KdaInput<T>> in, In<T> d_o, In<accumulator_t<T>> dfinal,
                            const KdaGradient<T>& gradient) {
    const gpu::KdaSizes sizes = gpu::kda_sizes<T>(seq, heads, in.q, in.k, in.v, in.g, in.beta, d_o, in.initial, dfinal);
    const Index rows = kda_chunks(seq, gpu::walk_segment), cols = heads * sizes.state();
    const MatrixView<T> states(ctx.workspace<T>(Scratch::operation, rows * cols), rows, cols);
    gpu::walk_forward<T>(ctx, seq, sizes, gpu::walk_segment, in, {}, {}, states);
    gpu::walk_backward<T>(ctx, seq, sizes, gpu::walk_segment, in, states, d_o, dfinal, gradient);
}

}  // namespace kimik3
