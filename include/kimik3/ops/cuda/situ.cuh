#pragma once
// SiTU-GLU on the GPU.

#include "kimik3/ops/cuda/launch.cuh"
#include "kimik3/ops/formulas.hpp"
#include "kimik3/ops/situ.hpp"

namespace kimik3 {

template <class T>
void situ_forward(const Context<Cuda>& ctx, In<T> gate, In<T> up, SituBetas betas, Out<T> y) {
    require_shape("situ: gate", gate, y.rows, y.cols);
    require_shape("situ: up", up, y.rows, y.cols);
    const T beta = static_cast<T>(betas.gate), linear_beta = static_cast<T>(betas.linear);
    gpu::for_rows(ctx, y.rows, y.cols, [=] __device__(Index n, gpu::Team team) {
        for (Index c = team.rank; c < y.cols; c += team.size) y(n, c) = situ(gate(n, c), up(n, c), beta, linear_beta);
    });
}

template <class T>
void situ_backward(const Context<Cuda>& ctx, In<T> dy, In<T> gate, In<T> up, SituBetas betas, Out<T> dgate,
                   Out<T> dup) {
    require_shape("situ: gate", gate, dy.rows, dy.cols);
    require_shape("situ: up", up, dy.rows, dy.cols);
    require_shape("situ: dgate", dgate, dy.rows, dy.cols);
    require_shape("situ: dup", dup, dy.rows, dy.cols);
    const T beta = static_cast<T>(betas.gate), linear_beta = static_cast<T>(betas.linear);
    gpu::for_rows(ctx, dy.rows, dy.cols, [=] __device__(Index n, gpu::Team team) {
        for (Index c = team.rank; c < dy.cols; c += team.size) {
            const SituGradient<T> gradient = situ_gradient(gate(n, c), up(n, c), beta, linear_beta, dy(n, c));
            dgate(n, c) = gradient.gate;
            dup(n, c) = gradient.up;
        }
    });
}

}  // namespace kimik3
