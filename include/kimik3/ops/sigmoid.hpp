#pragma once
// The logistic sigmoid, elementwise over matrices [N, F]: y = 1 / (1 + e^-x). KDA's beta is one. (KDA-5)
//   sigmoid_forward (ctx, x, y)        y may be x
//   sigmoid_backward(ctx, dy, y, dx)   dx = dy y (1 - y); dx may be dy or y

#include "kimik3/backend/backend.hpp"
#include "kimik3/tensor/view.hpp"

namespace kimik3 {

template <class Backend>
void sigmoid_forward(const Context<Backend>&, ...) {
    static_assert(missing_overload<Backend>, "kimik3: sigmoid_forward(ctx, x, y) has no overload for these arguments");
}
template <class Backend>
void sigmoid_backward(const Context<Backend>&, ...) {
    static_assert(missing_overload<Backend>,
                  "kimik3: sigmoid_backward(ctx, dy, y, dx) has no overload for these arguments");
}

}  // namespace kimik3
