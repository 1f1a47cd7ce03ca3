#pragma once
// The decay gate on the GPU. Backward in one pass where rows are made of Eights (vectors.cuh): a thread has one Eight
// of columns and every slices-th row. The plain form sums over tokens first, since dz may take the place of dg.

#include "kimik3/ops/cuda/quick_formulas.cuh"
#include "kimik3/ops/cuda/vectors.cuh"
#include "kimik3/ops/decay_gate.hpp"

namespace kimik3 {
namespace gpu {

/// The gate of one logit (dt_bias added), rate = e^A, and the gradient of the logit, for numbers stored as T.
template <class T>
__device__ accumulator_t<T> decay_of(DecayGateForm gate, accumulator_t<T> rate, accumulator_t<T> logit) {
    using A = accumulator_t<T>;
    if (gate.kind == DecayGate::bounded) return static_cast<A>(gate.lower_bound) * sigmoid_of<T>(rate * logit);
    return -rate * softplus(logit);
}
template <class T>
__device__ accumulator_t<T> decay_logit_gradient(DecayGateForm gate, accumulator_t<T> rate, accumulator_t<T> logit,
                                                 accumulator_t<T> dg) {
    using A = accumulator_t<T>;
    if (gate.kind != DecayGate::bounded) return -rate * dg * sigmoid_of<T>(logit);
    const A s = sigmoid_of<T>(rate * logit);
    return static_cast<A>(gate.lower_bound) * rate * dg * s * (A(1) - s);
}
/// The gradient of A_log, from that of the logit.
template <class T>
__device__ accumulator_t<T> decay_rate_gradient(DecayGateForm gate, accumulator_t<T> rate, accumulator_t<T> logit,
                                                accumulator_t<T> dg, accumulator_t<T> dlogit) {
    return gate.kind == DecayGate::bounded ? dlogit * logit : dg * decay_of<T>(gate, rate, logit);
}

template <class T>
void require_gate_shapes(In<T> z, In<T> out, InVector<accumulator_t<T>> A_log, InVector<accumulator_t<T>> dt_bias) {
    require_shape("decay_gate: z", z, out.rows, out.cols);
    require_size("decay_gate: dt_bias", dt_bias, out.cols);
    require(A_log.size > 0 && out.cols % A_log.size == 0, "decay_gate: {} columns are no multiple of {} heads",
            out.cols, A_log.size);
}

/// parts [slices, 2 P]: sums of the logits' gradients, then of the rates'.
template <class T>
__global__ void __launch_bounds__(block_threads)
    decay_gate_backward_kernel(DecayGateForm gate, Index slices, MatrixView<const T> dg, MatrixView<const T> z,
                               VectorView<const accumulator_t<T>> A_log, VectorView<const accumulator_t<T>> dt_bias,
                               MatrixView<T> dz, accumulator_t<T>* parts) {
    using A = accumulator_t<T>;
    const Index per_row = z.cols / 8, thread = Index{blockIdx.x} * block_threads + threadIdx.x;
    const Index slice = thread / per_row, c = 8 * (thread - slice * per_row);
    if (slice >= slices) return;
    const A rate = exp(A_log[c / (z.cols / A_log.size)]);
    A bias[8], sums[8] = {}, rates[8] = {};
    load_eight(dt_bias.data + c, bias);
    for (Index n = slice; n < z.rows; n += slices) {
        A logit[8], gradient[8];
        load_eight(z.row(n) + c, logit), load_eight(dg.row(n) + c, gradient);
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            logit[i] += bias[i];
            const A dlogit = decay_logit_gradient<T>(gate, rate, logit[i], gradient[i]);
            sums[i] += dlogit;
            rates[i] += decay_rate_gradient<T>(gate, rate, logit[i], gradient[i], dlogit);
            gradient[i] = dlogit;
        }
        Eight<T>::of(gradient).store(dz.row(n) + c);
    }
    Eight<A>::of(sums).store(parts + slice * 2 * z.cols + c);
    Eight<A>::of(rates).store(parts + slice * 2 * z.cols + z.cols + c);
}

}  // namespace gpu

template <class T>
void decay_gate_forward(const Context<Cuda>& ctx, DecayGateForm gate, In<T> z, InVector<accumulator_t<T>> A_log,
                        InVector<accumulator_t<T>> dt_bias, Out<T> g) {
    using A = accumulator_t<T>;
    gpu::require_gate_shapes<T>(z, g, A_log, dt_bias);
    const Index width = g.cols / A_log.size;
    if (width % 8 == 0 && gpu::in_eights<const T>({z, g}) && gpu::in_eights<const A>({dt_bias})) {
        return gpu::for_eights(ctx, g.rows, g.cols, [=] __device__(Index n, Index c) {
            const A rate = exp(A_log[c / width]);
            A logit[8], bias[8];
            gpu::load_eight(z.row(n) + c, logit), gpu::load_eight(dt_bias.data + c, bias);
#pragma unroll
            for (int i = 0; i < 8; ++i) logit[i] = gpu::decay_of<T>(gate, rate, logit[i] + bias[i]);
            gpu::Eight<T>::of(logit).store(g.row(n) + c);
        });
    }
    gpu::for_rows(ctx, g.rows, g.cols, [=] __device__(Index n, gpu::Team team) {
        for (Index c = team.rank; c < g.cols; c += team.size)
            g(n, c) = static_cast<T>(gpu::decay_of<T>(gate, exp(A_log[c / width]), z(n, c) + dt_bias[c]));
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
    if (dz.rows == 0) return;
    const Index cols = dz.cols, width = cols / A_log.size;
    A* moments = ctx.workspace<A>(Scratch::operation, cols);
    const bool in_eights =
        width % 8 == 0 && gpu::in_eights<const T>({dg, z, dz}) && gpu::in_eights<const A>({dt_bias});
    if (in_eights) {
        constexpr auto kernel = gpu::decay_gate_backward_kernel<T>;
        const Index per_row = cols / 8, threads = gpu::resident_blocks(kernel, gpu::block_threads) * gpu::block_threads;
        const Index slices = std::clamp(threads / per_row, Index{1}, dz.rows);
        A* parts = ctx.workspace<A>(Scratch::sums, slices * 2 * cols);
        kernel<<<gpu::exact_grid(ceil_div(slices * per_row, gpu::block_threads)), gpu::block_threads, 0,
                 ctx.stream()>>>(gate, slices, dg, z, A_log, dt_bias, dz, parts);
        check_launch();
        gpu::sum_parts(ctx, parts, slices, 2 * cols, [=] __device__(Index i, A sum) {
            if (i < cols) ddt_bias[i] += sum;
            else moments[i - cols] = sum;
        });
    } else {
        gpu::column_sums<A>(
            ctx, dz.rows, cols,
            [=] __device__(Index n, Index c) {
                return gpu::decay_logit_gradient<T>(gate, exp(A_log[c / width]), z(n, c) + dt_bias[c], dg(n, c));
            },
            [=] __device__(Index c, A sum) { ddt_bias[c] += sum; });
        gpu::column_sums<A>(
            ctx, dz.rows, cols,
            [=] __device__(Index n, Index c) {
                const A rate = exp(A_log[c / width]), logit = z(n, c) + dt_bias[c], gradient = dg(n, c);
                return gpu::decay_rate_gradient<T>(gate, rate, logit, gradient,
                                                   gpu::decay_logit_gradient<T>(gate, rate, logit, gradient));
            },
            [=] __device__(Index c, A sum) { moments[c] = sum; });
    }
    gpu::for_rows(ctx, A_log.size, width, [=] __device__(Index h, gpu::Team team) {
        A sum = A(0);
        for (Index c = team.rank; c < width; c += team.size) sum += moments[h * width + c];
        sum = team.sum(sum);
        if (team.rank == 0) dA_log[h] += sum;
    });
    if (in_eights) return;
    gpu::for_rows(ctx, dz.rows, cols, [=] __device__(Index n, gpu::Team team) {
        for (Index c = team.rank; c < cols; c += team.size)
            dz(n, c) = static_cast<T>(
                gpu::decay_logit_gradient<T>(gate, exp(A_log[c / width]), z(n, c) + dt_bias[c], dg(n, c)));
    });
}

}  // namespace kimik3
