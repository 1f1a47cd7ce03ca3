#pragma once
// Elementwise sums on the GPU.

#include "kimik3/ops/add.hpp"
#include "kimik3/ops/cuda/launch.cuh"

namespace kimik3 {

template <class T>
void add_to(const Context<Cuda>& ctx, In<T> x, Out<T> y) {
    require_shape("add_to: x", x, y.rows, y.cols);
    gpu::for_rows(ctx, y.rows, y.cols, [=] __device__(Index n, gpu::Team team) {
        for (Index c = team.rank; c < y.cols; c += team.size) y(n, c) = static_cast<T>(y(n, c) + x(n, c));
    });
}

}  // namespace kimik3
