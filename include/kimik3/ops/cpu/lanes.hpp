#pragma once
// Lane<T>: 64 bytes of numbers that are worked on at once, an Eigen array of fixed size, so the compiler's vector
// registers carry it whatever their width. Loops over lanes give every element the same arithmetic wherever it stands:
// a short tail is padded and takes the same path, so a row's result does not depend on its neighbours or its alignment.

// g++ 12 warns of its own AVX-512 headers, which Eigen includes, where they are inlined (GCC bug 105593).
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <Eigen/Core>
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif

#include "kimik3/core/base.hpp"

namespace kimik3::detail {

template <class T>
inline constexpr Index lane_width = 64 / static_cast<Index>(sizeof(T));

template <class T>
using Lane = Eigen::Array<T, static_cast<int>(lane_width<T>), 1>;

template <class T>
inline Lane<T> lane(T value) {
    return Lane<T>::Constant(value);
}

/// A full lane at element begin.
struct WholeLane {
    Index begin;
    template <class T>
    Lane<T> load(const T* from, T = T(0)) const {
        return Eigen::Map<const Lane<T>>(from + begin);
    }
    template <class T>
    void store(T* to, const Lane<T>& value) const {
        Eigen::Map<Lane<T>> destination(to + begin);
        destination = value;
    }
};

/// The last, incomplete lane: count elements at begin; the rest reads as padding and is not written.
struct PartLane {
    Index begin, count;
    template <class T>
    Lane<T> load(const T* from, T padding = T(0)) const {
        Lane<T> value = lane(padding);
        for (Index j = 0; j < count; ++j) value[j] = from[begin + j];
        return value;
    }
    template <class T>
    void store(T* to, const Lane<T>& value) const {
        for (Index j = 0; j < count; ++j) to[begin + j] = value[j];
    }
};

/// body(at) for the lanes of count elements of type T; at.load(p) and at.store(p, lane) reach elements of any array.
template <class T, class Body>
inline void for_lanes(Index count, Body&& body) {
    Index begin = 0;
    for (; begin + lane_width<T> <= count; begin += lane_width<T>) body(WholeLane{begin});
    if (begin < count) body(PartLane{begin, count - begin});
}

/// Sum over count elements of term(at), a lane each; terms of the padding must be zero.
template <class T, class Term>
inline T sum_lanes(Index count, Term&& term) {
    Lane<T> total = lane(T(0));
    for_lanes<T>(count, [&](auto at) { total += term(at); });
    return total.sum();
}

template <class T>
inline T dot(const T* a, const T* b, Index count) {
    return sum_lanes<T>(count, [&](auto at) -> Lane<T> { return at.load(a) * at.load(b); });
}

/// total[c] += sum over rows of term(r, at), for all columns. Threads own columns, so the sum has one order.
template <class T, class Ctx, class Term>
inline void add_row_sums(const Ctx& ctx, Index rows, Index cols, T* total, Term&& term) {
    ctx.parallel(cols, 8 * lane_width<T>, [&](Index first, Index last) {
        for_lanes<T>(last - first, [&](auto part) {
            auto at = part;
            at.begin += first;
            Lane<T> sum = at.load(total);
            for (Index r = 0; r < rows; ++r) sum += term(r, at);
            at.store(total, sum);
        });
    });
}

}  // namespace kimik3::detail
