#pragma once
// Products of small matrices on one thread, without packing: a block of c stays in registers while the inner dimension
// runs. Rows of c are multiples of 8 and columns of whole lanes (operands are padded with zeros to that).
// Every element is summed over the inner dimension in order, so more rows, more columns or zeros behind change no bit.
// Measured on a Zen 4 core at 32x64x64 to 64x128x128 (benchmarks/ops/kda.cpp).

#include "kimik3/ops/cpu/lanes.hpp"
#include "kimik3/tensor/view.hpp"

namespace kimik3::detail {

enum class Store { set, add, subtract };

/// A block of c of rows x lanes; a(i, k) stands at a[i * a_row + k * a_inner].
template <class T, int rows, int lanes>
inline void product_block(Index inner, const T* a, Index a_row, Index a_inner, const T* b, Index b_row, T* c, Index c_row, Store store) {
    constexpr Index width = lane_width<T>;
    Lane<T> sum[to_size(rows)][to_size(lanes)];
    for (int i = 0; i < rows; ++i)
        for (int l = 0; l < lanes; ++l) sum[i][l].setZero();
    for (Index k = 0; k < inner; ++k) {
        Lane<T> from[to_size(lanes)];
        for (int l = 0; l < lanes; ++l) from[l] = WholeLane{l * width}.load(b + k * b_row);
        for (int i = 0; i < rows; ++i) {
            const T factor = a[i * a_row + k * a_inner];
            for (int l = 0; l < lanes; ++l) sum[i][l] += factor * from[l];
        }
    }
    for (int i = 0; i < rows; ++i) {
        for (int l = 0; l < lanes; ++l) {
            T* to = c + i * c_row + l * width;
            const Lane<T> old = store == Store::set ? lane(T(0)) : WholeLane{0}.load(to);
            WholeLane{0}.store(to, store == Store::subtract ? Lane<T>(old - sum[i][l]) : Lane<T>(old + sum[i][l]));
        }
    }
}

template <class T>
void block_product(MatrixView<T> c, Index inner, const T* a, Index a_row, Index a_inner, const T* b, Index b_row, Store store) {
#ifdef EIGEN_VECTORIZE_AVX512
    constexpr int lanes = 4;  // 32 registers
#else
    constexpr int lanes = 1;
#endif
    constexpr Index width = lane_width<T>;
    Index n = 0;
    for (; n + lanes * width <= c.cols; n += lanes * width)
        for (Index m = 0; m < c.rows; m += 4)
            product_block<T, 4, lanes>(inner, a + m * a_row, a_row, a_inner, b + n, b_row, c.row(m) + n, c.stride, store);
    for (; n < c.cols; n += width)
        for (Index m = 0; m < c.rows; m += 8)
            product_block<T, 8, 1>(inner, a + m * a_row, a_row, a_inner, b + n, b_row, c.row(m) + n, c.stride, store);
}

/// c [M, N] = a [M, K] b [K, N], or added to or subtracted from c.
template <class T>
void block_nn(In<T> a, In<T> b, Out<T> c, Store store) {
    block_product<T>(c, a.cols, a.data, a.stride, 1, b.data, b.stride, store);
}

/// c [M, N] = a [K, M]^T b [K, N], or added to or subtracted from c.
template <class T>
void block_tn(In<T> a, In<T> b, Out<T> c, Store store) {
    block_product<T>(c, a.rows, a.data, 1, a.stride, b.data, b.stride, store);
}

/// to [cols, rows] = from [rows, cols]^T.
template <class T>
void transpose(In<T> from, Out<T> to) {
    constexpr Index width = lane_width<T>;
    for (Index c = 0; c < from.cols; c += width)
        for (Index r = 0; r < from.rows; r += width)
            for (Index i = c; i < (std::min)(from.cols, c + width); ++i)
                for (Index j = r; j < (std::min)(from.rows, r + width); ++j) to(i, j) = from(j, i);
}

}  // namespace kimik3::detail
