#pragma once
// Depthwise causal convolution over the tokens of each sequence, then SiLU (spec 2.2):
//   y_t[c] = SiLU(sum over j < W of w[c, j] u_{t-(W-1)+j}[c])   (KDA-1)
//   short_conv_forward (ctx, seq, u [N, P], w [P, W], initial, y [N, P], final)
//   short_conv_backward(ctx, seq, dy [N, P], u, w, initial, dfinal, du [N, P], dw [P, W], dinitial)
// initial, final [slots, (W-1) P]: the window before and after a sequence s, at row seq.slot(s), the oldest input
// first. A sequence with seq.past(s) = 0, and every sequence when initial has no rows, begins with zeros. final, dfinal
// and dinitial may have no rows; final may be initial, and then an empty sequence leaves its row as it is. y and du
// have zeros in rows after the last sequence. du may be dy; dinitial is overwritten in the rows of the sequences; dw is
// added to. Sums in accumulator_t<T>.

#include "kimik3/backend/backend.hpp"
#include "kimik3/core/dtype.hpp"
#include "kimik3/tensor/sequences.hpp"
#include "kimik3/tensor/view.hpp"

namespace kimik3 {

template <class Backend>
void short_conv_forward(const Context<Backend>&, ...) {
    static_assert(missing_overload<Backend>,
                  "kimik3: short_conv_forward(ctx, seq, u, w, initial, y, final) has no overload for these arguments");
}
template <class Backend>
void short_conv_backward(const Context<Backend>&, ...) {
    static_assert(missing_overload<Backend>,
                  "kimik3: short_conv_backward(ctx, seq, dy, u, w, initial, dfinal, du, dw, dinitial) "
                  "has no overload for these arguments");
}

}  // namespace kimik3
