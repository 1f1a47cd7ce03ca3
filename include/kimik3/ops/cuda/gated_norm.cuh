#pragma once
// The gated head norm on the GPU: a team a head of a row; dw first, before the gate is overwritten.

#include "kimik3/ops/cuda/launch.cuh"
#include "kimik3/ops/formulas.hpp"
#include "kimik3/ops/gated_norm.hpp"

namespace kimik3 {

template <class T>
void gated_norm_forward(const Context<Cuda>& ctx, Index heads, In<T> x, In<T> gate, InVector<accumulator_t<T>> w,
                        double eps, Out<T> y, std::type_identity_t<MatrixView<accumulator_t<T>>> r) {
    const Index width = y.cols / heads;
    const bool gated = gate.cols != 0;
    require_shape("gated_norm: x", x, y.rows, y.cols);
    require_shape("gated_norm: r", r, y.rows, heads);
    require_size("gated_norm: w", w, width);
    if (gated) require_shape("gated_norm: gate", gate, y.rows, y.cols);
    gpu::for_rows(ctx, y.rows * heads, width, [=] __device__(Index row, gpu::Team team) {
        const Index n = row / heads, h = row % heads, first = h * width;
        T squares = T(0);
        for (Index c = team.rank; c < width; c += team.size) squares += x(n, first + c) * x(n, first + c);
        const T scale = T(1) / sqrt(team.sum(squares) / static_cast<T>(width) + static_cast<T>(eps));
        for (Index c = team.rank; c < width; c += team.size)
            y(n, first + c) = x(n, first + c) * scale * w[c] * (gated ? sigmoid(gate(n, first + c)) : T(1));
        if (team.rank == 0) r(n, h) = scale;
    });
}

template <class T>
void gated_norm_backward(const Context<Cuda>& ctx, Index heads, In<T> dy, In<T> x, In<T> gate,
                         InVector<accumulator_t<T>> w, In<accumulator_t<T>> r, Out<T> dx,
                         std::type_identity_t<Out<T>> dgate, std::type_identity_t<OutVector<accumulator_t<T>>> dw) {
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
    gpu::column_sums<T>(
        ctx, dx.rows * heads, width,
        [=] __device__(Index row, Index c) {
            const Index n = row / heads, h = row % heads, at = h * width + c;
            return dy(n, at) * (gated ? sigmoid(gate(n, at)) : T(1)) * x(n, at) * r(n, h);
        },
        [=] __device__(Index c, T sum) { dw[c] += sum; });
    gpu::for_rows(ctx, dx.rows * heads, width, [=] __device__(Index row, gpu::Team team) {
        const Index n = row / heads, h = row % heads, first = h * width;
        const T scale = r(n, h);
        T along = T(0);
        for (Index c = team.rank; c < width; c += team.size) {
            const Index at = first + c;
            along += dy(n, at) * (gated ? sigmoid(gate(n, at)) : T(1)) * w[c] * x(n, at);
        }
        const T mean = scale * scale / static_cast<T>(width) * team.sum(along);
        for (Index c = team.rank; c < width; c += team.size) {
            const Index at = first + c;
            const T s = gated ? sigmoid(gate(n, at)) : T(1), gradient = dy(n, at) * w[c] * s, from = x(n, at);
            dx(n, at) = scale * (gradient - from * mean);
            if (gated) dgate(n, at) = gradient * from * scale * (T(1) - s);
        }
    });
}

}  // namespace kimik3
