#pragma once
// SiTU-GLU on the GPU, an Eight a thread where rows are made of Eights (vectors.cuh).

#include "kimik3/ops/cuda/quick_formulas.cuh"
#include "kimik3/ops/cuda/vectors.cuh"
#include "kimik3/ops/situ.hpp"

namespace kimik3 {
namespace gpu {

/// SiTU-GLU of a gate and an up value, and its derivatives.
template <class A>
struct SituSlopes {
    A value, gate, up;
};

/// The betas of a kernel for numbers stored as T, and whether it computes their limit. Where both are quick they are
/// computed and one is chosen, since a branch would make each number wait for the one before.
template <class T>
struct SituNumbers {
    using A = accumulator_t<T>;
    A beta, linear_beta, inverse_beta, inverse_linear_beta;
    bool limit;

    explicit SituNumbers(SituBetas b)
        : beta(static_cast<A>(b.gate)),
          linear_beta(static_cast<A>(b.linear)),
          inverse_beta(static_cast<A>(1.0 / b.gate)),
          inverse_linear_beta(static_cast<A>(1.0 / b.linear)),
          limit(b.is_swiglu()) {}
    __device__ A value(A gate, A up) const {
        const A s = sigmoid_of<T>(gate), swiglu = gate * s * up;
        if (limit && !quick) return swiglu;
        const A situ = beta * gate_tanh(gate) * s * linear_beta * up_tanh(up);
        return limit ? swiglu : situ;
    }
    __device__ SituSlopes<A> slopes(A gate, A up) const {
        const A s = sigmoid_of<T>(gate), silu = gate * s;
        const SituSlopes<A> swiglu{silu * up, up * (s * (A(1) + gate * (A(1) - s))), silu};
        if (limit && !quick) return swiglu;
        const A t = gate_tanh(gate), h = up_tanh(up), left = beta * t * s, right = linear_beta * h;
        // (SITU-2)
        const SituSlopes<A> situ{left * right, right * s * ((A(1) - t * t) + beta * t * (A(1) - s)),
                                 left * (A(1) - h * h)};
        return {limit ? swiglu.value : situ.value, limit ? swiglu.gate : situ.gate, limit ? swiglu.up : situ.up};
    }
    __device__ SituGradient<A> gradient(A gate, A up, A dy) const {
        const SituSlopes<A> slope = slopes(gate, up);
        return {dy * slope.gate, dy * slope.up};
    }

private:
    static constexpr bool quick = std::is_same_v<T, bf16>;
    __device__ A gate_tanh(A x) const { return tanh_of<T>(quick ? x * inverse_beta : x / beta); }
    __device__ A up_tanh(A x) const { return tanh_of<T>(quick ? x * inverse_linear_beta : x / linear_beta); }
};

}  // namespace gpu

template <class T>
void situ_forward(const Context<Cuda>& ctx, In<T> gate, In<T> up, SituBetas betas, Out<T> y) {
    using A = accumulator_t<T>;
    require_shape("situ: gate", gate, y.rows, y.cols);
    require_shape("situ: up", up, y.rows, y.cols);
    const gpu::SituNumbers<T> form(betas);
    if (gpu::in_eights<const T>({gate, up, y})) {
        return gpu::for_eights(ctx, y.rows, y.cols, [=] __device__(Index n, Index c) {
            A g[8], u[8];
            gpu::load_eight(gate.row(n) + c, g), gpu::load_eight(up.row(n) + c, u);
#pragma unroll
            for (int i = 0; i < 8; ++i) g[i] = form.value(g[i], u[i]);
            gpu::Eight<T>::of(g).store(y.row(n) + c);
        });
    }
    gpu::for_rows(ctx, y.rows, y.cols, [=] __device__(Index n, gpu::Team team) {
        for (Index c = team.rank; c < y.cols; c += team.size)
            y(n, c) = static_cast<T>(form.value(gate(n, c), up(n, c)));
    });
}

template <class T>
void situ_backward(const Context<Cuda>& ctx, In<T> dy, In<T> gate, In<T> up, SituBetas betas, Out<T> dgate,
                   Out<T> dup) {
    using A = accumulator_t<T>;
    require_shape("situ: gate", gate, dy.rows, dy.cols);
    require_shape("situ: up", up, dy.rows, dy.cols);
    require_shape("situ: dgate", dgate, dy.rows, dy.cols);
    require_shape("situ: dup", dup, dy.rows, dy.cols);
    const gpu::SituNumbers<T> form(betas);
    if (gpu::in_eights<const T>({dy, gate, up, dgate, dup})) {
        return gpu::for_eights(ctx, dy.rows, dy.cols, [=] __device__(Index n, Index c) {
            A g[8], u[8], d[8];
            gpu::load_eight(gate.row(n) + c, g), gpu::load_eight(up.row(n) + c, u);
            gpu::load_eight(dy.row(n) + c, d);
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                const SituGradient<A> gradient = form.gradient(g[i], u[i], d[i]);
                g[i] = gradient.gate, u[i] = gradient.up;
            }
            gpu::Eight<T>::of(g).store(dgate.row(n) + c);
            gpu::Eight<T>::of(u).store(dup.row(n) + c);
        });
    }
    gpu::for_rows(ctx, dy.rows, dy.cols, [=] __device__(Index n, gpu::Team team) {
        for (Index c = team.rank; c < dy.cols; c += team.size) {
            const SituGradient<A> gradient = form.gradient(gate(n, c), up(n, c), dy(n, c));
            dgate(n, c) = static_cast<T>(gradient.gate);
            dup(n, c) = static_cast<T>(gradient.up);
        }
    });
}

}  // namespace kimik3
