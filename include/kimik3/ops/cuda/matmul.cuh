#pragma once
// cuBLAS's products. It reads matrices by columns, so c^T = b^T a^T is what it is asked for.

#include "kimik3/ops/cuda/launch.cuh"
#include "kimik3/ops/matmul.hpp"

namespace kimik3 {
namespace gpu {

/// c [M, N] = op(a) op(b), where op is as cuBLAS says it, of the stored matrices.
template <class T>
void cublas_product(const Context<Cuda>& ctx, cublasOperation_t op_a, cublasOperation_t op_b, Index inner, In<T> a,
                    In<T> b, Out<T> c, Add add) {
    if (c.size() == 0) return;
    if (inner == 0) {
        if (add == Add::no) clear(ctx, c);
        return;
    }
    const T one = T(1), kept = add == Add::yes ? T(1) : T(0);
    const auto product = [&](auto gemm) {
        KIMIK3_CUDA(gemm(ctx.cublas(), op_b, op_a, c.cols, c.rows, inner, &one, b.data, b.stride, a.data, a.stride,
                         &kept, c.data, c.stride));
    };
    if constexpr (std::is_same_v<T, double>)
        product(cublasDgemm_64);
    else
        product(cublasSgemm_64);
}

}  // namespace gpu

template <class T>
void matmul_nt(const Context<Cuda>& ctx, In<T> a, In<T> b, Out<T> c, Add add) {
    require_shape("matmul_nt: c", c, a.rows, b.rows);
    require_shape("matmul_nt: b", b, b.rows, a.cols);
    gpu::cublas_product<T>(ctx, CUBLAS_OP_N, CUBLAS_OP_T, a.cols, a, b, c, add);
}

template <class T>
void matmul_nt_all(const Context<Cuda>& ctx, In<T> a, std::span<const RowProduct<T>> products) {
    for (const RowProduct<T>& p : products)
        if (p.b.rows > 0) matmul_nt(ctx, a, p.b, p.c, Add::no);
}

template <class T>
void matmul_nn(const Context<Cuda>& ctx, In<T> a, In<T> b, Out<T> c, Add add) {
    require_shape("matmul_nn: c", c, a.rows, b.cols);
    require_shape("matmul_nn: b", b, a.cols, b.cols);
    gpu::cublas_product<T>(ctx, CUBLAS_OP_N, CUBLAS_OP_N, a.cols, a, b, c, add);
}

template <class T>
void matmul_tn(const Context<Cuda>& ctx, In<T> a, In<T> b, Out<T> c, Add add) {
    require_shape("matmul_tn: c", c, a.cols, b.cols);
    require_shape("matmul_tn: b", b, a.rows, b.cols);
    gpu::cublas_product<T>(ctx, CUBLAS_OP_T, CUBLAS_OP_N, a.rows, a, b, c, add);
}

}  // namespace kimik3
