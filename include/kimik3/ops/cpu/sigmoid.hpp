#pragma once
// The sigmoid on the CPU: threads own rows.

#include "kimik3/backend/cpu.hpp"
#include "kimik3/ops/cpu/lanes.hpp"
#include "kimik3/ops/formulas.hpp"
#include "kimik3/ops/sigmoid.hpp"

namespace kimik3 {

template <class T>
void sigmoid_forward(const Context<Cpu>& ctx, In<T> x, Out<T> y) {
    require_shape("sigmoid: x", x, y.rows, y.cols);
    ctx.parallel(y.rows, 64, [&](Index first, Index last) {
        for (Index n = first; n < last; ++n)
            detail::for_lanes<T>(y.cols, [&](auto at) { at.store(y.row(n), sigmoid(at.load(x.row(n)))); });
    });
}

template <class T>
void sigmoid_backward(const Context<Cpu>& ctx, In<T> dy, In<T> y, Out<T> dx) {
    require_shape("sigmoid: dy", dy, dx.rows, dx.cols);
    require_shape("sigmoid: y", y, dx.rows, dx.cols);
    ctx.parallel(dx.rows, 64, [&](Index first, Index last) {
        for (Index n = first; n < last; ++n) {
            detail::for_lanes<T>(dx.cols, [&](auto at) {
                const detail::Lane<T> s = at.load(y.row(n));
                at.store(dx.row(n), detail::Lane<T>(at.load(dy.row(n)) * s * (T(1) - s)));
            });
        }
    });
}

}  // namespace kimik3
