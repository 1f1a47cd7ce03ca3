#pragma once
// Causal attention of Gated MLA in the form for training, over expanded keys and values (spec 3.2, 3.3), per head h:
//   p_ij = softmax over j <= i of scale q_i . [k_nope_j | k_shared_j],  o_i = sum_j p_ij v_j,  scale = (n + r)^-1/2
// Widths n of k_nope, r of k_shared (one for all heads), v of values, H heads:
//   causal_attention_forward (ctx, seq, heads, q [N, H(n+r)], kv [N, H(n+v)], k_shared [N, r], o [N, H v], lse [N, H])
//   causal_attention_backward(ctx, seq, heads, do, q, kv, k_shared, o, lse, dq, dkv, dk_shared)
//     P = exp(S - lse), D_i = do_i . o_i:  dv_j = sum_i P_ij do_i,  dS = scale P (do v^T - D),  dq = dS k,  dk = dS^T q
// A head of kv is [k_nope | v]. Gradients are overwritten and may be what they are gradients of (dq q, dkv kv,
// dk_shared k_shared); rows past the last sequence become zero. Tiles with a running maximum, so no T x T buffer. The
// bits of a token do not depend on later tokens, not even on a NaN there.

#include <cmath>

#include "kimik3/backend/backend.hpp"
#include "kimik3/core/dtype.hpp"
#include "kimik3/tensor/sequences.hpp"
#include "kimik3/tensor/view.hpp"

namespace kimik3 {

/// The head sizes of MLA: n, r and v above.
struct MlaHeads {
    Index count, nope, shared, value;

    KIMIK3_HOST_DEVICE Index key() const { return nope + shared; }
    double scale() const { return 1.0 / std::sqrt(static_cast<double>(key())); }
};

namespace detail {

template <class T>
void check_attention(const Sequences& seq, const MlaHeads& heads, In<T> q, In<T> kv, In<T> k_shared, In<T> o,
                     In<accumulator_t<T>> lse) {
    require(seq.tokens() <= o.rows, "the sequences have {} tokens, the matrices only {} rows", seq.tokens(), o.rows);
    require_shape("causal_attention: q", q, o.rows, heads.count * heads.key());
    require_shape("causal_attention: kv", kv, o.rows, heads.count * (heads.nope + heads.value));
    require_shape("causal_attention: k_shared", k_shared, o.rows, heads.shared);
    require_shape("causal_attention: o", o, o.rows, heads.count * heads.value);
    require_shape("causal_attention: lse", lse, o.rows, heads.count);
}

}  // namespace detail

template <class Backend>
void causal_attention_forward(const Context<Backend>&, ...) {
    static_assert(missing_overload<Backend>,
                  "kimik3: causal_attention_forward(ctx, seq, heads, q, kv, k_shared, o, lse) has no overload for "
                  "these arguments");
}
template <class Backend>
void causal_attention_backward(const Context<Backend>&, ...) {
    static_assert(
        missing_overload<Backend>,
        "kimik3: causal_attention_backward(ctx, seq, heads, do, q, kv, k_shared, o, lse, dq, dkv, dk_shared) has no "
        "overload for these arguments");
}

}  // namespace kimik3
