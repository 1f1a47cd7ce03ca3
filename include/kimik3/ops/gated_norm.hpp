#pragma once
// The output norm of KDA, head by head (spec 2.3): y = RMSNorm(x; w) sigmoid(gate), the norm over the D columns of a
// head, one weight [D] for all heads. A gate without columns means no gate: y = RMSNorm(x; w).
//   gated_norm_forward (ctx, heads, x [N, H D], gate [N, H D], w [D], eps, y [N, H D], r [N, H])
//   gated_norm_backward(ctx, heads, dy [N, H D], x, gate, w, r, dx [N, H D], dgate [N, H D], dw [D])
//     x^ = x r, s = sigmoid(gate), c = dy s w:  dx = r (c - x^ mean(c x^)),  dgate = dy x^ w s (1 - s),
//     dw += sum over rows and heads of dy s x^;  dx may be dy, dgate may be gate
// Statistics and sums in accumulator_t<T>.

#include "kimik3/backend/backend.hpp"
#include "kimik3/core/dtype.hpp"
#include "kimik3/tensor/view.hpp"

namespace kimik3 {

namespace detail {

/// Checks what both directions read, for an output [rows, cols]; the width D of a head.
template <class T>
Index check_gated_norm(Index heads, Index rows, Index cols, In<T> x, In<T> gate, InVector<accumulator_t<T>> w,
                       In<accumulator_t<T>> r) {
    require(heads >= 1 && cols % heads == 0, "gated_norm: {} columns are no multiple of {} heads", cols, heads);
    require_shape("gated_norm: x", x, rows, cols);
    if (gate.cols != 0) require_shape("gated_norm: gate", gate, rows, cols);
    require_size("gated_norm: w", w, cols / heads);
    require_shape("gated_norm: r", r, rows, heads);
    return cols / heads;
}

}  // namespace detail

template <class Backend>
void gated_norm_forward(const Context<Backend>&, ...) {
    static_assert(missing_overload<Backend>,
                  "kimik3: gated_norm_forward(ctx, heads, x, gate, w, eps, y, r) has no overload for these arguments");
}
template <class Backend>
void gated_norm_backward(const Context<Backend>&, ...) {
    static_assert(missing_overload<Backend>,
                  "kimik3: gated_norm_backward(ctx, heads, dy, x, gate, w, r, dx, dgate, dw) has no overload for these "
                  "arguments");
}

}  // namespace kimik3
