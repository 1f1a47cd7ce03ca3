#pragma once
// Eigen's products, with the rows of c shared out to the threads. A matrix of fewer than few_rows rows meets a weight
// matrix that is read once: there the weight rows are shared out and each is dotted with every row of a, which runs at
// the speed of memory. Both paths give a row the same result however many rows stand beside it, the first in multiples
// of few_rows rows.

#include <algorithm>

#include "kimik3/backend/cpu.hpp"
#include "kimik3/core/dtype.hpp"
#include "kimik3/ops/cpu/lanes.hpp"
#include "kimik3/ops/matmul.hpp"
#include "kimik3/tensor/transfer.hpp"

namespace kimik3 {
namespace detail {

/// Below this many rows a product with b^T reads b once (and the product kernel would work on padding).
inline constexpr Index few_rows = 8;

/// result += lhs rhs on one thread, all as Eigen's kernel takes them: result [rows, cols] by columns, lhs [rows, depth]
/// and rhs [depth, cols] in the order named. This is the entry that Eigen's expressions end in. Without the paths that
/// they choose before it for tiny and one-row products, an element's sum has one order, and every user's build is
/// shorter.
template <class T, int lhs_order, int rhs_order>
void add_product(Index rows, Index cols, Index depth, const T* lhs, Index lhs_stride, const T* rhs, Index rhs_stride,
                 T* result, Index result_stride) {
    constexpr int any = Eigen::Dynamic;
    if (rows == 0 || cols == 0 || depth == 0) return;
    Eigen::internal::gemm_blocking_space<Eigen::ColMajor, T, T, any, any, any> blocking(rows, cols, depth, 1, true);
    Eigen::internal::general_matrix_matrix_product<Eigen::Index, T, lhs_order, false, T, rhs_order, false,
                                                   Eigen::ColMajor, 1>::run(rows, cols, depth, lhs, lhs_stride, rhs,
                                                                            rhs_stride, result, 1, result_stride, T(1),
                                                                            blocking, nullptr);
}

template <class T>
void clear_unless(Add add, MatrixView<T> c) {
    for (Index r = 0; add == Add::no && r < c.rows; ++r) std::fill_n(c.row(r), c.cols, T(0));
}

/// Products on one thread, for operations that share out their own work. Rows of c are columns of the kernel's result.
template <class T>
void local_matmul_nt(In<T> a, In<T> b, Out<T> c, Add add) {
    clear_unless(add, c);
    add_product<T, Eigen::RowMajor, Eigen::ColMajor>(c.cols, c.rows, a.cols, b.data, b.stride, a.data, a.stride, c.data,
                                                     c.stride);
}
template <class T>
void local_matmul_nn(In<T> a, In<T> b, Out<T> c, Add add) {
    clear_unless(add, c);
    add_product<T, Eigen::ColMajor, Eigen::ColMajor>(c.cols, c.rows, a.cols, b.data, b.stride, a.data, a.stride, c.data,
                                                     c.stride);
}
template <class T>
void local_matmul_tn(In<T> a, In<T> b, Out<T> c, Add add) {
    clear_unless(add, c);
    add_product<T, Eigen::ColMajor, Eigen::RowMajor>(c.cols, c.rows, a.rows, b.data, b.stride, a.data, a.stride, c.data,
                                                     c.stride);
}

/// body(first, last) over ranges of rows of c, one a thread: they begin at multiples of few_rows and none is shorter,
/// so that the kernel groups rows as it does without threads.
template <class Body>
void parallel_rows(const Context<Cpu>& ctx, Index rows, Body&& body) {
    const Index units = rows < few_rows ? ceil_div(rows, few_rows) : rows / few_rows;
    ctx.parallel(units, 1,
                 [&](Index first, Index last) { body(first * few_rows, last == units ? rows : last * few_rows); });
}

/// c[row, n] = a[row] . b[n] for the rows of a (fewer than few_rows) and the rows [first, last) of b. These are read one
/// behind the other, since the processor fetches ahead where reading goes straight on; a few at a time meet all of a.
template <class T>
void dot_rows(In<T> a, In<T> b, Out<T> c, Add add, Index first, Index last) {
    constexpr Index block = 4;
    for (Index begin = first; begin < last; begin += block) {
        const Index end = (std::min)(begin + block, last);
        for (Index m = 0; m < a.rows; ++m) {
            for (Index n = begin; n < end; ++n)
                c(m, n) = (add == Add::yes ? c(m, n) : T(0)) + dot(a.row(m), b.row(n), a.cols);
        }
    }
}

}  // namespace detail

template <class T>
void matmul_nt(const Context<Cpu>& ctx, In<T> a, In<T> b, Out<T> c, Add add) {
    require_shape("matmul_nt: c", c, a.rows, b.rows);
    require_shape("matmul_nt: b", b, b.rows, a.cols);
    if (a.rows < detail::few_rows) {
        const Index grain = (std::max)(Index{4}, round_up(16384 / (std::max)(Index{1}, a.cols), 4));
        ctx.parallel(b.rows, grain, [&](Index first, Index last) { detail::dot_rows<T>(a, b, c, add, first, last); });
        return;
    }
    detail::parallel_rows(ctx, a.rows, [&](Index first, Index last) {
        detail::local_matmul_nt<T>(a.middle_rows(first, last - first), b, c.middle_rows(first, last - first), add);
    });
}

template <class T>
void matmul_nt_onto(const Context<Cpu>& ctx, In<T> a, In<T> b, In<T> base, Out<T> c) {
    copy(ctx, base, c);
    matmul_nt(ctx, a, b, c, Add::yes);
}

template <class T>
void matmul_nt_all(const Context<Cpu>& ctx, In<T> a, std::span<const RowProduct<T>> products) {
    constexpr Index group = 4;  // of weight rows
    Index groups = 0;
    for (const RowProduct<T>& p : products) {
        if (p.b.rows == 0) continue;
        if (a.rows >= detail::few_rows) matmul_nt(ctx, a, p.b, p.c, Add::no);
        require_shape("matmul_nt_all: c", p.c, a.rows, p.b.rows);
        require_shape("matmul_nt_all: b", p.b, p.b.rows, a.cols);
        groups += ceil_div(p.b.rows, group);
    }
    if (a.rows >= detail::few_rows) return;
    ctx.parallel(groups, ceil_div(16384, group * (std::max)(Index{1}, a.cols)), [&](Index first, Index last) {
        for (const RowProduct<T>& p : products) {
            const Index own = ceil_div(p.b.rows, group), begin = (std::max)(Index{0}, first) * group,
                        end = (std::min)(p.b.rows, last * group);
            if (begin < end) detail::dot_rows<T>(a, p.b, p.c, Add::no, begin, end);
            first -= own, last -= own;
        }
    });
}

template <class T>
void matmul_nn(const Context<Cpu>& ctx, In<T> a, In<T> b, Out<T> c, Add add) {
    require_shape("matmul_nn: c", c, a.rows, b.cols);
    require_shape("matmul_nn: b", b, a.cols, b.cols);
    detail::parallel_rows(ctx, a.rows, [&](Index first, Index last) {
        detail::local_matmul_nn<T>(a.middle_rows(first, last - first), b, c.middle_rows(first, last - first), add);
    });
}

template <class T>
void matmul_tn(const Context<Cpu>& ctx, In<T> a, In<T> b, Out<T> c, Add add) {
    require_shape("matmul_tn: c", c, a.cols, b.cols);
    require_shape("matmul_tn: b", b, a.rows, b.cols);
    detail::parallel_rows(ctx, a.cols, [&](Index first, Index last) {
        detail::local_matmul_tn<T>(a.middle_cols(first, last - first), b, c.middle_rows(first, last - first), add);
    });
}

}  // namespace kimik3
