#pragma once
// Attention Residuals (spec 4.1): every token mixes candidates v_0 ... v_{J-1} [N, D], the stored endpoints and last
// the prefix, by a softmax over RMS-normed scores, w = gamma pi:
//   r_j = 1/sqrt(mean(v_j^2) + eps),  s_j = r_j (v_j . w),  p = softmax(s),  h = sum_j p_j v_j   (RES-1)
//   attn_res_forward (ctx, candidates, gamma [D], pi [D], eps, h [N, D], p [N, J], r [N, J])   h may be a candidate
//   attn_res_backward(ctx, dh, candidates, gamma, pi, p, r, h, dcandidates, dgamma, dpi)
//     ds_j = p_j (dh . v_j - dh . h),  dv_j += p_j dh + ds_j r_j (w - v_j (v_j . w) r_j^2 / D),
//     dw = sum over tokens and j of ds_j r_j v_j,  dgamma += dw pi,  dpi += dw gamma   (RES-5)
// Gradients of candidates are added, since an endpoint is read many times. Sums in accumulator_t<T>.

#include <type_traits>

#include "kimik3/backend/backend.hpp"
#include "kimik3/core/dtype.hpp"
#include "kimik3/tensor/view.hpp"

namespace kimik3 {

inline constexpr Index max_candidates = 128;

/// Up to max_candidates matrices of one shape, in the order in which they are mixed.
template <class T>
struct Candidates {
    MatrixView<T> view[max_candidates];
    Index count = 0;

    void add(MatrixView<T> candidate) {
        require(count < max_candidates, "attn_res mixes at most {} candidates", max_candidates);
        view[count++] = candidate;
    }
};

template <class Backend>
void attn_res_forward(const Context<Backend>&, ...) {
    static_assert(
        missing_overload<Backend>,
        "kimik3: attn_res_forward(ctx, candidates, gamma, pi, eps, h, p, r) has no overload for these arguments");
}
template <class Backend>
void attn_res_backward(const Context<Backend>&, ...) {
    static_assert(missing_overload<Backend>,
                  "kimik3: attn_res_backward(ctx, dh, candidates, gamma, pi, p, r, h, dcandidates, dgamma, dpi) has no "
                  "overload for these arguments");
}

}  // namespace kimik3
