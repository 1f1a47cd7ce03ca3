#pragma once
// MLA's output gate on the GPU.

#include "kimik3/ops/cuda/launch.cuh"
#include "kimik3/ops/formulas.hpp"
#include "kimik3/ops/sigmoid_gate.hpp"

namespace kimik3 {

template <class T>
void sigmoid_gate_forward(const Context<Cuda>& ctx, In<T> o, In<T> logits, Out<T> y) {
    using A = accumulator_t<T>;
    require_shape("sigmoid_gate: o", o, y.rows, y.cols);
    require_shape("sigmoid_gate: logits", logits, y.rows, y.cols);
    gpu::for_rows(ctx, y.rows, y.cols, [=] __device__(Index n, gpu::Team team) {
        for (Index c = team.rank; c < y.cols; c += team.size)
            y(n, c) = static_cast<T>(o(n, c) * sigmoid(A(logits(n, c))));
    });
}

template <class T>
void sigmoid_gate_backward(const Context<Cuda>& ctx, In<T> dy, In<T> o, In<T> logits, Out<T> d_o, Out<T> dlogits) {
    using A = accumulator_t<T>;
    require_shape("sigmoid_gate: dy", dy, d_o.rows, d_o.cols);
    require_shape("sigmoid_gate: o", o, d_o.rows, d_o.cols);
    require_shape("sigmoid_gate: logits", logits, d_o.rows, d_o.cols);
    require_shape("sigmoid_gate: dlogits", dlogits, d_o.rows, d_o.cols);
    gpu::for_rows(ctx, d_o.rows, d_o.cols, [=] __device__(Index n, gpu::Team team) {
        for (Index c = team.rank; c < d_o.cols; c += team.size) {
            const A s = sigmoid(A(logits(n, c))), gradient = dy(n, c), value = o(n, c);
            d_o(n, c) = static_cast<T>(gradient * s);
            dlogits(n, c) = static_cast<T>(gradient * value * s * (A(1) - s));
        }
    });
}

}  // namespace kimik3
