#pragma once
// Kimi Delta Attention token by token (spec 2.3, 2.4; report Eq. 1). For each head, with the state S [K, V] (KDA-9):
//   S~ = diag(e^g_t) S;  u = beta_t (v_t - S~^T k_t);  S = S~ + k_t u^T;  o_t = K^-1/2 S^T q_t   (read after the write)
//   kda_recurrent_forward (ctx, seq, heads, KdaInput, o [N, H V], final [slots, H K V])
//   kda_recurrent_backward(ctx, seq, heads, KdaInput, d_o [N, H V], dfinal, KdaGradient)
// final and dfinal may have no rows; final may be the input's initial, and then an empty sequence leaves its row as it
// is. o has zeros in rows after the last sequence. The way of decoding, and the measure of the chunked forms.

#include "kimik3/backend/backend.hpp"
#include "kimik3/ops/kda_operands.hpp"

namespace kimik3 {

template <class Backend>
void kda_recurrent_forward(const Context<Backend>&, ...) {
    static_assert(
        missing_overload<Backend>,
        "kimik3: kda_recurrent_forward(ctx, seq, heads, input, o, final) has no overload for these arguments");
}
template <class Backend>
void kda_recurrent_backward(const Context<Backend>&, ...) {
    static_assert(missing_overload<Backend>,
                  "kimik3: kda_recurrent_backward(ctx, seq, heads, input, d_o, dfinal, gradient) has no "
                  "overload for these arguments");
}

}  // namespace kimik3
