#pragma once
// Matrix products, the only place where they are made. The letters say how the stored matrices enter: n as stored,
// t transposed. With add the product is added to c, otherwise c is overwritten.
//   matmul_nt  c [M, N] = a [M, K] b[N, K]^T   a linear layer y = x W^T, weights [out, in]
//   matmul_nn  c [M, N] = a [M, K] b[K, N]     its input gradient dx = dy W
//   matmul_tn  c [M, N] = a[K, M]^T b[K, N]    its weight gradient dW += dy^T x
// Inner dimensions of zero give zero. Sums are kept in accumulator_t<T>.

#include "kimik3/backend/backend.hpp"
#include "kimik3/tensor/view.hpp"

namespace kimik3 {

enum class Add : bool { no, yes };

template <class Backend>
void matmul_nt(const Context<Backend>&, ...) {
    static_assert(missing_overload<Backend>,
                  "kimik3: matmul_nt(ctx, a, b, c, add) has no overload for these arguments");
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
