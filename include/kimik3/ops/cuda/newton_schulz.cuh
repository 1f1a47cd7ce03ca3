#pragma once
// Newton-Schulz on the GPU: cuBLAS's products; the norm in two stages of fixed shape.

#include "kimik3/ops/cuda/matmul.cuh"
#include "kimik3/ops/newton_schulz.hpp"

namespace kimik3 {

template <class T>
void newton_schulz(const Context<Cuda>& ctx, Out<T> x, Index steps, OutVector<T> scratch) {
    require(x.stride == x.cols, "newton_schulz: x must be dense, got rows of {} elements {} apart", x.cols, x.stride);
    require_size("newton_schulz: scratch", scratch, newton_schulz_scratch(x.rows, x.cols));
    const bool wide = x.rows <= x.cols;
    const Index side = wide ? x.rows : x.cols, count = x.size();
    MatrixView<T> now = x, next(scratch.data, x.rows, x.cols);
    const MatrixView<T> gram(scratch.data + round_up(count, 16), side, side);
    const MatrixView<T> square(gram.data + round_up(gram.size(), 16), side, side);
    if (steps % 2 != 0) std::swap(now, next);  // so that the last step writes x

    T* unit = gram.data;  // one number, until gram is needed
    gpu::column_sums<T>(
        ctx, count, 1, [=] __device__(Index i, Index) { return x.data[i] * x.data[i]; },
        [=] __device__(Index, T sum) { *unit = T(1) / (sqrt(sum) + T(1e-7)); });
    T* first = now.data;
    gpu::for_each(ctx, count, [=] __device__(Index i) { first[i] = x.data[i] * *unit; });
    for (Index step = 0; step < steps; ++step) {
        if (wide)
            matmul_nt(ctx, now, now, gram, Add::no);
        else
            matmul_tn(ctx, now, now, gram, Add::no);
        matmul_nn(ctx, gram, gram, square, Add::no);
        gpu::for_each(ctx, gram.size(), [=] __device__(Index i) {
            square.data[i] = gram.data[i] * T(-4.7750) + square.data[i] * T(2.0315);
        });
        const T* from = now.data;
        T* to = next.data;
        gpu::for_each(ctx, count, [=] __device__(Index i) { to[i] = from[i] * T(3.4445); });
        if (wide)
            matmul_nn(ctx, square, now, next, Add::yes);
        else
            matmul_nn(ctx, now, square, next, Add::yes);
        std::swap(now, next);
    }
}

}  // namespace kimik3
