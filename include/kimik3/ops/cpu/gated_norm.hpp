#pragma once
// The gated head norm on the CPU: threads own rows, and columns for dw, which is summed before the gate is overwritten.

#include <cmath>

#include "kimik3/backend/cpu.hpp"
#include "kimik3/ops/cpu/lanes.hpp"
#include "kimik3/ops/formulas.hpp"
#include "kimik3/ops/gated_norm.hpp"

namespace kimik3 {
namespace detail {

/// sigmoid of a lane of the gate, or 1 where there is no gate.
template <class T, class At>
Lane<T> gate_lane(const T* gate, At at) {
    return gate == nullptr ? lane(T(1)) : sigmoid(at.load(gate));
}

/// One head of one token: dx and, with a gate, dgate. (KDA-23)
template <class T>
void gated_norm_head_backward(Index width, const T* dy, const T* x, const T* gate, const T* w, T scale, T* dx,
                              T* dgate) {
    const T mean = scale * scale / static_cast<T>(width) * sum_lanes<T>(width, [&](auto at) -> Lane<T> {
                       return at.load(dy) * gate_lane(gate, at) * at.load(w) * at.load(x);
                   });
    for_lanes<T>(width, [&](auto at) {
        const Lane<T> s = gate_lane(gate, at), from = at.load(x), gradient = at.load(dy) * at.load(w) * s;
        at.store(dx, Lane<T>(scale * (gradient - from * mean)));
        if (gate != nullptr) at.store(dgate, Lane<T>(gradient * from * scale * (T(1) - s)));
    });
}

}  // namespace detail

template <class T>
void gated_norm_forward(const Context<Cpu>& ctx, Index heads, In<T> x, In<T> gate, InVector<accumulator_t<T>> w,
                        double eps, Out<T> y, std::type_identity_t<MatrixView<accumulator_t<T>>> r) {
    const Index width = detail::check_gated_norm<T>(heads, y.rows, y.cols, x, gate, w, r);
    ctx.parallel(y.rows, 16, [&](Index first, Index last) {
        for (Index n = first; n < last; ++n) {
            for (Index h = 0; h < heads; ++h) {
                const T* from = x.row(n) + h * width;
                const T* open = gate.cols != 0 ? gate.row(n) + h * width : nullptr;
                T* to = y.row(n) + h * width;
                // (KDA-22)
                const T scale =
                    T(1) / std::sqrt(detail::dot(from, from, width) / static_cast<T>(width) + static_cast<T>(eps));
                detail::for_lanes<T>(width, [&](auto at) {
                    at.store(to,
                             detail::Lane<T>(at.load(from) * scale * at.load(w.data) * detail::gate_lane(open, at)));
                });
                r(n, h) = scale;
            }
        }
    });
}

template <class T>
void gated_norm_backward(const Context<Cpu>& ctx, Index heads, In<T> dy, In<T> x, In<T> gate,
                         InVector<accumulator_t<T>> w, In<accumulator_t<T>> r, Out<T> dx,
                         std::type_identity_t<Out<T>> dgate, std::type_identity_t<OutVector<accumulator_t<T>>> dw) {
    using detail::Lane;
    const Index width = detail::check_gated_norm<T>(heads, dx.rows, dx.cols, x, gate, w, r);
    const bool gated = gate.cols != 0;
    require_shape("gated_norm: dy", dy, dx.rows, dx.cols);
    require_size("gated_norm: dw", dw, width);
    if (gated) require_shape("gated_norm: dgate", dgate, dx.rows, dx.cols);
    detail::add_row_sums(ctx, dx.rows * heads, width, dw.data, [&](Index row, auto at) -> Lane<T> {
        const Index n = row / heads, h = row % heads;
        const T* open = gated ? gate.row(n) + h * width : nullptr;
        return at.load(dy.row(n) + h * width) * detail::gate_lane(open, at) * at.load(x.row(n) + h * width) * r(n, h);
    });
    ctx.parallel(dx.rows, 16, [&](Index first, Index last) {
        for (Index n = first; n < last; ++n) {
            for (Index h = 0; h < heads; ++h) {
                const Index begin = h * width;
                detail::gated_norm_head_backward<T>(width, dy.row(n) + begin, x.row(n) + begin,
                                                    gated ? gate.row(n) + begin : nullptr, w.data, r(n, h),
                                                    dx.row(n) + begin, gated ? dgate.row(n) + begin : nullptr);
            }
        }
    });
}

}  // namespace kimik3
