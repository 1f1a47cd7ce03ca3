#pragma once
// Sums of squares on the CPU: threads take pieces.

#include "kimik3/backend/cpu.hpp"
#include "kimik3/ops/cpu/lanes.hpp"
#include "kimik3/ops/gradient_norm.hpp"

namespace kimik3 {
namespace detail {

template <class T>
double square_sum(const T* values, Index count) {
    constexpr int width = static_cast<int>(lane_width<T>);
    double total[to_size(lane_width<T>)] = {};
    for_lanes<T>(count, [&](auto at) {
        T value[to_size(lane_width<T>)];
        at.load(values).store(value);
        for (int j = 0; j < width; ++j) {
            const double wide = static_cast<double>(value[j]);
            total[j] += wide * wide;
        }
    });
    double sum = 0.0;
    for (const double part : total) sum += part;
    return sum;
}

}  // namespace detail

template <class T>
void gradient_square_sums(const Context<Cpu>& ctx, std::span<const ElementPiece> pieces, VectorView<const T> g,
                          OutVector<double> sums) {
    const Index count = static_cast<Index>(pieces.size());
    require_size("gradient_square_sums: sums", sums, count);
    ctx.parallel_tasks(count, [&](Index p, int) {
        const ElementPiece piece = pieces[to_size(p)];
        sums[p] = detail::square_sum(g.data + piece.offset, piece.count);
    });
}

}  // namespace kimik3
