#pragma once
// The logistic sigmoid on the GPU.

#include "kimik3/ops/cuda/launch.cuh"
#include "kimik3/ops/formulas.hpp"
#include "kimik3/ops/sigmoid.hpp"

namespace kimik3 {

template <class T>
void sigmoid_forward(const Context<Cuda>& ctx, In<T> x, Out<T> y) {
    require_shape("sigmoid: x", x, y.rows, y.cols);
    gpu::for_each(ctx, y.size(),
                  [=] __device__(Index i) { y(i / y.cols, i % y.cols) = sigmoid(x(i / y.cols, i % y.cols)); });
}

template <class T>
void sigmoid_backward(const Context<Cuda>& ctx, In<T> dy, In<T> y, Out<T> dx) {
    require_shape("sigmoid: dy", dy, dx.rows, dx.cols);
    require_shape("sigmoid: y", y, dx.rows, dx.cols);
    gpu::for_each(ctx, dx.size(), [=] __device__(Index i) {
        const Index n = i / dx.cols, c = i % dx.cols;
        dx(n, c) = dy(n, c) * y(n, c) * (T(1) - y(n, c));
    });
}

}  // namespace kimik3
