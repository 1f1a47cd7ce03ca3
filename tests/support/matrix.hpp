#pragma once
// Matrices for tests: NaN to begin with, so that what an operation forgets to write shows, between guard zones, so that
// what it writes outside shows; filled with seeded normal numbers on request.

#include <algorithm>
#include <bit>
#include <boost/test/unit_test.hpp>
#include <limits>
#include <span>
#include <vector>

#include "kimik3/core/rng.hpp"
#include "kimik3/tensor/view.hpp"

namespace kimik3::test {

template <class T>
class Matrix {
public:
    /// NaN everywhere. stride: elements from row to row, cols unless given; the gaps are guarded too.
    Matrix(Index rows, Index cols, Index stride = 0)
        : rows_(rows),
          cols_(cols),
          stride_(stride == 0 ? cols : stride),
          memory_(to_size(rows * stride_ + 2 * margin), guard) {
        fill(std::numeric_limits<T>::quiet_NaN());
    }
    Matrix(const Matrix&) = default;
    Matrix(Matrix&&) = default;
    Matrix& operator=(Matrix&&) = default;
    ~Matrix() {
        Index harmed = 0;
        for (Index e = 0; e < static_cast<Index>(memory_.size()); ++e) {
            const Index inside = e - margin;
            const bool ours = inside >= 0 && inside < rows_ * stride_ && inside % stride_ < cols_;
            harmed += !ours && memory_[to_size(e)] != guard;
        }
        BOOST_CHECK_MESSAGE(harmed == 0, harmed << " elements outside of a matrix were written");
    }

    static Matrix random(Index rows, Index cols, std::uint64_t seed, double scale = 1.0, Index stride = 0) {
        Matrix m(rows, cols, stride);
        Philox numbers(seed);
        for (Index r = 0; r < rows; ++r)
            for (Index c = 0; c < cols; ++c) m(r, c) = static_cast<T>(scale * numbers.normal());
        return m;
    }
    template <class Values>
    static Matrix of(Index rows, Index cols, const Values& values) {
        Matrix m(rows, cols);
        std::transform(values.begin(), values.end(), m.data(), [](auto v) { return static_cast<T>(v); });
        return m;
    }

    void fill(T value) {
        for (Index r = 0; r < rows_; ++r) std::fill_n(view().row(r), cols_, value);
    }
    Index rows() const { return rows_; }
    Index cols() const { return cols_; }
    T* data() { return memory_.data() + margin; }
    T& operator()(Index r, Index c) { return view()(r, c); }
    MatrixView<T> view() { return {data(), rows_, cols_, stride_}; }
    operator MatrixView<T>() { return view(); }
    operator MatrixView<const T>() { return view(); }
    /// The elements as one vector, for a matrix that is dense.
    VectorView<T> vector() { return {data(), rows_ * cols_}; }
    std::span<T> span() { return {data(), to_size(rows_ * cols_)}; }

    /// All elements of the rows [begin, end), without the gaps.
    std::vector<T> values(Index begin, Index end) {
        std::vector<T> all;
        for (Index r = begin; r < end; ++r) all.insert(all.end(), view().row(r), view().row(r) + cols_);
        return all;
    }
    std::vector<T> values() { return values(0, rows_); }

private:
    static constexpr Index margin = 16;
    static constexpr T guard = T(12345.5);
    Index rows_, cols_, stride_;
    std::vector<T> memory_;
};

/// Equal bit for bit: signs of zero count, NaN equals itself.
template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
    using Bits = std::conditional_t<sizeof(T) == 8, std::uint64_t, std::uint32_t>;
    return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                      [](T x, T y) { return std::bit_cast<Bits>(x) == std::bit_cast<Bits>(y); });
}

/// Sum of elementwise products: the loss whose gradient with respect to y is probe.
template <class T>
double probed(Matrix<T>& y, Matrix<T>& probe) {
    const std::vector<T> a = y.values(), b = probe.values();
    double sum = 0;
    for (std::size_t e = 0; e < a.size(); ++e) sum += static_cast<double>(a[e]) * static_cast<double>(b[e]);
    return sum;
}

}  // namespace kimik3::test
