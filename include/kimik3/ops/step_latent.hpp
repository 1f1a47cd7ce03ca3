#pragma once
// Gated MLA's attention of a decoding step, one new token a sequence, from the projections of the input to what the
// output projection reads (ops/rms_norm.hpp, latent_attention.hpp, sigmoid_gate.hpp):
//   step_latent(ctx, seq, heads, StepLatent, y [N, H v])
// norms the new latent, writes it with the shared key to the cache, multiplies the query by W_UK, attends over the
// cache, and multiplies the sum of latents by W_UV and the gate. Token n is that of sequence n. seq.past(s) on the host
// bounds what a backend that reads it elsewhere finds there. Sums, queries and sums of latents are in accumulator_t<T>.

#include "kimik3/ops/causal_attention.hpp"

namespace kimik3 {

template <class T>
struct StepLatent {
    using A = accumulator_t<T>;

    MatrixView<const T> q;         // [N, H(n+r)]
    MatrixView<const T> kv_low;    // [N, c+r] latent before its norm, and shared key
    VectorView<const A> norm;      // [c]
    double eps = 0;
    MatrixView<const T> kv_b;      // [H(n+v), c]
    MatrixView<const T> gate;      // [N, H v] logits, or no columns
    MatrixView<T> cache;           // [slots, max_len (c+r)]

    /// Sizes that there is a step for; latent: c.
    static constexpr bool fits(const MlaHeads& heads, Index latent) {
        return latent % 8 == 0 && heads.shared % 8 == 0 && heads.nope % 8 == 0 && latent <= 128 && heads.nope <= 128 &&
               heads.value <= 128 && heads.shared <= 128;
    }
};

template <class Backend>
void step_latent(const Context<Backend>&, ...) {
    static_assert(missing_overload<Backend>,
                  "kimik3: step_latent(ctx, seq, heads, input, y) has no overload for these arguments");
}

}  // namespace kimik3
