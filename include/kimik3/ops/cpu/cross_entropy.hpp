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

/// log(sum exp(x)), safe for any finite x and for -inf beside them.
template <class T>
inline T log_sum_exp(const T* x, Index count) {
    constexpr T lowest = -std::numeric_limits<T>::infinity();
    Lane<T> top = lane(lowest), total = lane(T(0));
    for_lanes<T>(count, [&](auto at) { top = top.max(at.load(x, lowest)); });
    const T highest = top.maxCoeff();
    for_lanes<T>(count, [&](auto at) { total += (at.load(x, lowest) - highest).exp(); });
    return highest + std::log(total.sum());
}

}  // namespace detail

template <class T>
void cross_entropy(const Context<Cpu>& ctx, In<T> logits, std::span<const std::int32_t> targets, OutVector<T> loss) {
    require(static_cast<Index>(targets.size()) == logits.rows, "{} rows of logits need as many targets, got {}", logits.rows,
            targets.size());
    require_size("cross_entropy: loss", loss, logits.rows);
    check_targets(targets, logits.cols);
    ctx.parallel(logits.rows, 1, [&](Index first, Index last) {
        for (Index n = first; n < last; ++n) {
            const std::int32_t target = targets[to_size(n)];
            loss[n] = target == ignored_target ? T(0) : detail::log_sum_exp(logits.row(n), logits.cols) - logits(n, target);
        }
    });
}

template <class T>
void cross_entropy_backward(const Context<Cpu>& ctx, Out<T> logits, std::span<const std::int32_t> targets, double scale,
                            InVector<accumulator_t<T>> loss) {
    using detail::Lane;
    require(static_cast<Index>(targets.size()) == logits.rows, "{} rows of logits need as many targets, got {}", logits.rows,
            targets.size());
    require_size("cross_entropy: loss", loss, logits.rows);
    check_targets(targets, logits.cols);
    const T factor = static_cast<T>(scale);
    ctx.parallel(logits.rows, 1, [&](Index first, Index last) {
        for (Index n = first; n < last; ++n) {
            T* row = logits.row(n);
            const std::int32_t target = targets[to_size(n)];
            if (target == ignored_target) {
                std::fill_n(row, logits.cols, T(0));
                continue;
            }
            const T log_total = loss[n] + row[target];
            detail::for_lanes<T>(logits.cols, [&](auto at) {
                at.store(row, Lane<T>((at.load(row) - log_total).exp() * factor));
            });
            row[target] -= factor;
        }
    });
}

}  // namespace kimik3
