#pragma once
// The router on the GPU: a warp a token, which finds its k + 1 largest scores one after another.

#include "kimik3/ops/cuda/matmul.cuh"
#include "kimik3/ops/cuda/router_bf16.cuh"
#include "kimik3/ops/cuda/tile_product.cuh"
#include "kimik3/ops/formulas.hpp"
#include "kimik3/ops/router.hpp"

namespace kimik3 {
namespace gpu {

/// A score + bias and its expert; NaN stands below everything. Better: larger, or equal and of a lower expert.
template <class T>
struct Choice {
    T value;
    Index expert;

    __device__ bool better_than(const Choice& other) const {
        return value > other.value || (value == other.value && expert < other.expert);
    }
};

template <class T>
__device__ Choice<T> warp_best(Choice<T> mine) {
    for (int apart = 16; apart > 0; apart /= 2) {
        const Choice<T> other{__shfl_xor_sync(0xffffffffu, mine.value, apart),
                              __shfl_xor_sync(0xffffffffu, mine.expert, apart)};
        if (other.better_than(mine)) mine = other;
    }
    return mine;
}

template <class T>
__device__ T sum_of_chosen(const T* score, const std::int32_t* chosen, Index count) {
    T sum = T(0);
    for (Index j = 0; j < count; ++j) sum += score[chosen[j]];
    return sum + static_cast<T>(1e-20);
}

/// logits [N, E] = x w^T, 32 x 32 of them a block.
template <class T, class A>
__global__ void router_logits_kernel(MatrixView<const T> x, MatrixView<const A> w, MatrixView<A> logits) {
    __shared__ A left[32][33], right[32][33];
    const Index tiles = ceil_div(w.rows, 32), n0 = blockIdx.x / tiles * 32, e0 = blockIdx.x % tiles * 32;
    TileProduct<A> product;
    product.dot(
        x.cols, left, right, [&](Index i, Index k) { return n0 + i < x.rows ? static_cast<A>(x(n0 + i, k)) : A(0); },
        [&](Index j, Index k) { return e0 + j < w.rows ? w(e0 + j, k) : A(0); });
    const Index e = e0 + threadIdx.x % 32;
    for (int i = 0; i < 4; ++i) {
        const Index n = n0 + threadIdx.x / 32 + 8 * i;
        if (n < x.rows && e < w.rows) logits(n, e) = product.value[i];
    }
}

/// Logits become scores, and the scores a choice; a warp a token.
template <class A>
void choose_experts(const Context<Cuda>& ctx, InVector<A> bias, RouterRule rule, Out<A> scores,
                    Out<std::int32_t> experts, Out<A> weights, OutVector<A> cutoff) {
    const Index count = experts.cols, all = scores.cols;
    const A plain = static_cast<A>(rule.factor);
    const bool renormalize = rule.renormalize;
    for_rows(ctx, scores.rows, 32, [=] __device__(Index n, Team team) {
        A* score = scores.row(n);
        bool broken = false;
        for (Index e = team.rank; e < all; e += 32) {
            score[e] = sigmoid(score[e]);
            broken |= !(score[e] + bias[e] == score[e] + bias[e]);
        }
        broken = __any_sync(0xffffffffu, broken);
        const auto biased = [&](Index e) {
            const A value = score[e] + bias[e];
            return value == value ? value : static_cast<A>(-INFINITY);
        };
        Choice<A> last{static_cast<A>(INFINITY), -1};
        for (Index j = 0; j <= count; ++j) {
            Choice<A> best{static_cast<A>(-INFINITY), all};
            for (Index e = team.rank; e < all; e += 32) {
                const Choice<A> choice{biased(e), e};
                if (last.better_than(choice) && choice.better_than(best)) best = choice;
            }
            last = warp_best(best);
            if (team.rank == 0 && j < count) experts(n, j) = static_cast<std::int32_t>(last.expert);
            if (team.rank == 0 && j == count) cutoff[n] = broken ? static_cast<A>(NAN) : last.value;
        }
        team.sync();
        const A factor = broken ? static_cast<A>(NAN) : plain;
        const A scale = renormalize ? factor / sum_of_chosen(score, experts.row(n), count) : factor;
        for (Index j = team.rank; j < count; j += 32) weights(n, j) = score[experts(n, j)] * scale;
    });
}

/// dweights become the gradients of the chosen logits, scores those of all.
template <class A>
void logit_gradients(const Context<Cuda>& ctx, RouterRule rule, In<std::int32_t> experts, Out<A> dweights,
                     Out<A> scores) {
    const Index count = experts.cols;
    const A plain = static_cast<A>(rule.factor);
    const bool renormalize = rule.renormalize;
    for_rows(ctx, scores.rows, 32, [=] __device__(Index n, Team team) {
        const std::int32_t* chosen = experts.row(n);
        A *gradient = dweights.row(n), *row = scores.row(n);
        A scale = plain, mean = A(0);
        if (renormalize) {
            const A sum = sum_of_chosen(row, chosen, count);
            for (Index j = 0; j < count; ++j) mean += gradient[j] * row[chosen[j]];
            mean /= sum;
            scale /= sum;
        }
        team.sync();
        for (Index j = team.rank; j < count; j += 32) {
            const A s = row[chosen[j]];
            gradient[j] = s * (A(1) - s) * scale * (gradient[j] - mean);
        }
        team.sync();
        for (Index e = team.rank; e < scores.cols; e += 32) row[e] = A(0);
        team.sync();
        for (Index j = team.rank; j < count; j += 32) row[chosen[j]] = gradient[j];
    });
}

/// dw [E, M] += dlogits^T x, 32 x 32 elements a block.
template <class T, class A>
__global__ void router_weights_kernel(MatrixView<const T> x, MatrixView<const A> dlogits, MatrixView<A> dw) {
    __shared__ A left[32][33], right[32][33];
    const Index tiles = ceil_div(dw.cols, 32), e0 = blockIdx.x / tiles * 32, c0 = blockIdx.x % tiles * 32;
    TileProduct<A> product;
    product.dot(
        x.rows, left, right, [&](Index i, Index n) { return e0 + i < dw.rows ? dlogits(n, e0 + i) : A(0); },
        [&](Index j, Index n) { return c0 + j < dw.cols ? static_cast<A>(x(n, c0 + j)) : A(0); });
    const Index c = c0 + threadIdx.x % 32;
    for (int i = 0; i < 4; ++i) {
        const Index e = e0 + threadIdx.x / 32 + 8 * i;
        if (e < dw.rows && c < dw.cols) dw(e, c) += product.value[i];
    }
}

/// dx[n] += sum over the chosen, in their order, of dlogit w[expert].
template <class T, class A>
void add_router_inputs(const Context<Cuda>& ctx, In<A> w, In<std::int32_t> experts, In<A> gradient, Out<T> dx) {
    for_rows(ctx, dx.rows, 32, [=] __device__(Index n, Team team) {
        for (Index c = team.rank; c < dx.cols; c += 32) {
            A sum = static_cast<A>(dx(n, c));
            for (Index j = 0; j < experts.cols; ++j) sum += gradient(n, j) * w(experts(n, j), c);
            dx(n, c) = static_cast<T>(sum);
        }
    });
}

}  // namespace gpu

template <class X, class A>
void router_forward(const Context<Cuda>& ctx, MatrixView<X> x, In<A> w, InVector<A> bias, RouterRule rule,
                    Out<A> scores, Out<std::int32_t> experts, Out<A> weights, OutVector<A> cutoff) {
    using T = std::remove_const_t<X>;
    static_assert(std::is_same_v<A, accumulator_t<T>>, "kimik3: scores are in the accumulator's type");
    const Index count = experts.cols, all = w.rows;
    require(count >= 1 && count < all, "a token goes to at least one expert and not to all, got {} of {}", count, all);
    require_size("router: bias", bias, all);
    require_shape("router: w", w, all, x.cols);
    require_shape("router: scores", scores, x.rows, all);
    require_shape("router: experts", experts, x.rows, count);
    require_shape("router: weights", weights, x.rows, count);
    require_size("router: cutoff", cutoff, x.rows);
    if (x.rows == 0) return;
    if constexpr (std::is_same_v<T, A>) {
        matmul_nt(ctx, x, w, scores, Add::no);
    } else {
        if (gpu::tensor_router(x, all, count))
            return gpu::tensor_router_forward(ctx, x, w, bias, rule, scores, experts, weights, cutoff);
        const Index blocks = ceil_div(x.rows, 32) * ceil_div(all, 32);
        gpu::router_logits_kernel<T, A><<<gpu::exact_grid(blocks), gpu::block_threads, 0, ctx.stream()>>>(x, w, scores);
        check_launch();
    }
    gpu::choose_experts<A>(ctx, bias, rule, scores, experts, weights, cutoff);
}

template <class T>
void router_backward(const Context<Cuda>& ctx, In<T> x, In<accumulator_t<T>> w, RouterRule rule,
                     In<std::int32_t> experts, Out<accumulator_t<T>> dweights, Out<accumulator_t<T>> scores, Out<T> dx,
                     Out<accumulator_t<T>> dw) {
    using A = accumulator_t<T>;
    const Index count = experts.cols;
    require_shape("router: experts", experts, scores.rows, count);
    require_shape("router: dweights", dweights, scores.rows, count);
    require_shape("router: x", x, scores.rows, w.cols);
    require_shape("router: dx", dx, scores.rows, w.cols);
    require_shape("router: dw", dw, scores.cols, w.cols);
    if (x.rows == 0) return;
    if constexpr (std::is_same_v<T, bf16>) {
        if (gpu::tensor_router(x, scores.cols, count) && gpu::tensor_router(dx, scores.cols, count) &&
            w.stride % 4 == 0 && reinterpret_cast<std::uintptr_t>(w.data) % 16 == 0)
            return gpu::tensor_router_backward(ctx, x, w, rule, experts, dweights, scores, dx, dw);
    }
    gpu::logit_gradients<A>(ctx, rule, experts, dweights, scores);
    if constexpr (std::is_same_v<T, A>) {
        matmul_nn(ctx, scores, w, dx, Add::yes);
        matmul_tn(ctx, scores, x, dw, Add::yes);
    } else {
        gpu::add_router_inputs<T, A>(ctx, w, experts, dweights, dx);
        const Index blocks = ceil_div(dw.rows, 32) * ceil_div(dw.cols, 32);
        gpu::router_weights_kernel<T, A><<<gpu::exact_grid(blocks), gpu::block_threads, 0, ctx.stream()>>>(x, scores,
                                                                                                           dw);
        check_launch();
    }
}

}  // namespace kimik3
