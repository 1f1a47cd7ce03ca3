#pragma once
// RMSNorm on the CPU: threads own rows, and columns for dw.

#include <cmath>

#include "kimik3/backend/cpu.hpp"
#include "kimik3/ops/cpu/lanes.hpp"
#include "kimik3/ops/rms_norm.hpp"

namespace kimik3 {

template <class T>
void rms_norm_forward(const Context<Cpu>& ctx, In<T> x, InVector<T> w, double eps, Out<T> y,
                      OutVector<accumulator_t<T>> r) {
    require_shape("rms_norm: y", y, x.rows, x.cols);
    require_size("rms_norm: w", w, x.cols);
    require_size("rms_norm: r", r, x.rows);
    ctx.parallel(x.rows, 16, [&](Index first, Index last) {
        for (Index n = first; n < last; ++n) {
            const T* from = x.row(n);
            T* to = y.row(n);
            const T scale =
                T(1) / std::sqrt(detail::dot(from, from, x.cols) / static_cast<T>(x.cols) + static_cast<T>(eps));
            detail::for_lanes<T>(
                x.cols, [&](auto at) { at.store(to, detail::Lane<T>(at.load(from) * scale * at.load(w.data))); });
            r[n] = scale;
        }
    });
}

template <class T>
void rms_norm_backward(const Context<Cpu>& ctx, In<T> dy, In<T> x, InVector<T> w, InVector<accumulator_t<T>> r,
                       Out<T> dx, OutVector<T> dw) {
    using detail::Lane;
    require_shape("rms_norm: dy", dy, x.rows, x.cols);
    require_shape("rms_norm: dx", dx, x.rows, x.cols);
    detail::add_row_sums(ctx, x.rows, x.cols, dw.data, [&](Index n, auto at) -> Lane<T> {
        return at.load(dy.row(n)) * at.load(x.row(n)) * r[n];
    });
    ctx.parallel(x.rows, 16, [&](Index first, Index last) {
        for (Index n = first; n < last; ++n) {
            const T *gradient = dy.row(n), *from = x.row(n);
            const T scale = r[n];
            T* to = dx.row(n);
            const T mean = detail::sum_lanes<T>(x.cols, [&](auto at) -> Lane<T> {
                return at.load(gradient) * at.load(w.data) * at.load(from);
            }) / static_cast<T>(x.cols);
            const T pull = scale * scale * scale * mean;
            detail::for_lanes<T>(x.cols, [&](auto at) {
                at.store(to, Lane<T>(at.load(gradient) * at.load(w.data) * scale - at.load(from) * pull));
            });
        }
    });
}

}  // namespace kimik3
