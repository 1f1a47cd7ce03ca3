#pragma once
// The router on the CPU: threads own tokens.

#include <algorithm>
#include <limits>

#include "kimik3/ops/cpu/matmul.hpp"
#include "kimik3/ops/formulas.hpp"
#include "kimik3/ops/router.hpp"

namespace kimik3 {
namespace detail {

inline constexpr double router_epsilon = 1e-20;

/// Fills chosen (count of them) with the experts of the largest score + bias in falling order, and returns the largest
/// that was left out; NaN if any is NaN.
template <class T>
T choose_experts(const T* score, InVector<T> bias, std::int32_t* chosen, Index count) {
    const auto biased = [&](Index e) { return score[e] + bias[e]; };
    T left_out = -std::numeric_limits<T>::infinity(), least = left_out;
    bool broken = false;
    for (Index e = 0; e < bias.size; ++e) {
        const T value = biased(e);
        broken |= value != value;
        Index place = (std::min)(e, count);
        if (place == count) {
            if (!(value > least)) {
                left_out = (std::max)(left_out, value);
                continue;
            }
            left_out = least;
            --place;
        }
        for (; place > 0 && biased(chosen[place - 1]) < value; --place) chosen[place] = chosen[place - 1];
        chosen[place] = static_cast<std::int32_t>(e);
        if (e + 1 >= count) least = biased(chosen[count - 1]);
    }
    return broken ? std::numeric_limits<T>::quiet_NaN() : left_out;
}

template <class T>
T sum_of_chosen(const T* score, const std::int32_t* chosen, Index count) {
    T sum = T(0);
    for (Index j = 0; j < count; ++j) sum += score[chosen[j]];
    return sum + static_cast<T>(router_epsilon);
}

}  // namespace detail

template <class T>
void router_forward(const Context<Cpu>& ctx, In<T> x, In<T> w, InVector<T> bias, RouterRule rule, Out<T> scores,
                    Out<std::int32_t> experts, Out<T> weights, OutVector<T> cutoff) {
    const Index count = experts.cols;
    require(count >= 1 && count < w.rows, "a token goes to at least one expert and not to all, got {} of {}", count,
            w.rows);
    require_size("router: bias", bias, w.rows);
    require_shape("router: experts", experts, x.rows, count);
    require_shape("router: weights", weights, x.rows, count);
    require_size("router: cutoff", cutoff, x.rows);
    matmul_nt(ctx, x, w, scores, Add::no);
    ctx.parallel(x.rows, 16, [&](Index first, Index last) {
        for (Index n = first; n < last; ++n) {
            T* score = scores.row(n);
            // (MOE-1)
            detail::for_lanes<T>(scores.cols, [&](auto at) { at.store(score, sigmoid(at.load(score))); });
            std::int32_t* chosen = experts.row(n);
            // (MOE-2)
            cutoff[n] = detail::choose_experts<T>(score, bias, chosen, count);
            const T factor = cutoff[n] == cutoff[n] ? static_cast<T>(rule.factor) : cutoff[n];
            // (MOE-3)
            const T scale = rule.renormalize ? factor / detail::sum_of_chosen(score, chosen, count) : factor;
            for (Index j = 0; j < count; ++j) weights(n, j) = score[chosen[j]] * scale;
        }
    });
}

template <class T>
void router_backward(const Context<Cpu>& ctx, In<T> x, In<T> w, RouterRule rule, In<std::int32_t> experts,
                     Out<T> dweights, Out<T> scores, Out<T> dx, Out<T> dw) {
    const Index count = experts.cols;
    require_shape("router: experts", experts, scores.rows, count);
    require_shape("router: dweights", dweights, scores.rows, count);
    ctx.parallel(scores.rows, 16, [&](Index first, Index last) {
        for (Index n = first; n < last; ++n) {
            const std::int32_t* chosen = experts.row(n);
            T *gradient = dweights.row(n), *row = scores.row(n);
            T scale = static_cast<T>(rule.factor), mean = T(0);
            if (rule.renormalize) {
                const T sum = detail::sum_of_chosen(row, chosen, count);
                for (Index j = 0; j < count; ++j) mean += gradient[j] * row[chosen[j]];
                mean /= sum;
                scale /= sum;
            }
            for (Index j = 0; j < count; ++j) {
                const T s = row[chosen[j]];
                // (MOE-7)
                gradient[j] = s * (T(1) - s) * scale * (gradient[j] - mean);
            }
            std::fill(row, row + scores.cols, T(0));
            for (Index j = 0; j < count; ++j) row[chosen[j]] = gradient[j];
        }
    });
    matmul_nn(ctx, scores, w, dx, Add::yes);
    matmul_tn(ctx, scores, x, dw, Add::yes);
}

}  // namespace kimik3
