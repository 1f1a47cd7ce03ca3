#pragma once
// Kimi Delta Attention from the raw projections to the output in one operation: L2 norm of q and k, bounded decay gate,
// sigmoid of beta and the chunked recurrence (ops/l2_norm.hpp, decay_gate.hpp, sigmoid.hpp, kda_chunk.hpp), a chunk of
// a head at a time in cache. The bounded gate lets a tile of 16 rows be one matrix product: decays within it stay above
// e^-75, which is why the bound lies in [-5, 0) (spec 2.6).
//   kda_fused_forward (ctx, seq, KdaFusedForm, KdaRawInput, o [N, H V], final [slots, H K V], states [chunks, H K V])
//   kda_fused_backward(ctx, seq, KdaFusedForm, KdaRawInput, states, d_o [N, H V], dfinal, KdaRawGradient)
// final, states and dfinal may have no rows; final may be the input's initial. o has zeros in rows after the last
// sequence. Backward needs nothing but states, of the type of activations (on the GPU in bf16 with an order of its own
// within a head): it recomputes a chunk at a time in one reverse pass, but for what forward left in prepared. dq, dk, dv
// and db may take the place of q, k, v and b; dz may not be z. A single token of a sequence that goes on takes the
// recurrent step.

#include "kimik3/backend/backend.hpp"
#include "kimik3/ops/kda_operands.hpp"

namespace kimik3 {

struct KdaFusedForm {
    Index heads = 1;
    Index chunk = 32;           // 32 or 64
    double lower_bound = -5.0;  // of the log-decay
};

template <class T>
struct KdaRawInput {
    MatrixView<const T> q, k;                      // [N, H K]
    MatrixView<const T> v;                         // [N, H V]
    MatrixView<const T> z;                         // [N, H K] logits of the decay gate, without dt_bias
    MatrixView<const T> b;                         // [N, H] logits of beta
    VectorView<const accumulator_t<T>> A_log;      // [H]
    VectorView<const accumulator_t<T>> dt_bias;    // [H K]
    MatrixView<const accumulator_t<T>> initial{};  // as in KdaInput
    VectorView<T> prepared{};                      // with states: [KdaPrepared::size], or of no size
};

/// Numbers that forward of a backend can leave in KdaRawInput::prepared, so that backward need not compute them again.
template <class Backend, class T>
struct KdaPrepared {
    static Index size(const Sequences&, const KdaFusedForm&, Index /*key*/, Index /*value*/) { return 0; }
};

/// q, k, v, z, b, initial as in KdaGradient; A_log and dt_bias are added to.
template <class T>
struct KdaRawGradient {
    MatrixView<T> q, k, v, z, b;
    VectorView<accumulator_t<T>> A_log, dt_bias;
    MatrixView<accumulator_t<T>> initial{};
};

namespace detail {

/// Checks all that both directions read.
template <class T>
KdaShape fused_shape(const Sequences& seq, const KdaFusedForm& form, const KdaRawInput<T>& in, In<T> o,
                     In<accumulator_t<T>> final, In<T> states) {
    const KdaShape shape = kda_shape<T>(seq, form.heads, in.q, in.k, in.v, in.z, in.b, o, in.initial, final);
    require(form.chunk == 32 || form.chunk == 64, "kda_fused: the chunk is 32 or 64, got {}", form.chunk);
    require(form.lower_bound >= -5.0 && form.lower_bound < 0.0,
            "kda_fused: the bound of the log-decay lies in [-5, 0), got {}", form.lower_bound);
    require_size("kda_fused: A_log", in.A_log, form.heads);
    require_size("kda_fused: dt_bias", in.dt_bias, in.z.cols);
    if (states.rows != 0)
        require_shape("kda_fused: states", states, kda_chunks(seq, form.chunk), shape.heads * shape.state());
    return shape;
}

}  // namespace detail

template <class Backend>
void kda_fused_forward(const Context<Backend>&, ...) {
    static_assert(missing_overload<Backend>,
                  "kimik3: kda_fused_forward(ctx, seq, form, input, o, final, states) has no overload for "
                  "these arguments");
}
template <class Backend>
void kda_fused_backward(const Context<Backend>&, ...) {
    static_assert(missing_overload<Backend>,
                  "kimik3: kda_fused_backward(ctx, seq, form, input, states, d_o, dfinal, gradient) has no "
                  "overload for these arguments");
}

}  // namespace kimik3
