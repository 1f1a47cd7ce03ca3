#pragma once
// SiTU-GLU (spec 5), elementwise over gate and up [N, F]: y = [b1 tanh(gate / b1) sigmoid(gate)] [b2 tanh(up / b2)].
// With both betas infinite it is their limit, SwiGLU: y = gate sigmoid(gate) up.
//   situ_forward (ctx, gate, up, betas, y)
//   situ_backward(ctx, dy, gate, up, betas, dgate, dup)   dgate may be gate and dup may be up
// Inner arithmetic in accumulator_t<T>.

#include <limits>

#include "kimik3/backend/backend.hpp"
#include "kimik3/tensor/view.hpp"

namespace kimik3 {

struct SituBetas {
    double gate, linear;

    static constexpr SituBetas swiglu() {
        return {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::infinity()};
    }
    constexpr bool is_swiglu() const { return gate > (std::numeric_limits<double>::max)(); }
};

template <class Backend>
void situ_forward(const Context<Backend>&, ...) {
    static_assert(missing_overload<Backend>,
                  "kimik3: situ_forward(ctx, gate, up, betas, y) has no overload for these arguments");
}
template <class Backend>
void situ_backward(const Context<Backend>&, ...) {
    static_assert(missing_overload<Backend>,
                  "kimik3: situ_backward(ctx, dy, gate, up, betas, dgate, dup) has no overload for these arguments");
}

}  // namespace kimik3
