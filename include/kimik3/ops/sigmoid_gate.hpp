#pragma once
// The output gate of MLA (spec 3.2), elementwise over [N, D]: y = o sigmoid(logits).   (MLA-4)
//   sigmoid_gate_forward (ctx, o, logits, y)                      y may be o
//   sigmoid_gate_backward(ctx, dy, o, logits, d_o, dlogits)       d_o may be dy, dlogits may be logits
//     d_o = dy s,  dlogits = dy o s (1 - s),  s = sigmoid(logits)   (MLA-6)
// Inner arithmetic in accumulator_t<T>.

#include "kimik3/backend/backend.hpp"
#include "kimik3/tensor/view.hpp"

namespace kimik3 {

template <class Backend>
void sigmoid_gate_forward(const Context<Backend>&, ...) {
    static_assert(missing_overload<Backend>,
                  "kimik3: sigmoid_gate_forward(ctx, o, logits, y) has no overload for these arguments");
}
template <class Backend>
void sigmoid_gate_backward(const Context<Backend>&, ...) {
    static_assert(
        missing_overload<Backend>,
        "kimik3: sigmoid_gate_backward(ctx, dy, o, logits, d_o, dlogits) has no overload for these arguments");
}

}  // namespace kimik3
