#pragma once
// Fused KDA on the GPU: the operations that it is made of, one after another,
// through scratch memory. Only rows of the sequences are read.

#include "kimik3/ops/cuda/decay_gate.cuh"
#include "kimik3/ops/cuda/kda_fused_bf16.cuh"
#include "kimik3/ops/cuda/kda_walk.cuh"
#include "kimik3/ops/cuda/l2_norm.cuh"
#include "kimik3/ops/cuda/sigmoid.cuh"
#include "kimik3/ops/cuda/widened.cuh"
#include "kimik3/ops/kda_fused.hpp"

namespace kimik3 {
namespace gpu {

/// The recurrence's inputs, made from the raw ones; rows of the sequences only.
template <class T>
struct KdaUnits {
    MatrixView<T> q, k, g, beta, q_r, k_r;

    KdaUnits(const Context<Cuda>& ctx, const Sequences& seq, const KdaFusedForm& form, const KdaRawInput<T>& in) {
        const Index tokens = seq.tokens(), wide = in.q.cols;
        T* memory = ctx.workspace<T>(Scratch::composed, tokens * 3 * (wide + form.heads));
        for (MatrixView<T>* m : {&q, &k, &g}) *m = {memory, tokens, wide}, memory += tokens * wide;
        for (MatrixView<T>* m : {&beta, &q_r, &k_r}) *m = {memory, tokens, form.heads}, memory += tokens * form.heads;
        l2_norm_forward(ctx, form.heads, in.q.middle_rows(0, tokens), q, q_r);
        l2_norm_forward(ctx, form.heads, in.k.middle_rows(0, tokens), k, k_r);
        decay_gate_forward(ctx, gate(form), in.z.middle_rows(0, tokens), in.A_log, in.dt_bias, g);
        sigmoid_forward(ctx, in.b.middle_rows(0, tokens), beta);
    }

    static DecayGateForm gate(const KdaFusedForm& form) { return {DecayGate::bounded, form.lower_bound}; }
    KdaInput<T> input(const KdaRawInput<T>& in) const { return {q, k, in.v, g, beta, in.initial}; }
};

inline KdaRawInput<float> wide_input(Widened& wide, const KdaRawInput<bf16>& in) {
    return {wide.of(in.q), wide.of(in.k), wide.of(in.v), wide.of(in.z),
            wide.of(in.b), in.A_log,      in.dt_bias,    in.initial};
}

}  // namespace gpu

template <class T>
void kda_fused_forward(const Context<Cuda>& ctx, const Sequences& seq, KdaFusedForm form,
                       std::type_identity_t<KdaRawInput<T>> in, Out<T> o,
                       std::type_identity_t<Out<accumulator_t<T>>> final, std::type_identity_t<Out<T>> states) {
    const gpu::KdaSizes sizes{detail::fused_shape<T>(seq, form, in, o, final, states)};
    if constexpr (std::is_same_v<T, bf16>) {
        if (gpu::kda::suits(form, in)) return gpu::kda::fused_forward(ctx, seq, form, in, o, final, states);
        gpu::Widened wide(ctx, seq.tokens(), in.q, in.k, in.v, in.z, in.b, o, states);
        const MatrixView<float> wide_o = wide.result(o), wide_states = wide.result(states);
        kda_fused_forward<float>(ctx, seq, form, gpu::wide_input(wide, in), wide_o, final, wide_states);
        wide.back(wide_o, o), wide.back(wide_states, states);
    } else {
        const gpu::KdaUnits<T> units(ctx, seq, form, in);
        gpu::walk_forward<T>(ctx, seq, sizes, form.chunk, units.input(in), o, final, states);
    }
}

template <class T>
void kda_fused_backward(const Context<Cuda>& ctx, const Sequences& seq, KdaFusedForm form,
                        std::type_identity_t<KdaRawInput<T>> in, In<T> states, In<T> d_o, In<accumulator_t<T>> dfinal,
                        const KdaRawGradient<T>& gradient) {
    const gpu::KdaSizes sizes{detail::fused_shape<T>(seq, form, in, d_o, dfinal, states)};
    if constexpr (std::is_same_v<T, bf16>) {
        if (gpu::kda::suits(form, in))
            return gpu::kda::fused_backward(ctx, seq, form, in, states, d_o, dfinal, gradient);
        gpu::Widened wide(ctx, seq.tokens(), in.q, in.k, in.v, in.z, in.b, d_o, in.q, in.k, in.v, in.z, in.b, states);
        const KdaRawGradient<float> to{wide.result(gradient.q), wide.result(gradient.k), wide.result(gradient.v),
                                       wide.result(gradient.z), wide.result(gradient.b), gradient.A_log,
                                       gradient.dt_bias,        gradient.initial};
        kda_fused_backward<float>(ctx, seq, form, gpu::wide_input(wide, in), wide.whole(states), wide.of(d_o), dfinal,
                                  to);
        wide.back(to.q, gradient.q), wide.back(to.k, gradient.k), wide.back(to.v, gradient.v),
            wide.back(to.z, gradient.z), wide.back(to.b, gradient.b);
    } else {
        const gpu::KdaUnits<T> units(ctx, seq, form, in);
        const KdaGradient<T> walked{gradient.q, gradient.k, gradient.v, gradient.z, gradient.b, gradient.initial};
        gpu::walk_backward<T>(ctx, seq, sizes, form.chunk, units.input(in), states, d_o, dfinal, walked);
        const auto used = [&](MatrixView<T> m) { return m.middle_rows(0, seq.tokens()); };
        l2_norm_backward(ctx, form.heads, used(gradient.q), units.q, units.q_r, used(gradient.q));
        l2_norm_backward(ctx, form.heads, used(gradient.k), units.k, units.k_r, used(gradient.k));
        decay_gate_backward(ctx, units.gate(form), used(gradient.z), in.z.middle_rows(0, seq.tokens()), in.A_log,
                            in.dt_bias, used(gradient.z), gradient.A_log, gradient.dt_bias);
        sigmoid_backward(ctx, used(gradient.b), units.beta, used(gradient.b));
    }
}

}  // namespace kimik3
