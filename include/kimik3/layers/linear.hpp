#pragma once
// The linear layer, y = x W^T without bias, weights [out, in] (spec 0).

#include <initializer_list>

#include "kimik3/core/dtype.hpp"
#include "kimik3/ops/matmul.hpp"

namespace kimik3 {

/// y [N, out] = x [N, in] w[out, in]^T, added to y or in place of it.
template <class Backend, class T>
void linear_forward(const Context<Backend>& ctx, In<T> x, In<T> w, MatrixView<T> y, Add add = Add::no) {
    matmul_nt(ctx, x, w, y, add);
}

/// y = residual + x w^T, where residual may be y; one without rows stands for none.
template <class Backend, class T>
void linear_forward(const Context<Backend>& ctx, In<T> x, In<T> w, In<T> residual, MatrixView<T> y) {
    if (residual.rows == 0) matmul_nt(ctx, x, w, y, Add::no);
    else if (residual.data == y.data) matmul_nt(ctx, x, w, y, Add::yes);
    else matmul_nt_onto(ctx, x, w, residual, y);
}

/// Several layers that read the same x: {{w, y}, ...}. Layers without rows are left out.
template <class Backend, class T>
void linear_forward(const Context<Backend>& ctx, MatrixView<const T> x, std::initializer_list<RowProduct<T>> layers) {
    matmul_nt_all(ctx, x, std::span<const RowProduct<T>>(layers.begin(), layers.size()));
}

/// dx [N, in] = dy [N, out] w, added to dx or in place of it; dw [out, in] += dy^T x.
template <class Backend, class T>
void linear_backward(const Context<Backend>& ctx, In<T> dy, In<T> x, In<T> w, MatrixView<T> dx, Add add,
                     MatrixView<accumulator_t<T>> dw) {
    matmul_nn(ctx, dy, w, dx, add);
    matmul_tn(ctx, dy, x, dw, Add::yes);
}

/// One of several layers that read the same x, for backward.
template <class T>
struct LinearGradient {
    MatrixView<const T> dy, w;         // [N, out], [out, in]
    MatrixView<accumulator_t<T>> dw;  // [out, in]
};

/// The same of several layers that read the same x [N, in]: {{dy, w, dw}, ...}. Layers without rows are left out. Those
/// whose dy lie side by side, and w and dw one below the other, are taken as one.
template <class Backend, class T>
void linear_backward(const Context<Backend>& ctx, std::type_identity_t<std::initializer_list<LinearGradient<T>>> layers,
                     In<T> x, MatrixView<T> dx, Add add) {
    LinearGradient<T> joined{};
    const auto take = [&] {
        if (joined.w.rows == 0) return;
        linear_backward(ctx, joined.dy, x, joined.w, dx, add, joined.dw);
        add = Add::yes;
    };
    for (const LinearGradient<T>& layer : layers) {
        if (layer.w.rows == 0) continue;
        if (follows_beside(joined.dy, layer.dy) && follows_below(joined.w, layer.w) &&
            follows_below(joined.dw, layer.dw)) {
            joined.dy.cols += layer.dy.cols, joined.w.rows += layer.w.rows, joined.dw.rows += layer.dw.rows;
            continue;
        }
        take();
        joined = layer;
    }
    take();
}

}  // namespace kimik3
