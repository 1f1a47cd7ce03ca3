#pragma once
// Elementwise sums on the GPU.

#include "kimik3/ops/add.hpp"
#include "kimik3/ops/cuda/vectors.cuh"

namespace kimik3 {

template <class T>
void add_to(const Context<Cuda>& ctx, In<T> x, Out<T> y) {
    using A = accumulator_t<T>;
    require_shape("add_to: x", x, y.rows, y.cols);
    if (gpu::in_eights<const T>({x, y})) {
        return gpu::for_eights(ctx, y.rows, y.cols, [=] __device__(Index n, Index c) {
            A added[8], sum[8];
            gpu::load_eight(x.row(n) + c, added), gpu::load_eight(y.row(n) + c, sum);
#pragma unroll
            for (int i = 0; i < 8; ++i) sum[i] += added[i];
            gpu::Eight<T>::of(sum).store(y.row(n) + c);
        });
    }
    gpu::for_rows(ctx, y.rows, y.cols, [=] __device__(Index n, gpu::Team team) {
        for (Index c = team.rank; c < y.cols; c += team.size) y(n, c) = static_cast<T>(y(n, c) + x(n, c));
    });
}

}  // namespace kimik3
