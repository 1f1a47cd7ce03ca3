#pragma once
// L2 normalisation of queries and keys, head by head (spec 2.2): y = x r, r = 1/sqrt(sum(x^2) + 1e-6) over the D
// columns of a head. The epsilon stands inside the root, so an all-zero head has a finite gradient.
//   l2_norm_forward (ctx, heads, x [N, H D], y [N, H D], r [N, H])       y may be x
//   l2_norm_backward(ctx, heads, dy [N, H D], y, r, dx [N, H D])         dx = r (dy - y (y . dy)); dx may be dy or y
// Sums in accumulator_t<T>.

#include "kimik3/backend/backend.hpp"
#include "kimik3/core/dtype.hpp"
#include "kimik3/tensor/view.hpp"

namespace kimik3 {

inline constexpr double l2_norm_eps = 1e-6;

namespace detail {

inline void check_l2_norm(Index heads, Index cols) {
    require(heads >= 1 && cols % heads == 0, "l2_norm: {} columns are no multiple of {} heads", cols, heads);
}

}  // namespace detail

template <class Backend>
void l2_norm_forward(const Context<Backend>&, ...) {
    static_assert(missing_overload<Backend>,
                  "kimik3: l2_norm_forward(ctx, heads, x, y, r) has no overload for these arguments");
}
template <class Backend>
void l2_norm_backward(const Context<Backend>&, ...) {
    static_assert(missing_overload<Backend>,
                  "kimik3: l2_norm_backward(ctx, heads, dy, y, r, dx) has no overload for these arguments");
}

}  // namespace kimik3
