#pragma once
// cuBLAS's products. It reads matrices by columns, so c^T = b^T a^T is what it is asked for. Products of bf16 go to
// tensor cores and are summed in float; a weight gradient stays float. Products of one a whose weights lie one below the
// other and whose results lie side by side are made as one.

#include "kimik3/ops/cuda/launch.cuh"
#include "kimik3/ops/matmul.hpp"

namespace kimik3 {
namespace gpu {

template <class T>
inline constexpr cudaDataType_t cuda_type = std::is_same_v<T, bf16> ? CUDA_R_16BF
                                            : std::is_same_v<T, double> ? CUDA_R_64F
                                                                        : CUDA_R_32F;
template <class T>
inline constexpr cublasComputeType_t compute_type =
    std::is_same_v<T, double> ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F;

/// The largest power of two up to 256 that divides an address.
inline Index alignment_of(const void* address) {
    const auto bits = reinterpret_cast<std::uintptr_t>(address) | 256;
    return static_cast<Index>(bits & (~bits + 1));
}

/// c = kept base + a product of many rows of bf16 by a kernel of the context's choice; false where there is none.
inline bool planned_product(const Context<Cuda>& ctx, cublasOperation_t op_b, Index inner, In<bf16> a, In<bf16> b,
                            float kept, In<bf16> base, MatrixView<bf16> c) {
    constexpr Index many = 2048;
    const Index alignment = (std::min)({alignment_of(a.data), alignment_of(b.data), alignment_of(base.data),
                                        alignment_of(c.data)});
    if (c.rows < many || alignment < 16 || inner == 0 || c.cols == 0 || base.stride != c.stride) return false;
    return ctx.product({op_b == CUBLAS_OP_T, c.cols, c.rows, inner, b.stride, a.stride, c.stride, alignment}, b.data,
                       a.data, kept, base.data, c.data);
}

/// c [M, N] = op(a) op(b), where op is as cuBLAS says it, of the stored matrices.
template <class T, class C>
void cublas_product(const Context<Cuda>& ctx, cublasOperation_t op_a, cublasOperation_t op_b, Index inner, In<T> a,
                    In<T> b, Out<C> c, Add add) {
    if (c.size() == 0) return;
    if (inner == 0) {
        if (add == Add::no) clear(ctx, c);
        return;
    }
    const accumulator_t<T> kept = add == Add::yes ? 1 : 0;
    if constexpr (std::is_same_v<C, bf16>) {
        if (op_a == CUBLAS_OP_N && planned_product(ctx, op_b, inner, a, b, kept, c, c)) return;
    }
    const accumulator_t<T> one = 1;
    KIMIK3_CUDA(cublasGemmEx_64(ctx.cublas(), op_b, op_a, c.cols, c.rows, inner, &one, b.data, cuda_type<T>, b.stride,
                                a.data, cuda_type<T>, a.stride, &kept, c.data, cuda_type<C>, c.stride, compute_type<T>,
                                CUBLAS_GEMM_DEFAULT));
}

template <class T, class C>
void product_tn(const Context<Cuda>& ctx, In<T> a, In<T> b, Out<C> c, Add add) {
    require_shape("matmul_tn: c", c, a.cols, b.cols);
    require_shape("matmul_tn: b", b, a.rows, b.cols);
    cublas_product<T>(ctx, CUBLAS_OP_T, CUBLAS_OP_N, a.rows, a, b, c, add);
}

}  // namespace gpu

template <class T>
void matmul_nt(const Context<Cuda>& ctx, In<T> a, In<T> b, Out<T> c, Add add) {
    require_shape("matmul_nt: c", c, a.rows, b.rows);
    require_shape("matmul_nt: b", b, b.rows, a.cols);
    gpu::cublas_product<T>(ctx, CUBLAS_OP_N, CUBLAS_OP_T, a.cols, a, b, c, add);
}

template <class T>
void matmul_nt_onto(const Context<Cuda>& ctx, In<T> a, In<T> b, In<T> base, Out<T> c) {
    require_shape("matmul_nt_onto: base", base, c.rows, c.cols);
    require_shape("matmul_nt_onto: c", c, a.rows, b.rows);
    require_shape("matmul_nt_onto: b", b, b.rows, a.cols);
    if constexpr (std::is_same_v<T, bf16>) {
        if (gpu::planned_product(ctx, CUBLAS_OP_T, a.cols, a, b, 1.0f, base, c)) return;
    }
    copy(ctx, base, c);
    matmul_nt(ctx, a, b, c, Add::yes);
}

template <class T>
void matmul_nt_all(const Context<Cuda>& ctx, In<T> a, std::span<const RowProduct<T>> products) {
    RowProduct<T> joined{};
    const auto make = [&] {
        if (joined.b.rows > 0) matmul_nt(ctx, a, joined.b, joined.c, Add::no);
    };
    for (const RowProduct<T>& p : products) {
        if (p.b.rows == 0) continue;
        if (follows_below(joined.b, p.b) && follows_beside(joined.c, p.c)) {
            joined.b.rows += p.b.rows, joined.c.cols += p.c.cols;
            continue;
        }
        make();
        joined = p;
    }
    make();
}

template <class T>
void matmul_nn(const Context<Cuda>& ctx, In<T> a, In<T> b, Out<T> c, Add add) {
    require_shape("matmul_nn: c", c, a.rows, b.cols);
    require_shape("matmul_nn: b", b, a.cols, b.cols);
    gpu::cublas_product<T>(ctx, CUBLAS_OP_N, CUBLAS_OP_N, a.cols, a, b, c, add);
}

template <class T>
void matmul_tn(const Context<Cuda>& ctx, In<T> a, In<T> b, Out<T> c, Add add) {
    gpu::product_tn<T>(ctx, a, b, c, add);
}
inline void matmul_tn(const Context<Cuda>& ctx, MatrixView<const bf16> a, MatrixView<const bf16> b,
                      MatrixView<float> c, Add add) {
    gpu::product_tn<bf16>(ctx, a, b, c, add);
}

}  // namespace kimik3
