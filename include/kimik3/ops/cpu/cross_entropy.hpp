#pragma once
// Cross-entropy on the CPU: threads own rows; a row stays in cache between its two passes.

#include <cmath>
#include <limits>

#include "kimik3/backend/cpu.hpp"
#include "kimik3/core/dtype.hpp"
#include "kimik3/ops/cpu/lanes.hpp"
#include "kimik3/ops/cross_entropy.hpp"

namespace kimik3 {
namespace detail {

/// The largest of count > 0 numbers.
template <class T>
inline T largest(const T* x, Index count) {
    constexpr T lowest = -std::numeric_limits<T>::infinity();
    Lane<T> top = lane(lowest);
    for_lanes<T>(count, [&](auto at) { top = larger(top, at.load(x, lowest)); });
    return top.largest();
}

template <class T>
void check_cross_entropy(In<T> logits, std::span<const std::int32_t> targets, InVector<T> loss) {
    require(static_cast<Index>(targets.size()) == logits.rows, "{} rows of logits need as many targets, got {}",
            logits.rows, targets.size());
    require_size("cross_entropy: loss", loss, logits.rows);
    check_targets(targets, logits.cols);
}

}  // namespace detail

template <class T>
void cross_entropy(const Context<Cpu>& ctx, In<T> logits, std::span<const std::int32_t> targets, OutVector<T> loss) {
    using detail::Lane;
    detail::check_cross_entropy<T>(logits, targets, loss);
    ctx.parallel(logits.rows, 1, [&](Index first, Index last) {
        for (Index n = first; n < last; ++n) {
            const T* row = logits.row(n);
            loss[n] = 0;
            if (targets[to_size(n)] == ignored_target) continue;
            const T highest = detail::largest(row, logits.cols);
            const T total = detail::sum_lanes<T>(logits.cols, [&](auto at) -> Lane<T> {
                return exp(at.load(row, -std::numeric_limits<T>::infinity()) - highest);
            });
            // (TRAIN-2)
            loss[n] = std::log(total) + (highest - row[targets[to_size(n)]]);
        }
    });
}

template <class T>
void cross_entropy_backward(const Context<Cpu>& ctx, Out<T> logits, std::span<const std::int32_t> targets, double scale,
                            OutVector<accumulator_t<T>> loss) {
    using detail::Lane;
    detail::check_cross_entropy<T>(logits, targets, loss);
    ctx.parallel(logits.rows, 1, [&](Index first, Index last) {
        for (Index n = first; n < last; ++n) {
            T* row = logits.row(n);
            const std::int32_t target = targets[to_size(n)];
            loss[n] = 0;
            if (target == ignored_target) {
                std::fill_n(row, logits.cols, T(0));
                continue;
            }
            const T highest = detail::largest<T>(row, logits.cols), below = highest - row[target];
            const T total = detail::sum_lanes<T>(logits.cols, [&](auto at) {
                const Lane<T> share = exp(at.load(row, -std::numeric_limits<T>::infinity()) - highest);
                at.store(row, share);
                return share;
            });
            const T factor = static_cast<T>(scale) / total;
            detail::for_lanes<T>(logits.cols, [&](auto at) { at.store(row, Lane<T>(at.load(row) * factor)); });
            row[target] -= static_cast<T>(scale);
            loss[n] = std::log(total) + below;
        }
    });
}

}  // namespace kimik3
