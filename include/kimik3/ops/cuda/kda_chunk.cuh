#pragma once
// KDA with a saved state a chunk, on the GPU, for any decay.

#include "kimik3/ops/cuda/kda_walk.cuh"
#include "kimik3/ops/kda_chunk.hpp"

namespace kimik3 {
namespace gpu {

template <class T>
void require_chunks(const Sequences& seq, Index chunk, const KdaSizes& sizes, In<T> states) {
    require(chunk >= 16 && chunk % 16 == 0, "kda: the chunk is a multiple of 16, got {}", chunk);
    if (states.rows != 0) require_shape("kda: states", states, kda_chunks(seq, chunk), sizes.heads * sizes.state());
}

}  // namespace gpu

template <class T>
void kda_chunk_forward(const Context<Cuda>& ctx, const Sequences& seq, Index heads, Index chunk,
                       std::type_identity_t<KdaInput<T>> in, Out<T> o,
                       std::type_identity_t<Out<accumulator_t<T>>> final,
                       std::type_identity_t<Out<accumulator_t<T>>> states) {
    const gpu::KdaSizes sizes = gpu::kda_sizes<T>(seq, heads, in.q, in.k, in.v, in.g, in.beta, o, in.initial, final);
    gpu::require_chunks<T>(seq, chunk, sizes, states);
    gpu::walk_forward<T>(ctx, seq, sizes, chunk, in, o, final, states);
}

template <class T>
void kda_chunk_backward(const Context<Cuda>& ctx, const Sequences& seq, Index heads, Index chunk,
                        std::type_identity_t<KdaInput<T>> in, In<accumulator_t<T>> states, In<T> d_o,
                        In<accumulator_t<T>> dfinal, const KdaGradient<T>& gradient) {
    const gpu::KdaSizes sizes = gpu::kda_sizes<T>(seq, heads, in.q, in.k, in.v, in.g, in.beta, d_o, in.initial, dfinal);
    gpu::require_chunks<T>(seq, chunk, sizes, states);
    gpu::walk_backward<T>(ctx, seq, sizes, chunk, in, states, d_o, dfinal, gradient);
}

}  // namespace kimik3
