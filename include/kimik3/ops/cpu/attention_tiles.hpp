#pragma once
// Tiles of attention on one thread: 64 keys at a time, their scores against a few rows of queries, and the sums that
// the weights make. Products keep their sums in registers, lanes along the columns. A row of a product is one chain
// of additions in the order of the inner index, so its bits do not depend on the rows beside it. No product touches a
// masked element, so a NaN in a later token cannot reach an earlier one as 0 * NaN.

#include <algorithm>
#include <cmath>
#include <limits>

#include "kimik3/ops/cpu/lanes.hpp"
#include "kimik3/ops/matmul.hpp"

namespace kimik3::detail {

inline constexpr Index tile_keys = 64;
/// Rows that a product works on together; masks are exact at any row.
inline constexpr Index tile_rows = 4;

/// A matrix whose elements enter a product one by one: element (i, k) at first + i * row + k * col.
template <class T>
struct Factor {
    const T* first;
    Index row, col;
};

/// body(0), ..., body(count - 1) without a loop, so that what they index stays in registers.
template <Index count, class Body>
inline void unrolled(Body&& body) {
    static_assert(count <= 16);
#ifndef __CUDACC__  // which warns of it
#pragma GCC unroll 16
#endif
    for (Index i = 0; i < count; ++i) body(i);
}

/// c [rows, lanes at `at`] (+)= a [rows, inner] b [inner, ...].
template <Index rows, Index lanes, class T, class At>
inline void product_block(Index inner, Factor<T> a, const T* b, Index b_stride, T* c, Index c_stride, At at, Add add) {
    Lane<T> sum[to_size(rows * lanes)], right[to_size(lanes)];
    const auto shifted = [&](Index l) {
        At moved = at;
        moved.begin += l * lane_width<T>;
        return moved;
    };
    unrolled<rows * lanes>([&](Index s) {
        sum[s] = add == Add::yes ? shifted(s % lanes).load(c + s / lanes * c_stride) : lane(T(0));
    });
    for (Index k = 0; k < inner; ++k) {
        unrolled<lanes>([&](Index l) { right[l] = shifted(l).load(b + k * b_stride); });
        unrolled<rows * lanes>([&](Index s) { sum[s] += a.first[s / lanes * a.row + k * a.col] * right[s % lanes]; });
    }
    unrolled<rows * lanes>([&](Index s) { shifted(s % lanes).store(c + s / lanes * c_stride, sum[s]); });
}

template <Index rows, class T>
inline void product_row_block(Index inner, Index cols, Factor<T> a, const T* b, Index b_stride, T* c, Index c_stride,
                              Add add) {
    constexpr Index width = lane_width<T>;
    Index at = 0;
    for (; at + 4 * width <= cols; at += 4 * width)
        product_block<rows, 4>(inner, a, b, b_stride, c, c_stride, WholeLane{at}, add);
    for (; at + 2 * width <= cols; at += 2 * width)
        product_block<rows, 2>(inner, a, b, b_stride, c, c_stride, WholeLane{at}, add);
    if (at + width <= cols) {
        product_block<rows, 1>(inner, a, b, b_stride, c, c_stride, WholeLane{at}, add);
        at += width;
    }
    if (at < cols) product_block<rows, 1>(inner, a, b, b_stride, c, c_stride, LaneAt{at, cols - at}, add);
}

/// c [rows, cols] (+)= a [rows, inner] b [inner, cols], for at most tile_rows rows.
template <class T>
inline void few_rows_product(Index rows, Index inner, Index cols, Factor<T> a, const T* b, Index b_stride, T* c,
                             Index c_stride, Add add) {
    if (rows == tile_rows) return product_row_block<tile_rows>(inner, cols, a, b, b_stride, c, c_stride, add);
    for (Index i = 0; i < rows; ++i, a.first += a.row, c += c_stride)
        product_row_block<1>(inner, cols, a, b, b_stride, c, c_stride, add);
}

/// to [width, tile_keys] = factor * from [keys, width]^T; the columns past keys are zero.
template <class T>
inline void pack_keys(const T* from, Index stride, Index keys, Index width, T factor, T* to) {
    for (Index k = 0; k < width; ++k) {
        T* row = to + k * tile_keys;
        for (Index j = 0; j < keys; ++j) row[j] = factor * from[j * stride + k];
        for (Index j = keys; j < tile_keys; ++j) row[j] = T(0);
    }
}

/// s [rows, tile_keys] = q [rows, width] keys [width, tile_keys], where row i needs the first seen(i) scores; up to
/// whole lanes more are computed. seen never falls from row to row.
template <class T, class Seen>
inline void score_tile(Index rows, Index width, Factor<T> q, const T* keys, T* s, Seen&& seen) {
    for (Index i = 0; i < rows; i += tile_rows) {
        const Index group = (std::min)(tile_rows, rows - i), cols = round_up(seen(i + group - 1), lane_width<T>);
        few_rows_product(group, width, cols, Factor<T>{q.first + i * q.row, q.row, q.col}, keys, tile_keys,
                         s + i * tile_keys, tile_keys, Add::no);
    }
}

/// o [rows, cols] += p [rows, seen keys] v [keys, cols].
template <class T, class Seen>
inline void add_weighted_rows(Index rows, Index cols, const T* p, const T* v, Index v_stride, T* o, Index o_stride,
                              Seen&& seen) {
    for (Index i = 0; i < rows; i += tile_rows) {
        const Index group = (std::min)(tile_rows, rows - i), common = seen(i);
        few_rows_product(group, common, cols, Factor<T>{p + i * tile_keys, tile_keys, 1}, v, v_stride, o + i * o_stride,
                         o_stride, Add::yes);
        for (Index j = i; j < i + group; ++j) {
            if (seen(j) == common) continue;
            few_rows_product(1, seen(j) - common, cols, Factor<T>{p + j * tile_keys + common, 0, 1},
                             v + common * v_stride, v_stride, o + j * o_stride, o_stride, Add::yes);
        }
    }
}

/// A softmax whose scores arrive in tiles: the largest score so far and the sum of exp(score - largest).
template <class T>
struct RunningSoftmax {
    T largest = -std::numeric_limits<T>::infinity(), total = 0;

    /// Turns a row's seen > 0 scores into weights relative to the new largest one, and the row's sum o to the same
    /// footing (MLA-5).
    void take(T* scores, Index seen, T* o, Index cols) {
        const Index padded = round_up(seen, lane_width<T>);
        std::fill(scores + seen, scores + padded, -std::numeric_limits<T>::infinity());
        Lane<T> top = lane(largest), sum = lane(T(0));
        for (Index j = 0; j < padded; j += lane_width<T>) top = larger(top, WholeLane{j}.load(scores));
        const T now = top.largest(), shrink = std::exp(largest - now);
        for_lanes<T>(padded, [&](auto at) {
            const Lane<T> weight = exp(at.load(scores) - now);
            at.store(scores, weight);
            sum += weight;
        });
        if (shrink != T(1)) for_lanes<T>(cols, [&](auto at) { at.store(o, Lane<T>(at.load(o) * shrink)); });
        total = total * shrink + sum.sum();
        largest = now;
    }
};

}  // namespace kimik3::detail
