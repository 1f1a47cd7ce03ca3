#pragma once
// Kimi Delta Attention in chunks of C tokens (spec 2.5 to 2.7), for either decay gate. For one head and one chunk with
// the entering state S [K, V], c_i = sum over r <= i of g_r, q scaled by K^-1/2:
//   X_ij = sum over channels of k_i k_j e^(c_i - c_j), i > j;  P_ij = the same with q_i, i >= j;  L = diag(beta) X
//   (I + L) U = beta (V - K+ S),  K+ = k e^c;   O = Q+ S + P U,  Q+ = q e^c;   S' = diag(e^c_C) S + (k e^(c_C - c))^T U
//   kda_chunk_forward (ctx, seq, heads, chunk, KdaInput, o [N, H V], final [slots, H K V], states [kda_chunks, H K V])
//   kda_chunk_backward(ctx, seq, heads, chunk, KdaInput, states, d_o [N, H V], dfinal, KdaGradient)
// chunk is a multiple of 16; a sequence may have any length. No exponent is ever positive: rows of different 16-row
// tiles meet at the first row of the later tile, rows of one tile in pairs. The system is solved by forward
// substitution. states: S before each chunk, for backward, of the type of activations; it, final and dfinal may have no
// rows. final may be the input's initial. Gradients may take the place of the inputs that they belong to. o has zeros
// in rows after the last sequence.

#include "kimik3/backend/backend.hpp"
#include "kimik3/ops/kda_operands.hpp"

namespace kimik3 {

template <class Backend>
void kda_chunk_forward(const Context<Backend>&, ...) {
    static_assert(missing_overload<Backend>,
                  "kimik3: kda_chunk_forward(ctx, seq, heads, chunk, input, o, final, states) has no "
                  "overload for these arguments");
}
template <class Backend>
void kda_chunk_backward(const Context<Backend>&, ...) {
    static_assert(missing_overload<Backend>,
                  "kimik3: kda_chunk_backward(ctx, seq, heads, chunk, input, states, d_o, dfinal, gradient) "
                  "has no overload for these arguments");
}

}  // namespace kimik3
