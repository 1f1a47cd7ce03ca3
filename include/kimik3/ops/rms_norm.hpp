#pragma once
// RMSNorm (spec 1.2): y = w * x r, r = 1/sqrt(mean(x^2) + eps), one row a token.   (BLOCK-1)
//   rms_norm_forward (ctx, x [N, D], w [D], eps, y [N, D], r [N])
//   rms_norm_backward(ctx, dy [N, D], x [N, D], w [D], r [N], dx [N, D], dw [D])
//     dx = r (g - x^ mean(g x^)), g = dy w, x^ = x r: overwritten;  dw += sum over rows of dy x^   (BLOCK-2)
// Statistics and sums in accumulator_t<T>, one rounding at the end. y may be x, and dx may be dy or x.

#include "kimik3/backend/backend.hpp"
#include "kimik3/core/dtype.hpp"
#include "kimik3/tensor/view.hpp"

namespace kimik3 {

template <class Backend>
void rms_norm_forward(const Context<Backend>&, ...) {
    static_assert(missing_overload<Backend>,
                  "kimik3: rms_norm_forward(ctx, x, w, eps, y, r) has no overload for these arguments");
}
template <class Backend>
void rms_norm_backward(const Context<Backend>&, ...) {
    static_assert(missing_overload<Backend>,
                  "kimik3: rms_norm_backward(ctx, dy, x, w, r, dx, dw) has no overload for these arguments");
}

}  // namespace kimik3
