#pragma once
// RMSNorm on the GPU: a team a row; dw by column sums, before dx may take the place of dy or x.

#include "kimik3/ops/cuda/launch.cuh"
#include "kimik3/ops/rms_norm.hpp"

namespace kimik3 {

template <class T>
void rms_norm_forward(const Context<Cuda>& ctx, In<T> x, InVector<accumulator_t<T>> w, double eps, Out<T> y,
                      OutVector<accumulator_t<T>> r) {
    using A = accumulator_t<T>;
    require_shape("rms_norm: y", y, x.rows, x.cols);
    require_size("rms_norm: w", w, x.cols);
    require_size("rms_norm: r", r, x.rows);
    gpu::for_rows(ctx, x.rows, x.cols, [=] __device__(Index n, gpu::Team team) {
        A squares = A(0);
        for (Index c = team.rank; c < x.cols; c += team.size) squares += A(x(n, c)) * x(n, c);
        const A scale = A(1) / sqrt(team.sum(squares) / static_cast<A>(x.cols) + static_cast<A>(eps));
        for (Index c = team.rank; c < x.cols; c += team.size) y(n, c) = static_cast<T>(x(n, c) * scale * w[c]);
        if (team.rank == 0) r[n] = scale;
    });
}

template <class T>
void rms_norm_backward(const Context<Cuda>& ctx, In<T> dy, In<T> x, InVector<accumulator_t<T>> w,
                       InVector<accumulator_t<T>> r, Out<T> dx, OutVector<accumulator_t<T>> dw) {
    using A = accumulator_t<T>;
    require_shape("rms_norm: dy", dy, x.rows, x.cols);
    require_shape("rms_norm: dx", dx, x.rows, x.cols);
    require_size("rms_norm: dw", dw, x.cols);
    gpu::column_sums<A>(
        ctx, x.rows, x.cols, [=] __device__(Index n, Index c) { return A(dy(n, c)) * x(n, c) * r[n]; },
        [=] __device__(Index c, A sum) { dw[c] += sum; });
    gpu::for_rows(ctx, x.rows, x.cols, [=] __device__(Index n, gpu::Team team) {
        const A scale = r[n];
        A along = A(0);
        for (Index c = team.rank; c < x.cols; c += team.size) along += dy(n, c) * w[c] * x(n, c);
        const A pull = scale * scale * scale * (team.sum(along) / static_cast<A>(x.cols));
        for (Index c = team.rank; c < x.cols; c += team.size)
            dx(n, c) = static_cast<T>(dy(n, c) * w[c] * scale - x(n, c) * pull);
    });
}

}  // namespace kimik3
