#pragma once
// Attention Residuals (spec 4.1): every token mixes candidates v_0 ... v_{J-1} [N, D], the stored endpoints and last
// the prefix, by a softmax over RMS-normed scores, w = gamma pi:
//   r_j = 1/sqrt(mean(v_j^2) + eps),  s_j = r_j (v_j . w),  p = softmax(s),  h = sum_j p_j v_j   (RES-1)
//   attn_res_forward (ctx, candidates, gamma [D], pi [D], eps, h [N, D], p [N, J], r [N, J])   h may be a candidate
//   attn_res_backward(ctx, dh, candidates, gamma, pi, p, r, h, dcandidates, dgamma, dpi)
//     ds_j = p_j (dh . v_j - dh . h),  dv_j += p_j dh + ds_j r_j (w - v_j (v_j . w) r_j^2 / D),
//     dw = sum over tokens and j of ds_j r_j v_j,  dgamma += dw pi,  dpi += dw gamma   (RES-5)
// Gradients of candidates are added, since an endpoint is read many times. Sums in accumulator_t<T>.
//   attn_res_norm_forward (ctx, candidates, gamma, pi, eps, w [D], norm_eps, h [N, D], y [N, D], p, r, norm_r [N])
//   attn_res_norm_backward(ctx, dy, candidates, gamma, pi, w, p, r, norm_r, h, dcandidates, dgamma, dpi, dw, dh [N, D])
//     the same with the RMSNorm that follows, y = RMSNorm(h; w): dw is added to. h is handed from forward to backward,
//     dh is scratch; a backend with a kernel of its own may leave both as they are.

#include <type_traits>

#include "kimik3/backend/backend.hpp"
#include "kimik3/core/dtype.hpp"
#include "kimik3/ops/rms_norm.hpp"
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

namespace detail {

template <class T>
void check_candidates(const Candidates<T>& candidates, Index rows, Index cols) {
    require(candidates.count >= 1, "attn_res mixes at least one candidate");
    for (Index j = 0; j < candidates.count; ++j) require_shape("attn_res: candidate", candidates.view[j], rows, cols);
}

/// What all of the operations below ask of what they read.
template <class T>
void check_attn_res(Index rows, Index width, const std::type_identity_t<Candidates<const T>>& candidates,
                    InVector<accumulator_t<T>> gamma, InVector<accumulator_t<T>> pi, In<accumulator_t<T>> p,
                    In<accumulator_t<T>> r) {
    check_candidates(candidates, rows, width);
    require_size("attn_res: gamma", gamma, width);
    require_size("attn_res: pi", pi, width);
    require_shape("attn_res: p", p, rows, candidates.count);
    require_shape("attn_res: r", r, rows, candidates.count);
}

/// And of the gradients.
template <class T>
void check_attn_res_gradients(Index rows, Index width, Index count, const Candidates<T>& dcandidates,
                              InVector<accumulator_t<T>> dgamma, InVector<accumulator_t<T>> dpi) {
    check_candidates(dcandidates, rows, width);
    require(dcandidates.count == count, "attn_res: {} candidates need as many gradients, got {}", count,
            dcandidates.count);
    require_size("attn_res: dgamma", dgamma, width);
    require_size("attn_res: dpi", dpi, width);
}

}  // namespace detail

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

template <class Backend, class T>
void attn_res_norm_forward(const Context<Backend>& ctx, const std::type_identity_t<Candidates<const T>>& candidates,
                           InVector<accumulator_t<T>> gamma, InVector<accumulator_t<T>> pi, double eps,
                           InVector<accumulator_t<T>> w, double norm_eps, MatrixView<T> h,
                           std::type_identity_t<Out<T>> y, std::type_identity_t<Out<accumulator_t<T>>> p,
                           std::type_identity_t<Out<accumulator_t<T>>> r, OutVector<accumulator_t<T>> norm_r) {
    attn_res_forward(ctx, candidates, gamma, pi, eps, h, p, r);
    rms_norm_forward(ctx, h, w, norm_eps, y, norm_r);
}

template <class Backend, class T>
void attn_res_norm_backward(const Context<Backend>& ctx, In<T> dy,
                            const std::type_identity_t<Candidates<const T>>& candidates,
                            InVector<accumulator_t<T>> gamma, InVector<accumulator_t<T>> pi,
                            InVector<accumulator_t<T>> w, In<accumulator_t<T>> p, In<accumulator_t<T>> r,
                            InVector<accumulator_t<T>> norm_r, MatrixView<T> h, const Candidates<T>& dcandidates,
                            OutVector<accumulator_t<T>> dgamma, OutVector<accumulator_t<T>> dpi,
                            OutVector<accumulator_t<T>> dw, std::type_identity_t<Out<T>> dh) {
    rms_norm_backward(ctx, dy, h, w, norm_r, dh, dw);
    attn_res_backward(ctx, dh, candidates, gamma, pi, p, r, h, dcandidates, dgamma, dpi);
}

}  // namespace kimik3
