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

}  // namespace kimik3
