#pragma once
// L2 normalisation on the CPU: threads own rows.

#include <cmath>

#include "kimik3/backend/cpu.hpp"
#include "kimik3/ops/cpu/lanes.hpp"
#include "kimik3/ops/l2_norm.hpp"

namespace kimik3 {
namespace detail {

/// r of one head of one token.
template <class T>
T l2_scale(const T* x, Index count) {
    // (KDA-3)
    return T(1) / std::sqrt(dot(x, x, count) + static_cast<T>(l2_norm_eps));
}

}  // namespace detail

template <class T>
void l2_norm_forward(const Context<Cpu>& ctx, Index heads, In<T> x, Out<T> y,
                     std::type_identity_t<MatrixView<accumulator_t<T>>> r) {
    detail::check_l2_norm(heads, y.cols);
    require_shape("l2_norm: x", x, y.rows, y.cols);
    require_shape("l2_norm: r", r, y.rows, heads);
    const Index width = y.cols / heads;
    ctx.parallel(y.rows, 16, [&](Index first, Index last) {
        for (Index n = first; n < last; ++n) {
            for (Index h = 0; h < heads; ++h) {
                const T* from = x.row(n) + h * width;
                T* to = y.row(n) + h * width;
                const T scale = r(n, h) = detail::l2_scale(from, width);
                detail::for_lanes<T>(width, [&](auto at) { at.store(to, detail::Lane<T>(at.load(from) * scale)); });
            }
        }
    });
}

template <class T>
void l2_norm_backward(const Context<Cpu>& ctx, Index heads, In<T> dy, In<T> y, In<accumulator_t<T>> r, Out<T> dx) {
    detail::check_l2_norm(heads, dx.cols);
    require_shape("l2_norm: dy", dy, dx.rows, dx.cols);
    require_shape("l2_norm: y", y, dx.rows, dx.cols);
    require_shape("l2_norm: r", r, dx.rows, heads);
    const Index width = dx.cols / heads;
    ctx.parallel(dx.rows, 16, [&](Index first, Index last) {
        for (Index n = first; n < last; ++n) {
            for (Index h = 0; h < heads; ++h) {
                const T *gradient = dy.row(n) + h * width, *unit = y.row(n) + h * width;
                T* to = dx.row(n) + h * width;
                // (KDA-4)
                const T along = detail::dot(gradient, unit, width), scale = r(n, h);
                detail::for_lanes<T>(width, [&](auto at) {
                    at.store(to, detail::Lane<T>((at.load(gradient) - at.load(unit) * along) * scale));
                });
            }
        }
    });
}

}  // namespace kimik3
