#pragma once
// The two shapes that every operation speaks of: a row-major matrix [rows, cols] whose rows may lie apart (stride), and
// a dense vector. Views do not own. Activations are matrices with one row a token; heads are blocks of columns.

#include <type_traits>

#include "kimik3/core/error.hpp"

namespace kimik3 {

template <class T>
struct MatrixView {
    T* data = nullptr;
    Index rows = 0, cols = 0;
    Index stride = 0;  // elements from one row to the next, >= cols

    constexpr MatrixView() = default;
    KIMIK3_HOST_DEVICE constexpr MatrixView(T* first, Index row_count, Index col_count)
        : MatrixView(first, row_count, col_count, col_count) {}
    KIMIK3_HOST_DEVICE constexpr MatrixView(T* first, Index row_count, Index col_count, Index row_stride)
        : data(first), rows(row_count), cols(col_count), stride(row_stride) {}

    KIMIK3_HOST_DEVICE constexpr T* row(Index r) const { return data + r * stride; }
    KIMIK3_HOST_DEVICE constexpr T& operator()(Index r, Index c) const { return data[r * stride + c]; }
    KIMIK3_HOST_DEVICE constexpr Index size() const { return rows * cols; }

    /// Rows [begin, begin + count).
    KIMIK3_HOST_DEVICE constexpr MatrixView middle_rows(Index begin, Index count) const {
        return {data + begin * stride, count, cols, stride};
    }
    /// Columns [begin, begin + count).
    KIMIK3_HOST_DEVICE constexpr MatrixView middle_cols(Index begin, Index count) const {
        return {data + begin, rows, count, stride};
    }

    KIMIK3_HOST_DEVICE constexpr operator MatrixView<const T>() const
        requires(!std::is_const_v<T>)
    {
        return {data, rows, cols, stride};
    }
};

template <class T>
struct VectorView {
    T* data = nullptr;
    Index size = 0;

    constexpr VectorView() = default;
    KIMIK3_HOST_DEVICE constexpr VectorView(T* first, Index count) : data(first), size(count) {}

    KIMIK3_HOST_DEVICE constexpr T& operator[](Index i) const { return data[i]; }
    KIMIK3_HOST_DEVICE constexpr T* begin() const { return data; }
    KIMIK3_HOST_DEVICE constexpr T* end() const { return data + size; }

    KIMIK3_HOST_DEVICE constexpr operator VectorView<const T>() const
        requires(!std::is_const_v<T>)
    {
        return {data, size};
    }
};

/// Whether below lies right under above, as rows of one matrix.
template <class T>
constexpr bool follows_below(MatrixView<T> above, MatrixView<T> below) {
    return above.rows > 0 && below.cols == above.cols && below.stride == above.stride &&
           below.data == above.row(above.rows);
}
/// Whether right lies right beside left, as columns of one matrix.
template <class T>
constexpr bool follows_beside(MatrixView<T> left, MatrixView<T> right) {
    return left.cols > 0 && right.rows == left.rows && right.data == left.data + left.cols &&
           (right.stride == left.stride || left.rows == 1) && left.cols + right.cols <= left.stride;
}

/// Parameter types of operations. In<T> and InVector<T> do not take part in deduction: T comes from the output, and a
/// view of T converts to a view of const T on the way in.
template <class T>
using Out = MatrixView<T>;
template <class T>
using In = std::type_identity_t<MatrixView<const T>>;
template <class T>
using OutVector = VectorView<T>;
template <class T>
using InVector = std::type_identity_t<VectorView<const T>>;

namespace detail {

[[noreturn, gnu::noinline]] inline void fail_shape(const char* name, Index rows, Index cols, Index got_rows,
                                                   Index got_cols) {
    fail("{} must be [{}, {}], got [{}, {}]", name, rows, cols, got_rows, got_cols);
}
[[noreturn, gnu::noinline]] inline void fail_size(const char* name, Index size, Index got) {
    fail("{} must have {} elements, got {}", name, size, got);
}

}  // namespace detail

/// Throws unless a matrix has the shape that the operation expects of it.
template <class T>
void require_shape(const char* name, MatrixView<T> m, Index rows, Index cols) {
    if (m.rows != rows || m.cols != cols) detail::fail_shape(name, rows, cols, m.rows, m.cols);
}
template <class T>
void require_size(const char* name, VectorView<T> v, Index size) {
    if (v.size != size) detail::fail_size(name, size, v.size);
}

}  // namespace kimik3
