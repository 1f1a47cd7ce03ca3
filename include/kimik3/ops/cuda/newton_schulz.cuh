#pragma once
// Newton-Schulz on the GPU: cuBLAS's products, of any number of matrices of one shape at once; the norm in two stages of
// fixed shape. Muon takes float weights' updates through it in bf16 where the model computes in bf16.

#include "kimik3/ops/cuda/matmul.cuh"
#include "kimik3/ops/cuda/packs.cuh"
#include "kimik3/ops/newton_schulz.hpp"

namespace kimik3 {
namespace gpu {

/// y = p x + q y, where y is not read when q is 0.
template <class T>
void scaled_sum(const Context<Cuda>& ctx, Index count, accumulator_t<T> p, const T* x, accumulator_t<T> q, T* y) {
    using A = accumulator_t<T>;
    using P = Pack<T>;
    const auto sum = [=] __device__(const T& a, T& b) {
        b = static_cast<T>(q == A(0) ? p * A(a) : p * A(a) + q * A(b));
    };
    const Index packs = holds_packs(x) && holds_packs(y) ? count / P::size : 0, done = packs * P::size;
    for_each(ctx, packs, [=] __device__(Index i) {
        const P a = load_pack<P>(x, i);
        P b = load_pack<P>(y, i);
        for (int j = 0; j < P::size; ++j) sum(a.at[j], b.at[j]);
        store_pack(y, i, b);
    });
    for_each(ctx, count - done, [=] __device__(Index i) { sum(x[done + i], y[done + i]); });
}

/// Matrices of one shape, one after another; next, gram and square are scratch memory.
template <class T>
struct NewtonSchulzBatch {
    Index count, rows, cols;
    T *now, *next, *gram, *square;

    static Index side(Index rows, Index cols) { return (std::min)(rows, cols); }
    /// Elements from one matrix to the next, of x and of the square ones.
    static Index size(Index rows, Index cols) { return round_up(rows * cols, 16); }
    static Index elements(Index rows, Index cols) {
        return 2 * size(rows, cols) + 2 * size(side(rows, cols), side(rows, cols));
    }
    static NewtonSchulzBatch in(T* memory, Index count, Index rows, Index cols) {
        const Index each = count * size(rows, cols), square = count * size(side(rows, cols), side(rows, cols));
        return {count, rows, cols, memory, memory + each, memory + 2 * each, memory + 2 * each + square};
    }

    /// Moves now on by so many steps; now and next may have changed places.
    void iterate(const Context<Cuda>& ctx, Index steps) {
        using A = accumulator_t<T>;
        const Index side = NewtonSchulzBatch::side(rows, cols), x = size(rows, cols), g = size(side, side);
        const bool wide = rows <= cols;
        const auto product = [&](cublasOperation_t op_a, cublasOperation_t op_b, Index inner, const T* a, Index a_cols,
                                 const T* b, Index b_cols, T* c, Index c_rows, Index c_cols, Add add) {
            const A one = 1, kept = add == Add::yes ? 1 : 0;
            KIMIK3_CUDA(cublasGemmStridedBatchedEx_64(
                ctx.cublas(), op_b, op_a, c_cols, c_rows, inner, &one, b, cuda_type<T>, b_cols, b == now ? x : g, a,
                cuda_type<T>, a_cols, a == now ? x : g, &kept, c, cuda_type<T>, c_cols, c == next ? x : g, count,
                compute_type<T>, CUBLAS_GEMM_DEFAULT));
        };
        for (Index step = 0; step < steps; ++step) {
            if (wide) product(CUBLAS_OP_N, CUBLAS_OP_T, cols, now, cols, now, cols, gram, side, side, Add::no);
            else product(CUBLAS_OP_T, CUBLAS_OP_N, rows, now, cols, now, cols, gram, side, side, Add::no);
            product(CUBLAS_OP_N, CUBLAS_OP_N, side, gram, side, gram, side, square, side, side, Add::no);
            scaled_sum(ctx, count * g, A(-4.7750), gram, A(2.0315), square);
            scaled_sum(ctx, count * x, A(3.4445), now, A(0), next);
            if (wide) product(CUBLAS_OP_N, CUBLAS_OP_N, side, square, side, now, cols, next, rows, cols, Add::yes);
            else product(CUBLAS_OP_N, CUBLAS_OP_N, side, now, cols, square, side, next, rows, cols, Add::yes);
            std::swap(now, next);
        }
    }
};

/// unit[b] = 1 / (norm + 1e-7) of count matrices, whose elements at(b, i), i < size, are. partial has
/// count norm_parts(size) elements.
inline constexpr Index norm_part = 8192;
inline Index norm_parts(Index size) { return ceil_div(size, norm_part); }
template <class A, class At>
void inverse_norms(const Context<Cuda>& ctx, Index count, Index size, At at, A* partial, A* unit) {
    const Index parts = norm_parts(size);
    for_rows(ctx, count * parts, norm_part, [=] __device__(Index row, Team team) {
        const Index b = row / parts, begin = row % parts * norm_part,
                    end = size < begin + norm_part ? size : begin + norm_part;
        A sum = 0;
        for (Index i = begin + team.rank; i < end; i += team.size) {
            const A value = at(b, i);
            sum += value * value;
        }
        sum = team.sum(sum);
        if (team.rank == 0) partial[row] = sum;
    });
    for_each(ctx, count, [=] __device__(Index b) {
        A sum = 0;
        for (Index p = 0; p < parts; ++p) sum += partial[b * parts + p];
        unit[b] = A(1) / (sqrt(sum) + A(1e-7));
    });
}

}  // namespace gpu

template <class T>
void newton_schulz(const Context<Cuda>& ctx, Out<T> x, Index steps, OutVector<T> scratch) {
    require(x.stride == x.cols, "newton_schulz: x must be dense, got rows of {} elements {} apart", x.cols, x.stride);
    require_size("newton_schulz: scratch", scratch, newton_schulz_scratch(x.rows, x.cols));
    const Index side = (std::min)(x.rows, x.cols), count = x.size();
    T* gram = scratch.data + round_up(count, 16);
    gpu::NewtonSchulzBatch<T> batch{1, x.rows, x.cols, x.data, scratch.data, gram, gram + round_up(side * side, 16)};
    if (steps % 2 != 0) std::swap(batch.now, batch.next);  // so that the last step writes x

    T* numbers = ctx.workspace<T>(Scratch::sums, gpu::norm_parts(count) + 1);
    T *unit = numbers, *first = batch.now;
    gpu::inverse_norms<T>(ctx, 1, count, [=] __device__(Index, Index i) { return x.data[i]; }, numbers + 1, unit);
    gpu::for_each(ctx, count, [=] __device__(Index i) { first[i] = x.data[i] * *unit; });
    batch.iterate(ctx, steps);
}

}  // namespace kimik3
