#pragma once
// Newton-Schulz on the GPU: cuBLAS's products, of any number of matrices of one shape at once; the norm in two stages
// of fixed shape. Muon takes float weights' updates through it in bf16 where the model computes in bf16.

#include "kimik3/ops/cuda/matmul.cuh"
#include "kimik3/ops/newton_schulz.hpp"

namespace kimik3 {
namespace gpu {

/// Elements of matrices that one team takes at a time.
inline constexpr Index part_size = 8192;
inline Index parts_of(Index size) { return ceil_div(size, part_size); }

/// body(b, i) for the elements i < size of count matrices.
template <class Body>
void for_elements(const Context<Cuda>& ctx, Index count, Index size, Body body,
                  std::source_location at = std::source_location::current()) {
    const Index parts = parts_of(size);
    for_rows(ctx, count * parts, part_size, [=] __device__(Index row, Team team) {
        const Index b = row / parts, begin = row % parts * part_size,
                    end = size < begin + part_size ? size : begin + part_size;
        for (Index i = begin + team.rank; i < end; i += team.size) body(b, i);
    }, at);
}

/// square = 3.4445 I - 4.7750 gram + 2.0315 square, of count matrices [side, side] that begin apart elements apart.
template <class T>
void combine(const Context<Cuda>& ctx, Index count, Index side, Index apart, const T* gram, T* square) {
    using A = accumulator_t<T>;
    for_elements(ctx, count, side * side, [=] __device__(Index b, Index i) {
        T& to = square[b * apart + i];
        const A whole = static_cast<std::uint32_t>(i) % static_cast<std::uint32_t>(side + 1) == 0 ? A(3.4445) : A(0);
        to = static_cast<T>(whole + A(gram[b * apart + i]) * A(-4.7750) + A(to) * A(2.0315));
    });
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
        require(side < 65536, "newton_schulz: the smaller side is below 65536, got {}", side);
        const bool wide = rows <= cols;
        const auto product = [&](cublasOperation_t op_a, cublasOperation_t op_b, Index inner, const T* a, Index a_cols,
                                 const T* b, Index b_cols, T* c, Index c_rows, Index c_cols) {
            const A one = 1, kept = 0;
            KIMIK3_CUDA(cublasGemmStridedBatchedEx_64(
                ctx.cublas(), op_b, op_a, c_cols, c_rows, inner, &one, b, cuda_type<T>, b_cols, b == now ? x : g, a,
                cuda_type<T>, a_cols, a == now ? x : g, &kept, c, cuda_type<T>, c_cols, c == next ? x : g, count,
                compute_type<T>, CUBLAS_GEMM_DEFAULT));
        };
        for (Index step = 0; step < steps; ++step) {
            if (wide) product(CUBLAS_OP_N, CUBLAS_OP_T, cols, now, cols, now, cols, gram, side, side);
            else product(CUBLAS_OP_T, CUBLAS_OP_N, rows, now, cols, now, cols, gram, side, side);
            product(CUBLAS_OP_N, CUBLAS_OP_N, side, gram, side, gram, side, square, side, side);
            combine(ctx, count, side, g, gram, square);
            if (wide) product(CUBLAS_OP_N, CUBLAS_OP_N, side, square, side, now, cols, next, rows, cols);
            else product(CUBLAS_OP_N, CUBLAS_OP_N, side, now, cols, square, side, next, rows, cols);
            std::swap(now, next);
        }
    }
};

/// unit[b] = 1 / (norm + 1e-7) of count matrices, whose elements at(b, i), i < size, are. partial has
/// count parts_of(size) elements.
template <class A, class At>
void inverse_norms(const Context<Cuda>& ctx, Index count, Index size, At at, A* partial, A* unit) {
    const Index parts = parts_of(size);
    for_rows(ctx, count * parts, part_size, [=] __device__(Index row, Team team) {
        const Index b = row / parts, begin = row % parts * part_size,
                    end = size < begin + part_size ? size : begin + part_size;
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

    T* numbers = ctx.workspace<T>(Scratch::sums, gpu::parts_of(count) + 1);
    T *unit = numbers, *first = batch.now;
    gpu::inverse_norms<T>(ctx, 1, count, [=] __device__(Index, Index i) { return x.data[i]; }, numbers + 1, unit);
    gpu::for_each(ctx, count, [=] __device__(Index i) { first[i] = x.data[i] * *unit; });
    batch.iterate(ctx, steps);
}

}  // namespace kimik3
