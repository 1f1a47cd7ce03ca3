#pragma once
// RMSNorm on the GPU: rows are read once and kept in registers, by a team in forward, by a thread an Eight in backward,
// where dw is summed in the same pass. Rows that are no Eights (vectors.cuh) take the plain form, where dw comes first,
// before dx may take the place of dy or x.

#include "kimik3/ops/cuda/vectors.cuh"
#include "kimik3/ops/rms_norm.hpp"

namespace kimik3 {
namespace gpu {

template <class T, int lanes, int vectors>
__global__ void __launch_bounds__(block_threads)
    rms_norm_forward_kernel(MatrixView<const T> x, VectorView<const accumulator_t<T>> w, accumulator_t<T> eps,
                            MatrixView<T> y, VectorView<accumulator_t<T>> r) {
    using A = accumulator_t<T>;
    begin_in_turn();
    rows_of_team<lanes>(x.rows, [&](Index n, int lane) {
        Eight<T> row[vectors];
        A squares = A(0);
#pragma unroll
        for (int v = 0; v < vectors; ++v) {
            const int c = 8 * (v * lanes + lane);
            row[v] = n < x.rows && c < x.cols ? Eight<T>::load(x.row(n) + c) : Eight<T>::zero();
        }
#pragma unroll
        for (int v = 0; v < vectors; ++v) {
            A value[8];
            row[v].get(value);
#pragma unroll
            for (int i = 0; i < 8; ++i) squares += value[i] * value[i];
        }
        const A scale = A(1) / sqrt(team_sum<lanes>(squares) / static_cast<A>(x.cols) + eps);
        if (n >= x.rows) return;
#pragma unroll
        for (int v = 0; v < vectors; ++v) {
            const int c = 8 * (v * lanes + lane);
            if (c >= x.cols) continue;
            A value[8], weight[8];
            row[v].get(value);
            load_eight(w.data + c, weight);
#pragma unroll
            for (int i = 0; i < 8; ++i) value[i] *= scale * weight[i];
            Eight<T>::of(value).store(y.row(n) + c);
        }
        if (lane == 0) r[n] = scale;
    });
}

/// parts: a block's sums of dw.
template <class T, int halves>
__global__ void __launch_bounds__(RowThreads<halves>::most)
    rms_norm_backward_kernel(RowThreads<halves> at, MatrixView<const T> dy, MatrixView<const T> x,
                             VectorView<const accumulator_t<T>> w, VectorView<const accumulator_t<T>> r,
                             MatrixView<T> dx, accumulator_t<T>* parts) {
    using A = accumulator_t<T>;
    using Sums = typename RowThreads<halves>::template Sums<A, 1>;
    begin_in_turn();
    __shared__ Sums along_of[2];  // in turn, so that a barrier a row is enough
    __shared__ __align__(16) A shared[128 * halves];
    along_of[0].clear(), along_of[1].clear();
    const int c = at.column();
    const A each = A(1) / static_cast<A>(x.cols);
    A sums[1][8] = {}, weight[8] = {};
    if (c < x.cols) load_eight(w.data + c, weight);
    const Index step = Index{gridDim.x} * at.rows;
    Index n = Index{blockIdx.x} * at.rows + at.row();
    const auto exists = [&](Index n) { return n < x.rows && c < x.cols; };
    Eight<T> next_x, next_dy;
    A next_scale;
    const auto fetch = [&](Index n) {
        next_x = exists(n) ? Eight<T>::load(x.row(n) + c) : Eight<T>::zero();
        next_dy = exists(n) ? Eight<T>::load(dy.row(n) + c) : Eight<T>::zero();
        next_scale = exists(n) ? r[n] : A(0);
    };
    fetch(n);
    int turn = 0;
    for (Index first = Index{blockIdx.x} * at.rows; first < x.rows; first += step, n += step, turn ^= 1) {
        const A scale = next_scale;
        A value[8], g[8], along = A(0);
        next_x.get(value), next_dy.get(g);
        fetch(n + step);
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            sums[0][i] += g[i] * value[i] * scale;
            g[i] *= weight[i];
            along += g[i] * value[i];
        }
        along = team_sum<16>(along);
        if (threadIdx.x % 16 == 0) along_of[turn].put(at, 0, along);
        __syncthreads();
        const A pull = scale * scale * scale * along_of[turn].take(at, 0) * each;
#pragma unroll
        for (int i = 0; i < 8; ++i) value[i] = g[i] * scale - value[i] * pull;
        if (exists(n)) Eight<T>::of(value).store(dx.row(n) + c);
    }
    leave_column_sums(at.row_threads, sums, static_cast<int>(x.cols / 8), shared, parts + blockIdx.x * x.cols);
}

}  // namespace gpu

template <class T>
void rms_norm_forward(const Context<Cuda>& ctx, In<T> x, InVector<accumulator_t<T>> w, double eps, Out<T> y,
                      OutVector<accumulator_t<T>> r) {
    using A = accumulator_t<T>;
    require_shape("rms_norm: y", y, x.rows, x.cols);
    require_size("rms_norm: w", w, x.cols);
    require_size("rms_norm: r", r, x.rows);
    if (x.rows == 0) return;
    if (gpu::in_eights<const T>({x, y}) && gpu::in_eights<const A>({w}) &&
        gpu::split_row(x.cols, [&](auto lanes, auto vectors) {
            gpu::launch_early(ctx, ceil_div(x.rows, gpu::block_threads / lanes), gpu::block_threads, 0,
                              gpu::rms_norm_forward_kernel<T, lanes, vectors>, x, w, static_cast<A>(eps), y, r);
        }))
        return;
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
    if (x.rows == 0) return;
    Index blocks = 0;
    A* parts = nullptr;
    if (gpu::in_eights<const T>({dy, x, dx}) && gpu::in_eights<const A>({w}) &&
        gpu::share_row(x.cols, [&](auto halves) {
            constexpr auto kernel = gpu::rms_norm_backward_kernel<T, halves>;
            const gpu::RowThreads<halves> at(x.cols);
            blocks = (std::min)(gpu::resident_blocks(kernel, at.threads()), ceil_div(x.rows, at.rows));
            parts = ctx.workspace<A>(Scratch::sums, blocks * x.cols);
            gpu::launch_early(ctx, blocks, at.threads(), 0, kernel, at, dy, x, w, r, dx, parts);
        }))
        return gpu::sum_parts(ctx, parts, blocks, x.cols, [=] __device__(Index c, A sum) { dw[c] += sum; });
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
