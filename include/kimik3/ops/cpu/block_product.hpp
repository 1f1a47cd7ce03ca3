#pragma once
// Products of small matrices on one thread, without packing: a block of c stays in registers while the inner dimension
// runs. Rows of c are multiples of 8 and columns of whole lanes (operands are padded with zeros to that).
// Every element is summed over the inner dimension in order, so more rows, more columns or zeros behind change no bit.
// Faster than Eigen's packed product at the sizes of a KDA chunk, 32x64x64 to 64x128x128.

#include <algorithm>

#include "kimik3/ops/cpu/lanes.hpp"
#include "kimik3/tensor/view.hpp"

namespace kimik3::detail {

enum class Store { set, add, subtract };

/// Rows of c at a time: what the registers hold, and enough of them to hide the latency of the additions.
#ifdef EIGEN_VECTORIZE_AVX512
inline constexpr int product_rows = 8;
#else
inline constexpr int product_rows = 4;
#endif

/// A block of c, product_rows x a lane; a(i, k) stands at a[i * a_row + k * a_inner].
template <class T>
inline void product_block(Index inner, const T* a, Index a_row, Index a_inner, const T* b, Index b_row, T* c,
                          Index c_row, Store store) {
    Lane<T> sum[product_rows];
    for (Lane<T>& row : sum) row = lane(T(0));
    for (Index k = 0; k < inner; ++k) {
        const Lane<T> from = WholeLane{k * b_row}.load(b);
        for (int i = 0; i < product_rows; ++i) sum[i] += a[i * a_row + k * a_inner] * from;
    }
    for (int i = 0; i < product_rows; ++i) {
        const WholeLane at{i * c_row};
        const Lane<T> old = store == Store::set ? lane(T(0)) : at.load(c);
        at.store(c, store == Store::subtract ? Lane<T>(old - sum[i]) : Lane<T>(old + sum[i]));
    }
}

template <class T>
void block_product(MatrixView<T> c, Index inner, const T* a, Index a_row, Index a_inner, const T* b, Index b_row,
                   Store store) {
    for (Index n = 0; n < c.cols; n += lane_width<T>)
        for (Index m = 0; m < c.rows; m += product_rows)
            product_block(inner, a + m * a_row, a_row, a_inner, b + n, b_row, c.row(m) + n, c.stride, store);
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
