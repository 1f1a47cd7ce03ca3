#pragma once
// Token-by-token KDA on the GPU. Backward first walks forward to save the
// states before its segments.

#include "kimik3/ops/cuda/kda_chunk.cuh"
#include "kimik3/ops/kda_recurrent.hpp"

namespace kimik3 {
namespace gpu {

inline constexpr Index walk_segment = 32;

}  // namespace gpu

template <class T>
void kda_recurrent_forward(const Context<Cuda>& ctx, const Sequences& seq, Index heads,
                           std::type_identity_t<KdaInput<T>> in, Out<T> o,
                           std::type_identity_t<Out<accumulator_t<T>>> final) {
    const gpu::KdaSizes sizes{detail::kda_shape<T>(seq, heads, in, o, final)};
    if constexpr (std::is_same_v<T, bf16>)
        kda_chunk_forward<T>(ctx, seq, heads, gpu::walk_segment, in, o, final, {});
    else
        gpu::walk_forward<T>(ctx, seq, sizes, gpu::walk_segment, in, o, final, {});
}

template <class T>
void kda_recurrent_backward(const Context<Cuda>& ctx, const Sequences& seq, Index heads,
                            std::type_identity_t<KdaInput<T>> in, In<T> d_o, In<accumulator_t<T>> dfinal,
                            const KdaGradient<T>& gradient) {
    const gpu::KdaSizes sizes{detail::kda_shape<T>(seq, heads, in, d_o, dfinal)};
    const Index rows = kda_chunks(seq, gpu::walk_segment), cols = heads * sizes.state();
    using A = accumulator_t<T>;
    const MatrixView<A> states(ctx.workspace<A>(Scratch::operation, rows * cols), rows, cols);
    if constexpr (std::is_same_v<T, bf16>) {
        gpu::Widened wide(ctx, seq.tokens(), in.q, in.k, in.v, in.g, in.beta, d_o, in.q, in.k, in.v, in.g, in.beta);
        gpu::with_wide_input(wide, in, [&](const KdaInput<float>& wide_in) {
            gpu::with_wide_gradient(wide, gradient, [&](const KdaGradient<float>& to) {
                gpu::walk_forward<float>(ctx, seq, sizes, gpu::walk_segment, wide_in, {}, {}, states);
                gpu::walk_backward<float>(ctx, seq, sizes, gpu::walk_segment, wide_in, states, wide.of(d_o), dfinal,
                                          to);
            });
        });
    } else {
        gpu::walk_forward<T>(ctx, seq, sizes, gpu::walk_segment, in, {}, {}, states);
        gpu::walk_backward<T>(ctx, seq, sizes, gpu::walk_segment, in, states, d_o, dfinal, gradient);
    }
}

}  // namespace kimik3
