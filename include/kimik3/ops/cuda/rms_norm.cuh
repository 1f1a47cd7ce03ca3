#pragma once
// RMSNorm on the GPU: a team a row; dw by column sums, before dx may take the place of dy or x.

#include "kimik3/ops/cuda/launch.cuh"
#include "kimik3/ops/rms_norm.hpp"

namespace kimik3 {

template <class T>
void rms_norm_forward(const Context<Cuda>& ctx, In<T> x, InVector<T> w, double eps, Out<T> y,
                      OutVector<accumulator_t<T>> r) {
    require_shape("rms_norm: y", y, x.rows, x.cols);
    require_size("rms_norm: w", w, x.cols);
    require_size("rms_norm: r", r, x.rows);
    gpu::for_rows(ctx, x.rows, x.cols, [=] __device__(Index n, gpu::Team team) {
        T squares = T(0);
        for (Index c = team.rank; c < x.cols; c += team.size) squares += x(n, c) * x(n, c);
        const T scale = T(1) / sqrt(team.sum(squares) / static_cast<T>(x.cols) + static_cast<T>(eps));
        for (Index c = team.rank; c < x.cols; c += team.size) y(n, c) = x(n, c) * scale * w[c];
        if (team.rank == 0) r[n] = scale;
    });
}

template <class T>
void rms_norm_backward(const Context<Cuda>& ctx, In<T> dy, In<T> x, InVector<T> w, InVector<accumulator_t<T>> r,
                       Out<T> dx, OutVector<T> dw) {
    require_shape("rms_norm: dy", dy, x.rows, x.cols);
    require_shape("rms_norm: dx", dx, x.rows, x.cols);
    require_size("rms_norm: dw", dw, x.cols);
    gpu::column_sums<T>(
        ctx, x.rows, x.cols, [=] __device__(Index n, Index c) { return dy(n, c) * x(n, c) * r[n]; },
        [=] __device__(Index c, T sum) { dw[c] += sum; });
    gpu::for_rows(ctx, x.rows, x.cols, [=] __device__(Index n, gpu::Team team) {
        const T scale = r[n];
        T along = T(0);
        for (Index c = team.rank; c < x.cols; c += team.size) along += dy(n, c) * w[c] * x(n, c);
        const T pull = scale * scale * scale * (team.sum(along) / static_cast<T>(x.cols));
        for (Index c = team.rank; c < x.cols; c += team.size) dx(n, c) = dy(n, c) * w[c] * scale - x(n, c) * pull;
    });
}

}  // namespace kimik3
