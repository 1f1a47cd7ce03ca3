#pragma once
// The decay gate on the GPU: the sums over tokens first, since dz may take the place of dg.

#include "kimik3/ops/cuda/launch.cuh"
#include "kimik3/ops/decay_gate.hpp"
#include "kimik3/ops/formulas.hpp"

namespace kimik3 {
namespace gpu {

/// The gate of one logit (dt_bias added), rate = e^A, and the gradient of the logit.
template <class T>
__device__ T decay_of(DecayGateForm gate, T rate, T logit) {
    if (gate.kind == DecayGate::bounded) return static_cast<T>(gate.lower_bound) * sigmoid(rate * logit);
    return -rate * softplus(logit);
}
template <class T>
__device__ T decay_logit_gradient(DecayGateForm gate, T rate, T logit, T dg) {
    if (gate.kind != DecayGate::bounded) return -rate * dg * sigmoid(logit);
    const T s = sigmoid(rate * logit);
    return static_cast<T>(gate.lower_bound) * rate * dg * s * (T(1) - s);
}

template <class T>
void require_gate_shapes(In<T> z, In<T> out, InVector<accumulator_t<T>> A_log, InVector<accumulator_t<T>> dt_bias) {
    require_shape("decay_gate: z", z, out.rows, out.cols);
    require_size("decay_gate: dt_bias", dt_bias, out.cols);
    require(A_log.size > 0 && out.cols % A_log.size == 0, "decay_gate: {} columns are no multiple of {} heads",
            out.cols, A_log.size);
}

}  // namespace gpu

template <class T>
void decay_gate_forward(const Context<Cuda>& ctx, DecayGateForm gate, In<T> z, InVector<accumulator_t<T>> A_log,
                        InVector<accumulator_t<T>> dt_bias, Out<T> g) {
    using A = accumulator_t<T>;
    gpu::require_gate_shapes<T>(z, g, A_log, dt_bias);
    const Index width = g.cols / A_log.size;
    gpu::for_rows(ctx, g.rows, g.cols, [=] __device__(Index n, gpu::Team team) {
        for (Index c = team.rank; c < g.cols; c += team.size)
            g(n, c) = static_cast<T>(gpu::decay_of<A>(gate, exp(A_log[c / width]), z(n, c) + dt_bias[c]));
    });
}

template <class T>
void decay_gate_backward(const Context<Cuda>& ctx, DecayGateForm gate, In<T> dg, In<T> z,
                         InVector<accumulator_t<T>> A_log, InVector<accumulator_t<T>> dt_bias, Out<T> dz,
                         std::type_identity_t<OutVector<accumulator_t<T>>> dA_log,
                         std::type_identity_t<OutVector<accumulator_t<T>>> ddt_bias) {
    using A = accumulator_t<T>;
    gpu::require_gate_shapes<T>(z, dz, A_log, dt_bias);
    require_shape("decay_gate: dg", dg, dz.rows, dz.cols);
    require_size("decay_gate: dA_log", dA_log, A_log.size);
    require_size("decay_gate: ddt_bias", ddt_bias, dz.cols);
    const Index width = dz.cols / A_log.size;
    A* moments = ctx.workspace<A>(Scratch::operation, dz.cols);
    gpu::column_sums<A>(
        ctx, dz.rows, dz.cols,
        [=] __device__(Index n, Index c) {
            return gpu::decay_logit_gradient<A>(gate, exp(A_log[c / width]), z(n, c) + dt_bias[c], dg(n, c));
        },
        [=] __device__(Index c, A sum) { ddt_bias[c] += sum; });
    gpu::column_sums<A>(
        ctx, dz.rows, dz.cols,
        [=] __device__(Index n, Index c) {
            const A rate = exp(A_log[c / width]), logit = z(n, c) + dt_bias[c];
            return gate.kind == DecayGate::bounded ? gpu::decay_logit_gradient<A>(gate, rate, logit, dg(n, c)) * logit
                                                   : dg(n, c) * gpu::decay_of<A>(gate, rate, logit);
        },
        [=] __device__(Index c, A sum) { moments[c] = sum; });
    gpu::for_rows(ctx, A_log.size, width, [=] __device__(Index h, gpu::Team team) {
        A sum = A(0);
        for (Index c = team.rank; c < width; c += team.size) sum += moments[h * width + c];
        sum = team.sum(sum);
        if (team.rank == 0) dA_log[h] += sum;
    });
    gpu::for_rows(ctx, dz.rows, dz.cols, [=] __device__(Index n, gpu::Team team) {
        for (Index c = team.rank; c < dz.cols; c += team.size)
            dz(n, c) = static_cast<T>(
                gpu::decay_logit_gradient<A>(gate, exp(A_log[c / width]), z(n, c) + dt_bias[c], dg(n, c)));
    });
}

}  // namespace kimik3
