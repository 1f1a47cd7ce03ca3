#pragma once
// The logistic sigmoid on the GPU.

#include "kimik3/ops/cuda/launch.cuh"
#include "kimik3/ops/formulas.hpp"
#include "kimik3/ops/sigmoid.hpp"

namespace kimik3 {

template <class T>
void sigmoid_forward(const Context<Cuda>& ctx, In<T> x, Out<T> y) {
    using A = accumulator_t<T>;
    require_shape("sigmoid: x", x, y.rows, y.cols);
    gpu::for_each(ctx, y.size(), [=] __device__(Index i) {
        const Index n = i / y.cols, c = i % y.cols;
        y(n, c) = static_cast<T>(sigmoid(A(x(n, c))));
    });
}

template <class T>
void sigmoid_backward(const Context<Cuda>& ctx, In<T> dy, In<T> y, Out<T> dx) {
    using A = accumulator_t<T>;
    require_shape("sigmoid: dy", dy, dx.rows, dx.cols);
    require_shape("sigmoid: y", y, dx.rows, dx.cols);
    gpu::for_each(ctx, dx.size(), [=] __device__(Index i) {
        const Index n = i / dx.cols, c = i % dx.cols;
        const A s = y(n, c);
        dx(n, c) = static_cast<T>(dy(n, c) * s * (A(1) - s));
    });
}

}  // namespace kimik3
