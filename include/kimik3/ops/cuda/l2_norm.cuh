#pragma once
// L2 normalisation on the GPU: a team a head of a row, in registers where heads are Eights (vectors.cuh).

#include "kimik3/ops/cuda/gated_norm.cuh"
#include "kimik3/ops/l2_norm.hpp"

namespace kimik3 {
namespace gpu {

/// Backward: x is the unit vectors, and y their gradients' place; forward has no dy.
template <class T, int lanes, int vectors, bool backward>
__global__ void __launch_bounds__(block_threads)
    l2_norm_kernel(Index heads, Index width, MatrixView<const T> dy, MatrixView<const T> x, MatrixView<T> y,
                   const accumulator_t<T>* r_in, accumulator_t<T>* r_out, Index r_stride) {
    using A = accumulator_t<T>;
    const Index parts = x.rows * heads;
    begin_in_turn();
    rows_of_team<lanes>(parts, [&](Index part, int lane) {
        const HeadPlace at(part, heads);
        const Index first = at.h * width;
        Eight<T> row[vectors], incoming[vectors];
        A along = A(0);
#pragma unroll
        for (int v = 0; v < vectors; ++v) {
            const int c = 8 * (v * lanes + lane);
            const bool exists = part < parts && c < width;
            row[v] = exists ? Eight<T>::load(x.row(at.n) + first + c) : Eight<T>::zero();
            if (backward) incoming[v] = exists ? Eight<T>::load(dy.row(at.n) + first + c) : Eight<T>::zero();
        }
#pragma unroll
        for (int v = 0; v < vectors; ++v) {
            A value[8], other[8];
            row[v].get(value);
            (backward ? incoming[v] : row[v]).get(other);
#pragma unroll
            for (int i = 0; i < 8; ++i) along += value[i] * other[i];
        }
        along = team_sum<lanes>(along);
        if (part >= parts) return;
        const A scale = backward ? r_in[at.n * r_stride + at.h] : A(1) / sqrt(along + static_cast<A>(l2_norm_eps));
        if (!backward && lane == 0) r_out[at.n * r_stride + at.h] = scale;
#pragma unroll
        for (int v = 0; v < vectors; ++v) {
            const int c = 8 * (v * lanes + lane);
            if (c >= width) continue;
            A value[8], gradient[8];
            row[v].get(value);
            if (backward) incoming[v].get(gradient);
#pragma unroll
            for (int i = 0; i < 8; ++i) value[i] = (backward ? gradient[i] - value[i] * along : value[i]) * scale;
            Eight<T>::of(value).store(y.row(at.n) + first + c);
        }
    });
}

/// Whether the kernel was started.
template <bool backward, class T>
bool l2_norm_in_eights(const Context<Cuda>& ctx, Index heads, MatrixView<const T> dy, MatrixView<const T> x,
                       MatrixView<T> y, const accumulator_t<T>* r_in, accumulator_t<T>* r_out, Index r_stride) {
    const Index width = y.cols / heads;
    if (width % 8 != 0 || !in_eights<const T>({x, y}) || (backward && !in_eights<const T>({dy}))) return false;
    return split_row(width, [&](auto lanes, auto vectors) {
        const Index blocks = ceil_div(y.rows * heads, block_threads / lanes);
        launch_early(ctx, grid_of(blocks), block_threads, 0, l2_norm_kernel<T, lanes, vectors, backward>, heads, width,
                     dy, x, y, r_in, r_out, r_stride);
    });
}

}  // namespace gpu

template <class T>
void l2_norm_forward(const Context<Cuda>& ctx, Index heads, In<T> x, Out<T> y,
                     std::type_identity_t<MatrixView<accumulator_t<T>>> r) {
    using A = accumulator_t<T>;
    detail::check_l2_norm(heads, y.cols);
    require_shape("l2_norm: x", x, y.rows, y.cols);
    require_shape("l2_norm: r", r, y.rows, heads);
    const Index width = y.cols / heads;
    if (y.rows == 0 || gpu::l2_norm_in_eights<false, T>(ctx, heads, {}, x, y, nullptr, r.data, r.stride)) return;
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
    detail::check_l2_norm(heads, dx.cols);
    require_shape("l2_norm: dy", dy, dx.rows, dx.cols);
    require_shape("l2_norm: y", y, dx.rows, dx.cols);
    require_shape("l2_norm: r", r, dx.rows, heads);
    const Index width = dx.cols / heads;
    if (dx.rows == 0 || gpu::l2_norm_in_eights<true, T>(ctx, heads, dy, y, dx, r.data, nullptr, r.stride)) return;
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
