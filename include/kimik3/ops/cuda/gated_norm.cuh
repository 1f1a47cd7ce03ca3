#pragma once
// The gated head norm on the GPU: a team a head of a row; dw first, before the gate is overwritten.

#include "kimik3/ops/cuda/launch.cuh"
#include "kimik3/ops/formulas.hpp"
#include "kimik3/ops/gated_norm.hpp"

namespace kimik3 {

template <class T>
void gated_norm_forward(const Context<Cuda>& ctx, Index heads, In<T> x, In<T> gate, InVector<accumulator_t<T>> w,
                        double eps, Out<T> y, std::type_identity_t<MatrixView<accumulator_t<T>>> r) {
    using A = accumulator_t<T>;
    const Index width = y.cols / heads;
    const bool gated = gate.cols != 0;
    require_shape("gated_norm: x", x, y.rows, y.cols);
    require_shape("gated_norm: r", r, y.rows, heads);
    require_size("gated_norm: w", w, width);
    if (gated) require_shape("gated_norm: gate", gate, y.rows, y.cols);
    gpu::for_rows(ctx, y.rows * heads, width, [=] __device__(Index row, gpu::Team team) {
        const Index n = row / heads, h = row % heads, first = h * width;
        A squares = A(0);
        for (Index c = team.rank; c < width; c += team.size) squares += A(x(n, first + c)) * x(n, first + c);
        const A scale = A(1) / sqrt(team.sum(squares) / static_cast<A>(width) + static_cast<A>(eps));
        for (Index c = team.rank; c < width; c += team.size)
            y(n, first + c) = static_cast<T>(x(n, first + c) * scale * w[c] *
                                             (gated ? sigmoid(A(gate(n, first + c))) : A(1)));
        if (team.rank == 0) r(n, h) = scale;
    });
}

template <class T>
void gated_norm_backward(const Context<Cuda>& ctx, Index heads, In<T> dy, In<T> x, In<T> gate,
                         InVector<accumulator_t<T>> w, In<accumulator_t<T>> r, Out<T> dx,
                         std::type_identity_t<Out<T>> dgate, std::type_identity_t<OutVector<accumulator_t<T>>> dw) {
    using A = accumulator_t<T>;
    const Index width = dx.cols / heads;
    const bool gated = gate.cols != 0;
    require_shape("gated_norm: dy", dy, dx.rows, dx.cols);
    require_shape("gated_norm: x", x, dx.rows, dx.cols);
    require_shape("gated_norm: r", r, dx.rows, heads);
    require_size("gated_norm: w", w, width);
    require_size("gated_norm: dw", dw, width);
    if (gated) {
        require_shape("gated_norm: gate", gate, dx.rows, dx.cols);
        require_shape("gated_norm: dgate", dgate, dx.rows, dx.cols);
    }
    gpu::column_sums<A>(
        ctx, dx.rows * heads, width,
        [=] __device__(Index row, Index c) {
            const Index n = row / heads, h = row % heads, at = h * width + c;
            return dy(n, at) * (gated ? sigmoid(A(gate(n, at))) : A(1)) * x(n, at) * r(n, h);
        },
        [=] __device__(Index c, A sum) { dw[c] += sum; });
    gpu::for_rows(ctx, dx.rows * heads, width, [=] __device__(Index row, gpu::Team team) {
        const Index n = row / heads, h = row % heads, first = h * width;
        const A scale = r(n, h);
        A along = A(0);
        for (Index c = team.rank; c < width; c += team.size) {
            const Index at = first + c;
            along += dy(n, at) * (gated ? sigmoid(A(gate(n, at))) : A(1)) * w[c] * x(n, at);
        }
        const A mean = scale * scale / static_cast<A>(width) * team.sum(along);
        for (Index c = team.rank; c < width; c += team.size) {
            const Index at = first + c;
            const A s = gated ? sigmoid(A(gate(n, at))) : A(1), gradient = dy(n, at) * w[c] * s, from = x(n, at);
            dx(n, at) = static_cast<T>(scale * (gradient - from * mean));
            if (gated) dgate(n, at) = static_cast<T>(gradient * from * scale * (A(1) - s));
        }
    });
}

}  // namespace kimik3
