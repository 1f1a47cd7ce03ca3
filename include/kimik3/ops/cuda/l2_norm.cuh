#pragma once
// L2 normalisation on the GPU: a team a head of a row.

#include "kimik3/ops/cuda/launch.cuh"
#include "kimik3/ops/l2_norm.hpp"

namespace kimik3 {

template <class T>
void l2_norm_forward(const Context<Cuda>& ctx, Index heads, In<T> x, Out<T> y,
                     std::type_identity_t<MatrixView<accumulator_t<T>>> r) {
    using A = accumulator_t<T>;
    require_shape("l2_norm: x", x, y.rows, y.cols);
    require_shape("l2_norm: r", r, y.rows, heads);
    const Index width = y.cols / heads;
    gpu::for_rows(ctx, y.rows * heads, width, [=] __device__(Index row, gpu::Team team) {
        const Index n = row / heads, h = row % heads;
        const T* from = x.row(n) + h * width;
        T* to = y.row(n) + h * width;
        A squares = A(0);
        for (Index c = team.rank; c < width; c += team.size) squares += A(from[c]) * from[c];
        const A scale = A(1) / sqrt(team.sum(squares) + static_cast<A>(l2_norm_eps));
        for (Index c = team.rank; c < width; c += team.size) to[c] = static_cast<T>(from[c] * scale);
        if (team.rank == 0) r(n, h) = scale;
    });
}

template <class T>
void l2_norm_backward(const Context<Cuda>& ctx, Index heads, In<T> dy, In<T> y, In<accumulator_t<T>> r, Out<T> dx) {
    using A = accumulator_t<T>;
    require_shape("l2_norm: dy", dy, dx.rows, dx.cols);
    require_shape("l2_norm: y", y, dx.rows, dx.cols);
    require_shape("l2_norm: r", r, dx.rows, heads);
    const Index width = dx.cols / heads;
    gpu::for_rows(ctx, dx.rows * heads, width, [=] __device__(Index row, gpu::Team team) {
        const Index n = row / heads, h = row % heads;
        const T *gradient = dy.row(n) + h * width, *unit = y.row(n) + h * width;
        T* to = dx.row(n) + h * width;
        A along = A(0);
        for (Index c = team.rank; c < width; c += team.size) along += A(gradient[c]) * unit[c];
        along = team.sum(along);
        for (Index c = team.rank; c < width; c += team.size)
            to[c] = static_cast<T>((gradient[c] - unit[c] * along) * r(n, h));
    });
}

}  // namespace kimik3
