#pragma once
// The gated head norm on the GPU: a team a head of a row, which is read once and kept in registers; dw is summed in the
// same pass. Heads that are no Eights (vectors.cuh) take the plain form, where dw comes first, before the gate is
// overwritten.

#include "kimik3/ops/cuda/quick_formulas.cuh"
#include "kimik3/ops/cuda/vectors.cuh"
#include "kimik3/ops/gated_norm.hpp"

namespace kimik3 {
namespace gpu {

/// Row and head of the head-th part in order.
struct HeadPlace {
    Index n, h;

    __device__ HeadPlace(Index part, Index heads) {
        n = part >> 32 == 0 ? static_cast<unsigned>(part) / static_cast<unsigned>(heads) : part / heads;
        h = part - n * heads;
    }
};

/// gate: no columns, no gate.
template <class T, int lanes, int vectors>
__global__ void __launch_bounds__(block_threads)
    gated_norm_forward_kernel(Index heads, MatrixView<const T> x, MatrixView<const T> gate,
                              VectorView<const accumulator_t<T>> w, accumulator_t<T> eps, MatrixView<T> y,
                              MatrixView<accumulator_t<T>> r) {
    using A = accumulator_t<T>;
    const Index parts = x.rows * heads;
    const int width = static_cast<int>(w.size);
    begin_in_turn();
    rows_of_team<lanes>(parts, [&](Index part, int lane) {
        const HeadPlace at(part, heads);
        Eight<T> row[vectors], logits[vectors];
        A squares = A(0);
#pragma unroll
        for (int v = 0; v < vectors; ++v) {
            const int c = 8 * (v * lanes + lane);
            const bool exists = part < parts && c < width;
            const Index col = at.h * width + c;
            row[v] = exists ? Eight<T>::load(x.row(at.n) + col) : Eight<T>::zero();
            if (gate.cols != 0) logits[v] = exists ? Eight<T>::load(gate.row(at.n) + col) : Eight<T>::zero();
        }
#pragma unroll
        for (int v = 0; v < vectors; ++v) {
            A value[8];
            row[v].get(value);
#pragma unroll
            for (int i = 0; i < 8; ++i) squares += value[i] * value[i];
        }
        const A scale = A(1) / sqrt(team_sum<lanes>(squares) / static_cast<A>(width) + eps);
        if (part >= parts) return;
#pragma unroll
        for (int v = 0; v < vectors; ++v) {
            const int c = 8 * (v * lanes + lane);
            if (c >= width) continue;
            A value[8], weight[8];
            row[v].get(value);
            load_eight(w.data + c, weight);
#pragma unroll
            for (int i = 0; i < 8; ++i) value[i] *= scale * weight[i];
            if (gate.cols != 0) {
                A logit[8];
                logits[v].get(logit);
#pragma unroll
                for (int i = 0; i < 8; ++i) value[i] *= sigmoid_of<T>(logit[i]);
            }
            Eight<T>::of(value).store(y.row(at.n) + at.h * width + c);
        }
        if (lane == 0) r(at.n, at.h) = scale;
    });
}

/// parts: a block's sums of dw.
template <class T, int lanes, int vectors>
__global__ void __launch_bounds__(128)
    gated_norm_backward_kernel(Index heads, MatrixView<const T> dy, MatrixView<const T> x, MatrixView<const T> gate,
                               VectorView<const accumulator_t<T>> w, MatrixView<const accumulator_t<T>> r,
                               MatrixView<T> dx, MatrixView<T> dgate, accumulator_t<T>* parts) {
    using A = accumulator_t<T>;
    __shared__ __align__(16) A shared[8 * lanes * vectors];
    A sums[vectors][8] = {};
    const Index count = x.rows * heads;
    const int width = static_cast<int>(w.size);
    begin_in_turn();
    rows_of_team<lanes>(count, [&](Index part, int lane) {
        const HeadPlace at(part, heads);
        const Index first = at.h * width;
        Eight<T> row[vectors], incoming[vectors], logits[vectors];
        const A scale = part < count ? r(at.n, at.h) : A(0);
#pragma unroll
        for (int v = 0; v < vectors; ++v) {
            const int c = 8 * (v * lanes + lane);
            const bool exists = part < count && c < width;
            row[v] = exists ? Eight<T>::load(x.row(at.n) + first + c) : Eight<T>::zero();
            incoming[v] = exists ? Eight<T>::load(dy.row(at.n) + first + c) : Eight<T>::zero();
            if (gate.cols != 0) logits[v] = exists ? Eight<T>::load(gate.row(at.n) + first + c) : Eight<T>::zero();
        }
        A gradient[vectors][8], open[vectors][8], along = A(0);  // dy w s, and 1 - s
#pragma unroll
        for (int v = 0; v < vectors; ++v) {
            const int c = 8 * (v * lanes + lane);
            if (c >= width) continue;
            A value[8], weight[8], logit[8];
            row[v].get(value), incoming[v].get(gradient[v]);
            load_eight(w.data + c, weight);
            if (gate.cols != 0) logits[v].get(logit);
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                const A s = gate.cols != 0 ? sigmoid_of<T>(logit[i]) : A(1);
                gradient[v][i] *= s, open[v][i] = A(1) - s;
                sums[v][i] += gradient[v][i] * value[i] * scale;
                gradient[v][i] *= weight[i];
                along += gradient[v][i] * value[i];
            }
        }
        const A mean = scale * scale / static_cast<A>(width) * team_sum<lanes>(along);
        if (part >= count) return;
#pragma unroll
        for (int v = 0; v < vectors; ++v) {
            const int c = 8 * (v * lanes + lane);
            if (c >= width) continue;
            A value[8];
            row[v].get(value);
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                open[v][i] *= gradient[v][i] * value[i] * scale;
                gradient[v][i] = scale * (gradient[v][i] - value[i] * mean);
            }
            Eight<T>::of(gradient[v]).store(dx.row(at.n) + first + c);
            if (gate.cols != 0) Eight<T>::of(open[v]).store(dgate.row(at.n) + first + c);
        }
    });
    leave_column_sums(lanes, sums, width / 8, shared, parts + Index{blockIdx.x} * width);
}

}  // namespace gpu

template <class T>
void gated_norm_forward(const Context<Cuda>& ctx, Index heads, In<T> x, In<T> gate, InVector<accumulator_t<T>> w,
                        double eps, Out<T> y, std::type_identity_t<MatrixView<accumulator_t<T>>> r) {
    using A = accumulator_t<T>;
    const Index width = detail::check_gated_norm<T>(heads, y.rows, y.cols, x, gate, w, r);
    const bool gated = gate.cols != 0;
    if (y.rows == 0) return;
    if (gpu::in_eights<const T>({x, y}) && (!gated || gpu::in_eights<const T>({gate})) &&
        gpu::in_eights<const A>({w}) && gpu::split_row(width, [&](auto lanes, auto vectors) {
            const Index blocks = ceil_div(y.rows * heads, gpu::block_threads / lanes);
            gpu::launch_early(ctx, gpu::grid_of(blocks), gpu::block_threads, 0,
                              gpu::gated_norm_forward_kernel<T, lanes, vectors>, heads, x, gate, w,
                              static_cast<A>(eps), y, r);
        }))
        return;
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
    const Index width = detail::check_gated_norm<T>(heads, dx.rows, dx.cols, x, gate, w, r);
    const bool gated = gate.cols != 0;
    require_shape("gated_norm: dy", dy, dx.rows, dx.cols);
    require_size("gated_norm: dw", dw, width);
    if (gated) require_shape("gated_norm: dgate", dgate, dx.rows, dx.cols);
    if (dx.rows == 0) return;
    Index blocks = 0;
    A* parts = nullptr;
    if (gpu::in_eights<const T>({dy, x, dx}) && (!gated || gpu::in_eights<const T>({gate, dgate})) &&
        gpu::in_eights<const A>({w}) && gpu::split_row(width, [&](auto lanes, auto vectors) {
            constexpr auto kernel = gpu::gated_norm_backward_kernel<T, lanes, vectors>;
            ctx.make_current();
            static gpu::OfEachGpu<Index> resident;
            const Index most = resident.of_current([&] { return gpu::resident_blocks(kernel, 128); });
            blocks = (std::min)(most, ceil_div(dx.rows * heads, 128 / lanes));
            parts = ctx.workspace<A>(Scratch::sums, blocks * width);
            gpu::launch_early(ctx, blocks, 128, 0, kernel, heads, dy, x, gate, w, r, dx, dgate, parts);
        }))
        return gpu::sum_parts(ctx, parts, blocks, width, [=] __device__(Index c, A sum) { dw[c] += sum; });
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
