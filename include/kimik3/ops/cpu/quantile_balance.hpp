#pragma once
// Quantile balancing on the CPU: threads own experts.

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kimik3/backend/cpu.hpp"
#include "kimik3/ops/quantile_balance.hpp"

namespace kimik3 {
namespace detail {

/// Bin i holds [low + i width, low + (i + 1) width).
template <class T>
struct BalanceRange {
    T low, width;

    explicit BalanceRange(VectorView<const T> bias) {
        const auto [least, most] = std::minmax_element(bias.begin(), bias.end());
        low = *least - T(1);
        width = (*most - *least + T(2)) / static_cast<T>(Balance::bins);
    }

    Index bin(T value) const {
        // (QB-2)
        const T place = (value - low) / width;
        if (!(place > T(0))) return 0;
        return place < static_cast<T>(Balance::bins) ? static_cast<Index>(place) : Balance::bins - 1;
    }
};

/// The place, in bins from the lower end of the range, below which target of the counts lie. (QB-3)
inline double quantile_place(const std::int64_t* count, double target) {
    const auto enough = static_cast<std::int64_t>(std::ceil(target));
    std::int64_t before = 0;
    Index bin = 0;
    while (before + count[bin] < enough) before += count[bin++];
    const double inside = (target - static_cast<double>(before)) / static_cast<double>(count[bin]);
    return static_cast<double>(bin) + std::clamp(inside, 0.0, 1.0);
}

}  // namespace detail

template <class T>
void balance_count(const Context<Cpu>& ctx, MatrixView<T> scores, InVector<T> cutoff, In<std::int32_t> experts,
                   InVector<T> bias, InVector<std::uint8_t> counted, const Balance& balance) {
    detail::check_balance(balance, scores.rows, scores.cols, counted);
    const detail::BalanceRange<T> range(bias);
    const auto counts = [&](Index n) { return counted.size == 0 || counted[n] != 0; };
    ctx.parallel(scores.cols, 8, [&](Index first, Index last) {
        for (Index n = 0; n < scores.rows; ++n) {
            if (!counts(n)) continue;
            // (QB-1)
            for (Index e = first; e < last; ++e) ++balance.histogram(e, range.bin(cutoff[n] - scores(n, e)));
        }
    });
    for (Index n = 0; n < scores.rows; ++n) {
        if (!counts(n)) continue;
        for (Index j = 0; j < experts.cols; ++j) ++balance.load[experts(n, j)];
    }
}

inline void balance_clear(const Context<Cpu>&, const Balance& balance) {
    for (Index e = 0; e < balance.histogram.rows; ++e)
        std::fill_n(balance.histogram.row(e), Balance::bins, std::int64_t{0});
    std::fill(balance.load.begin(), balance.load.end(), std::int64_t{0});
}

template <class T>
void balance_update(const Context<Cpu>& ctx, const Balance& balance, Index chosen, VectorView<T> bias) {
    const Index experts = bias.size;
    detail::check_balance_update(balance, chosen, experts);
    const std::int64_t *row = balance.histogram.row(0),
                       tokens = std::accumulate(row, row + Balance::bins, std::int64_t{0});
    if (tokens == 0) return;
    const detail::BalanceRange<T> range(bias);
    require(std::isfinite(range.width), "balancing needs a finite bias of every expert, got a range of width {}",
            range.width);
    const double target = static_cast<double>(tokens * chosen) / static_cast<double>(experts);
    double mean = 0.0;
    for (Index e = 0; e < experts; ++e) {
        const double place = detail::quantile_place(balance.histogram.row(e), target);
        bias[e] = range.low + static_cast<T>(place) * range.width;
        mean += static_cast<double>(bias[e]) / static_cast<double>(experts);
    }
    // (QB-4)
    for (T& value : bias) value -= static_cast<T>(mean);
    balance_clear(ctx, balance);
}

}  // namespace kimik3
