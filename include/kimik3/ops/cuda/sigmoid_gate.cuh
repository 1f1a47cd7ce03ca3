#pragma once
// MLA's output gate on the GPU, an Eight a thread where rows are made of Eights (vectors.cuh).

#include "kimik3/ops/cuda/quick_formulas.cuh"
#include "kimik3/ops/cuda/vectors.cuh"
#include "kimik3/ops/sigmoid_gate.hpp"

namespace kimik3 {

template <class T>
void sigmoid_gate_forward(const Context<Cuda>& ctx, In<T> o, In<T> logits, Out<T> y) {
    using A = accumulator_t<T>;
    require_shape("sigmoid_gate: o", o, y.rows, y.cols);
    require_shape("sigmoid_gate: logits", logits, y.rows, y.cols);
    if (gpu::in_eights<const T>({o, logits, y})) {
        return gpu::for_eights(ctx, y.rows, y.cols, [=] __device__(Index n, Index c) {
            A value[8], logit[8];
            gpu::load_eight(o.row(n) + c, value), gpu::load_eight(logits.row(n) + c, logit);
#pragma unroll
            for (int i = 0; i < 8; ++i) value[i] *= gpu::sigmoid_of<T>(logit[i]);
            gpu::Eight<T>::of(value).store(y.row(n) + c);
        });
    }
    gpu::for_rows(ctx, y.rows, y.cols, [=] __device__(Index n, gpu::Team team) {
        for (Index c = team.rank; c < y.cols; c += team.size)
            y(n, c) = static_cast<T>(o(n, c) * gpu::sigmoid_of<T>(logits(n, c)));
    });
}

template <class T>
void sigmoid_gate_backward(const Context<Cuda>& ctx, In<T> dy, In<T> o, In<T> logits, Out<T> d_o, Out<T> dlogits) {
    using A = accumulator_t<T>;
    require_shape("sigmoid_gate: dy", dy, d_o.rows, d_o.cols);
    require_shape("sigmoid_gate: o", o, d_o.rows, d_o.cols);
    require_shape("sigmoid_gate: logits", logits, d_o.rows, d_o.cols);
    require_shape("sigmoid_gate: dlogits", dlogits, d_o.rows, d_o.cols);
    if (gpu::in_eights<const T>({dy, o, logits, d_o, dlogits})) {
        return gpu::for_eights(ctx, d_o.rows, d_o.cols, [=] __device__(Index n, Index c) {
            A gradient[8], value[8], logit[8];
            gpu::load_eight(dy.row(n) + c, gradient), gpu::load_eight(o.row(n) + c, value);
            gpu::load_eight(logits.row(n) + c, logit);
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                const A s = gpu::sigmoid_of<T>(logit[i]);
                logit[i] = gradient[i] * value[i] * s * (A(1) - s);
                gradient[i] *= s;
            }
            gpu::Eight<T>::of(gradient).store(d_o.row(n) + c);
            gpu::Eight<T>::of(logit).store(dlogits.row(n) + c);
        });
    }
    gpu::for_rows(ctx, d_o.rows, d_o.cols, [=] __device__(Index n, gpu::Team team) {
        for (Index c = team.rank; c < d_o.cols; c += team.size) {
            const A s = gpu::sigmoid_of<T>(logits(n, c)), gradient = dy(n, c), value = o(n, c);
            d_o(n, c) = static_cast<T>(gradient * s);
            dlogits(n, c) = static_cast<T>(gradient * value * s * (A(1) - s));
        }
    });
}

}  // namespace kimik3
