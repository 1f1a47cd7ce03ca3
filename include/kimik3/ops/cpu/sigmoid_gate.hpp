#pragma once
// The output gate of MLA on the CPU: threads own rows.

#include "kimik3/backend/cpu.hpp"
#include "kimik3/ops/cpu/lanes.hpp"
#include "kimik3/ops/formulas.hpp"
#include "kimik3/ops/sigmoid_gate.hpp"

namespace kimik3 {

template <class T>
void sigmoid_gate_forward(const Context<Cpu>& ctx, In<T> o, In<T> logits, Out<T> y) {
    using detail::Lane;
    require_shape("sigmoid_gate: o", o, y.rows, y.cols);
    require_shape("sigmoid_gate: logits", logits, y.rows, y.cols);
    ctx.parallel(y.rows, 8, [&](Index first, Index last) {
        for (Index n = first; n < last; ++n) {
            detail::for_lanes<T>(y.cols, [&](auto at) {
                at.store(y.row(n), Lane<T>(at.load(o.row(n)) * sigmoid(at.load(logits.row(n)))));
            });
        }
    });
}

template <class T>
void sigmoid_gate_backward(const Context<Cpu>& ctx, In<T> dy, In<T> o, In<T> logits, Out<T> d_o, Out<T> dlogits) {
    using detail::Lane;
    for (const In<T>& m : {dy, o, logits, In<T>(dlogits)})
        require_shape("sigmoid_gate: an argument", m, d_o.rows, d_o.cols);
    ctx.parallel(d_o.rows, 8, [&](Index first, Index last) {
        for (Index n = first; n < last; ++n) {
            detail::for_lanes<T>(d_o.cols, [&](auto at) {
                const Lane<T> s = sigmoid(at.load(logits.row(n))), gradient = at.load(dy.row(n));
                at.store(dlogits.row(n), Lane<T>(gradient * at.load(o.row(n)) * s * (T(1) - s)));
                at.store(d_o.row(n), Lane<T>(gradient * s));
            });
        }
    });
}

}  // namespace kimik3
