#pragma once
// The router on the GPU: a warp a token, which finds its k + 1 largest scores one after another.

#include "kimik3/ops/cuda/matmul.cuh"
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

}  // namespace gpu

template <class T>
void router_forward(const Context<Cuda>& ctx, In<T> x, In<T> w, InVector<T> bias, RouterRule rule, Out<T> scores,
                    Out<std::int32_t> experts, Out<T> weights, OutVector<T> cutoff) {
    const Index count = experts.cols, all = w.rows;
    require(count >= 1 && count < all, "a token goes to at least one expert and not to all, got {} of {}", count, all);
    require_size("router: bias", bias, all);
    require_shape("router: experts", experts, x.rows, count);
    require_shape("router: weights", weights, x.rows, count);
    require_size("router: cutoff", cutoff, x.rows);
    matmul_nt(ctx, x, w, scores, Add::no);
    const T plain = static_cast<T>(rule.factor);
    const bool renormalize = rule.renormalize;
    gpu::for_rows(ctx, x.rows, 32, [=] __device__(Index n, gpu::Team team) {
        T* score = scores.row(n);
        bool broken = false;
        for (Index e = team.rank; e < all; e += 32) {
            score[e] = sigmoid(score[e]);
            broken |= !(score[e] + bias[e] == score[e] + bias[e]);
        }
        broken = __any_sync(0xffffffffu, broken);
        const auto biased = [&](Index e) {
            const T value = score[e] + bias[e];
            return value == value ? value : static_cast<T>(-INFINITY);
        };
        gpu::Choice<T> last{static_cast<T>(INFINITY), -1};
        for (Index j = 0; j <= count; ++j) {
            gpu::Choice<T> best{static_cast<T>(-INFINITY), all};
            for (Index e = team.rank; e < all; e += 32) {
                const gpu::Choice<T> choice{biased(e), e};
                if (last.better_than(choice) && choice.better_than(best)) best = choice;
            }
            last = gpu::warp_best(best);
            if (team.rank == 0 && j < count) experts(n, j) = static_cast<std::int32_t>(last.expert);
            if (team.rank == 0 && j == count) cutoff[n] = broken ? static_cast<T>(NAN) : last.value;
        }
        team.sync();
        const T factor = broken ? static_cast<T>(NAN) : plain;
        const T scale = renormalize ? factor / gpu::sum_of_chosen(score, experts.row(n), count) : factor;
        for (Index j = team.rank; j < count; j += 32) weights(n, j) = score[experts(n, j)] * scale;
    });
}

template <class T>
void router_backward(const Context<Cuda>& ctx, RouterRule rule, In<std::int32_t> experts, Out<T> dweights,
                     Out<T> scores) {
    const Index count = experts.cols;
    require_shape("router: experts", experts, scores.rows, count);
    require_shape("router: dweights", dweights, scores.rows, count);
    const T plain = static_cast<T>(rule.factor);
    const bool renormalize = rule.renormalize;
    gpu::for_rows(ctx, scores.rows, 32, [=] __device__(Index n, gpu::Team team) {
        const std::int32_t* chosen = experts.row(n);
        T *gradient = dweights.row(n), *row = scores.row(n);
        T scale = plain, mean = T(0);
        if (renormalize) {
            const T sum = gpu::sum_of_chosen(row, chosen, count);
            for (Index j = 0; j < count; ++j) mean += gradient[j] * row[chosen[j]];
            mean /= sum;
            scale /= sum;
        }
        team.sync();
        for (Index j = team.rank; j < count; j += 32) {
            const T s = row[chosen[j]];
            gradient[j] = s * (T(1) - s) * scale * (gradient[j] - mean);
        }
        team.sync();
        for (Index e = team.rank; e < scores.cols; e += 32) row[e] = T(0);
        team.sync();
        for (Index j = team.rank; j < count; j += 32) row[chosen[j]] = gradient[j];
    });
}

}  // namespace kimik3
