#pragma once
// Lane<T>: one vector register of numbers, whatever its width on this machine, with the usual operators. They are plain
// functions around Eigen's packets, not Eigen expressions, which cost several times as long to compile.
// Loops over lanes give every element the same arithmetic wherever it stands: a short tail is padded and takes the same
// path, so a row's result does not depend on its neighbours or its alignment.

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

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "kimik3/core/base.hpp"

namespace kimik3::detail {

template <class T>
struct Lane {
    using Traits = Eigen::internal::packet_traits<T>;
    using Packet = typename Traits::type;
    static constexpr int width = Eigen::internal::unpacket_traits<Packet>::size;

    Packet packet;

    Lane() = default;
    Lane(T value) : packet(Eigen::internal::pset1<Packet>(value)) {}
    static Lane of(const Packet& p) {
        Lane lane;
        lane.packet = p;
        return lane;
    }
    static Lane load(const T* from) { return of(Eigen::internal::ploadu<Packet>(from)); }
    void store(T* to) const { Eigen::internal::pstoreu(to, packet); }

    T sum() const { return Eigen::internal::predux(packet); }
    T largest() const { return Eigen::internal::predux_max(packet); }

    friend Lane operator+(const Lane& a, const Lane& b) { return of(Eigen::internal::padd(a.packet, b.packet)); }
    friend Lane operator-(const Lane& a, const Lane& b) { return of(Eigen::internal::psub(a.packet, b.packet)); }
    friend Lane operator*(const Lane& a, const Lane& b) { return of(Eigen::internal::pmul(a.packet, b.packet)); }
    friend Lane operator/(const Lane& a, const Lane& b) { return of(Eigen::internal::pdiv(a.packet, b.packet)); }
    friend Lane operator-(const Lane& a) { return of(Eigen::internal::pnegate(a.packet)); }
    Lane& operator+=(const Lane& b) { return *this = *this + b; }
    Lane& operator-=(const Lane& b) { return *this = *this - b; }
    friend Lane larger(const Lane& a, const Lane& b) { return of(Eigen::internal::pmax(a.packet, b.packet)); }
    friend Lane abs(const Lane& a) { return of(Eigen::internal::pabs(a.packet)); }
    friend Lane sqrt(const Lane& a) { return of(Eigen::internal::psqrt(a.packet)); }
    /// Long enough to be one function, not a copy at every use.
    [[gnu::noinline]] friend Lane exp(const Lane& a) { return of(Eigen::internal::pexp(a.packet)); }
    friend Lane tanh(const Lane& a) {
        if constexpr (Traits::HasTanh != 0) return of(Eigen::internal::ptanh(a.packet));
        else return one_by_one(a, [](T x) { return std::tanh(x); });
    }
    friend Lane log1p(const Lane& a) {
        if constexpr (Traits::HasLog1p != 0) return of(Eigen::internal::plog1p(a.packet));
        else return one_by_one(a, [](T x) { return std::log1p(x); });
    }

private:
    template <class F>
    static Lane one_by_one(const Lane& a, F&& f) {
        T numbers[to_size(width)];
        a.store(numbers);
        for (T& number : numbers) number = f(number);
        return load(numbers);
    }
};

template <class T>
inline constexpr Index lane_width = Lane<T>::width;

template <class T>
inline Lane<T> lane(T value) {
    return value;
}

/// A full lane at element begin.
struct WholeLane {
    Index begin;
    template <class T>
    Lane<T> load(const T* from) const {
        return Lane<T>::load(from + begin);
    }
    template <class T>
    void store(T* to, const std::type_identity_t<Lane<T>>& value) const {
        value.store(to + begin);
    }
};

/// The lane at element begin of a row with count elements from there on. Where they are fewer than a lane, the rest reads
/// as padding and is not written. One kind for both, so that a loop's body is compiled once.
struct LaneAt {
    Index begin, count;
    template <class T>
    Lane<T> load(const T* from, T padding = T(0)) const {
        if (count >= lane_width<T>) [[likely]] return Lane<T>::load(from + begin);
        return load_part(from + begin, padding);
    }
    template <class T>
    void store(T* to, const std::type_identity_t<Lane<T>>& value) const {
        if (count >= lane_width<T>) [[likely]] value.store(to + begin);
        else store_part(to + begin, value);
    }

private:
    template <class T>
    [[gnu::noinline]] Lane<T> load_part(const T* from, T padding) const {
        T numbers[to_size(lane_width<T>)];
        std::fill_n(std::copy_n(from, count, numbers), lane_width<T> - count, padding);
        return Lane<T>::load(numbers);
    }
    template <class T>
    [[gnu::noinline]] void store_part(T* to, const Lane<T>& value) const {
        T numbers[to_size(lane_width<T>)];
        value.store(numbers);
        std::copy_n(numbers, count, to);
    }
};

/// body(at) for the lanes of count elements of type T; at.load(p) and at.store(p, lane) reach elements of any array.
template <class T, class Body>
inline void for_lanes(Index count, Body&& body) {
    for (Index begin = 0; begin < count; begin += lane_width<T>) body(LaneAt{begin, count - begin});
}

/// The same with two kinds of lane: compiled twice, for bodies so short that asking at every load would be felt.
template <class T, class Body>
inline void for_whole_lanes_and_rest(Index count, Body&& body) {
    Index begin = 0;
    for (; begin + lane_width<T> <= count; begin += lane_width<T>) body(WholeLane{begin});
    if (begin < count) body(LaneAt{begin, count - begin});
}

/// Sum over count elements of term(at), a lane each; terms of the padding must be zero.
template <class T, class Term>
inline T sum_lanes(Index count, Term&& term) {
    Lane<T> total = lane(T(0));
    for_lanes<T>(count, [&](LaneAt at) { total += term(at); });
    return total.sum();
}

/// Not inline: nothing takes it in a loop so short that a call would be felt.
template <class T>
[[gnu::noinline]] T dot(const T* a, const T* b, Index count) {
    Lane<T> total = lane(T(0));
    for_whole_lanes_and_rest<T>(count, [&](auto at) { total += at.load(a) * at.load(b); });
    return total.sum();
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
