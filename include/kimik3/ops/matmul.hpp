#pragma once
// Matrix products, the only place where they are made. The letters say how the stored matrices enter: n as stored,
// t transposed. With add the product is added to c, otherwise c is overwritten.
//   matmul_nt  c [M, N] = a [M, K] b[N, K]^T   a linear layer y = x W^T, weights [out, in]
//   matmul_nn  c [M, N] = a [M, K] b[K, N]     its input gradient dx = dy W
//   matmul_tn  c [M, N] = a[K, M]^T b[K, N]    its weight gradient dW += dy^T x
//   matmul_nt_onto c = base [M, N] + a b^T     base and c are other memory
//   matmul_nt_all  several c = a b^T of one a: few rows meet all weights in one loop. Products without rows of b are
//                  left out.
// Inner dimensions of zero give zero. Sums are kept in accumulator_t<T>.

#include <span>

#include "kimik3/backend/backend.hpp"
#include "kimik3/tensor/view.hpp"

namespace kimik3 {

enum class Add : bool { no, yes };

/// One of several products that read the same rows.
template <class T>
struct RowProduct {
    MatrixView<const T> b;  // [N, K]
    MatrixView<T> c;        // [M, N]
};

template <class Backend>
void matmul_nt(const Context<Backend>&, ...) {
    static_assert(missing_overload<Backend>,
                  "kimik3: matmul_nt(ctx, a, b, c, add) has no overload for these arguments");
}
template <class Backend>
void matmul_nt_onto(const Context<Backend>&, ...) {
    static_assert(missing_overload<Backend>,
                  "kimik3: matmul_nt_onto(ctx, a, b, base, c) has no overload for these arguments");
}
template <class Backend>
void matmul_nt_all(const Context<Backend>&, ...) {
    static_assert(missing_overload<Backend>,
                  "kimik3: matmul_nt_all(ctx, a, products) has no overload for these arguments");
}
template <class Backend>
void matmul_nn(const Context<Backend>&, ...) {
    static_assert(missing_overload<Backend>,
                  "kimik3: matmul_nn(ctx, a, b, c, add) has no overload for these arguments");
}
template <class Backend>
void matmul_tn(const Context<Backend>&, ...) {
    static_assert(missing_overload<Backend>,
                  "kimik3: matmul_tn(ctx, a, b, c, add) has no overload for these arguments");
}

}  // namespace kimik3
