#pragma once
// SiTU-GLU on the GPU.

#include "kimik3/ops/cuda/launch.cuh"
#include "kimik3/ops/formulas.hpp"
#include "kimik3/ops/situ.hpp"

namespace kimik3 {
namespace gpu {

/// The betas of a kernel, and whether it computes their limit.
template <class T>
struct SituNumbers {
    T beta, linear_beta;
    bool limit;

    explicit SituNumbers(SituBetas b)
        : beta(static_cast<T>(b.gate)), linear_beta(static_cast<T>(b.linear)), limit(b.is_swiglu()) {}
    __device__ T value(T gate, T up) const {
        return limit ? swiglu(gate, up) : situ(gate, up, beta, linear_beta);
    }
    __device__ SituGradient<T> gradient(T gate, T up, T dy) const {
        return limit ? swiglu_gradient(gate, up, dy) : situ_gradient(gate, up, beta, linear_beta, dy);
    }
};

}  // namespace gpu

template <class T>
void situ_forward(const Context<Cuda>& ctx, In<T> gate, In<T> up, SituBetas betas, Out<T> y) {
    require_shape("situ: gate", gate, y.rows, y.cols);
    require_shape("situ: up", up, y.rows, y.cols);
    const gpu::SituNumbers<accumulator_t<T>> form(betas);
    gpu::for_rows(ctx, y.rows, y.cols, [=] __device__(Index n, gpu::Team team) {
        for (Index c = team.rank; c < y.cols; c += team.size)
            y(n, c) = static_cast<T>(form.value(gate(n, c), up(n, c)));
    });
}

template <class T>
void situ_backward(const Context<Cuda>& ctx, In<T> dy, In<T> gate, In<T> up, SituBetas betas, Out<T> dgate,
                   Out<T> dup) {
    require_shape("situ: gate", gate, dy.rows, dy.cols);
    require_shape("situ: up", up, dy.rows, dy.cols);
    require_shape("situ: dgate", dgate, dy.rows, dy.cols);
    require_shape("situ: dup", dup, dy.rows, dy.cols);
    const gpu::SituNumbers<accumulator_t<T>> form(betas);
    gpu::for_rows(ctx, dy.rows, dy.cols, [=] __device__(Index n, gpu::Team team) {
        for (Index c = team.rank; c < dy.cols; c += team.size) {
            const auto gradient = form.gradient(gate(n, c), up(n, c), dy(n, c));
            dgate(n, c) = static_cast<T>(gradient.gate);
            dup(n, c) = static_cast<T>(gradient.up);
        }
    });
}

}  // namespace kimik3
