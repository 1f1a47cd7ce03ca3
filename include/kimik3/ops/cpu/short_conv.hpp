#pragma once
// The short convolution on the CPU: threads own channels, so that the sums of dw have one order and du can take the
// place of dy: du_t reads e_t and later rows only, e = dy SiLU'.

#include <algorithm>

#include "kimik3/backend/cpu.hpp"
#include "kimik3/ops/cpu/carried.hpp"
#include "kimik3/ops/cpu/lanes.hpp"
#include "kimik3/ops/formulas.hpp"
#include "kimik3/ops/short_conv.hpp"

namespace kimik3 {
namespace detail {

/// The channels [first, last) of a convolution, on one thread. taps [W, last - first]: the weights, one row a tap.
template <class T>
struct ConvChannels {
    Index first, last, width;
    T* taps;

    static ConvChannels load(const Context<Cpu>& ctx, int thread, MatrixView<const T> w, Index first, Index last,
                             Index rows) {
        ConvChannels channels{first, last, w.cols, ctx.template workspace<T>(thread, rows * w.cols * (last - first))};
        for (Index j = 0; j < w.cols; ++j)
            for (Index c = first; c < last; ++c) channels.tap(j)[c - first] = w(c, j);
        return channels;
    }

    Index count() const { return last - first; }
    T* tap(Index j) const { return taps + j * count(); }

    /// Input row t of a sequence that begins at row begin of u; t < 0 lies in the window, or nowhere (nullptr).
    const T* input(MatrixView<const T> u, Index begin, const T* window, Index t) const {
        if (t >= 0) return u.row(begin + t) + first;
        return window == nullptr ? nullptr : window + (t + width - 1) * u.cols + first;
    }

    template <class At>
    Lane<T> sum(MatrixView<const T> u, Index begin, const T* window, Index t, At at) const {
        Lane<T> total = lane(T(0));
        // (KDA-1)
        for (Index j = 0; j < width; ++j)
            if (const T* from = input(u, begin, window, t - (width - 1) + j)) total += at.load(tap(j)) * at.load(from);
        return total;
    }
};

/// Rows past the last sequence are written too: with zeros.
template <class T>
void clear_slack(MatrixView<T> m, Index used, Index first, Index last) {
    for (Index n = used; n < m.rows; ++n) std::fill(m.row(n) + first, m.row(n) + last, T(0));
}

template <class T>
void conv_final_window(const ConvChannels<T>& channels, MatrixView<const T> u, Index begin, Index length,
                       const T* window, T* to) {
    for (Index j = 0; j + 1 < channels.width; ++j) {
        const T* from = channels.input(u, begin, window, length - (channels.width - 1) + j);
        T* row = to + j * u.cols + channels.first;
        for (Index c = 0; c < channels.count(); ++c) row[c] = from == nullptr ? T(0) : from[c];
    }
}

/// One sequence, (KDA-2): e = dy SiLU' into du, dw into the sums, then du and the window's gradient from e.
template <class T>
void conv_sequence_backward(const ConvChannels<T>& channels, MatrixView<const T> dy, MatrixView<const T> u, Index begin,
                            Index length, const T* window, const T* dfinal, MatrixView<T> du, T* sums, T* dinitial) {
    const Index taps = channels.width, first = channels.first, count = channels.count();
    for (Index t = 0; t < length; ++t) {
        for_lanes<T>(count, [&](auto at) {
            const Lane<T> e =
                at.load(dy.row(begin + t) + first) * silu_derivative(channels.sum(u, begin, window, t, at));
            at.store(du.row(begin + t) + first, e);
            for (Index j = 0; j < taps; ++j) {
                const T* from = channels.input(u, begin, window, t - (taps - 1) + j);
                T* sum = sums + j * count;
                if (from != nullptr) at.store(sum, Lane<T>(at.load(sum) + e * at.load(from)));
            }
        });
    }
    for (Index t = dinitial != nullptr ? 1 - taps : 0; t < length; ++t) {
        T* to = t >= 0 ? du.row(begin + t) + first : dinitial + (t + taps - 1) * u.cols + first;
        const Index kept = t - (length - (taps - 1));  // the row of the final window that holds this input
        for_lanes<T>(count, [&](auto at) {
            Lane<T> total = lane(T(0));
            for (Index j = (std::max)(Index{0}, taps - 1 - (length - 1 - t)); j < taps && t + taps - 1 - j >= 0; ++j)
                total += at.load(channels.tap(j)) * at.load(du.row(begin + t + taps - 1 - j) + first);
            if (dfinal != nullptr && kept >= 0) total += at.load(dfinal + kept * u.cols + first);
            at.store(to, total);
        });
    }
}

template <class T>
void require_conv_shapes(const Sequences& seq, In<T> u, In<accumulator_t<T>> w, Out<T> out) {
    require_shape("short_conv: u", u, out.rows, out.cols);
    require(w.rows == u.cols && w.cols >= 1, "short_conv: w must be [{}, W] with W >= 1, got [{}, {}]", u.cols, w.rows,
            w.cols);
    require(seq.tokens() <= u.rows, "short_conv: {} tokens do not fit {} rows", seq.tokens(), u.rows);
}

template <class T>
inline constexpr Index conv_grain = 4 * lane_width<T>;

}  // namespace detail

template <class T>
void short_conv_forward(const Context<Cpu>& ctx, const Sequences& seq, In<T> u, In<accumulator_t<T>> w,
                        In<accumulator_t<T>> initial, Out<T> y, std::type_identity_t<Out<accumulator_t<T>>> final) {
    detail::require_conv_shapes<T>(seq, u, w, y);
    detail::require_carried<T>("short_conv", seq, initial, (w.cols - 1) * u.cols);
    detail::require_carried<T>("short_conv", seq, final, (w.cols - 1) * u.cols);
    ctx.parallel_tasks(ceil_div(u.cols, detail::conv_grain<T>), [&](Index task, int thread) {
        const Index first = task * detail::conv_grain<T>, last = (std::min)(u.cols, first + detail::conv_grain<T>);
        const auto channels = detail::ConvChannels<T>::load(ctx, thread, w, first, last, 1);
        for (Index s = 0; s < seq.count(); ++s) {
            const Index begin = seq.begin(s), length = seq.length(s);
            const T* window = detail::carried_in<T>(seq, s, initial);
            for (Index t = 0; t < length; ++t) {
                detail::for_lanes<T>(channels.count(), [&](auto at) {
                    at.store(y.row(begin + t) + first, silu(channels.sum(u, begin, window, t, at)));
                });
            }
            if (T* to = detail::carried_out<T>(seq, s, initial, final))
                detail::conv_final_window(channels, u, begin, length, window, to);
        }
        detail::clear_slack(y, seq.tokens(), first, last);
    });
}

template <class T>
void short_conv_backward(const Context<Cpu>& ctx, const Sequences& seq, In<T> dy, In<T> u, In<accumulator_t<T>> w,
                         In<accumulator_t<T>> initial, In<accumulator_t<T>> dfinal, Out<T> du,
                         std::type_identity_t<Out<accumulator_t<T>>> dw,
                         std::type_identity_t<Out<accumulator_t<T>>> dinitial) {
    detail::require_conv_shapes<T>(seq, u, w, du);
    require_shape("short_conv: dy", dy, du.rows, du.cols);
    require_shape("short_conv: dw", dw, w.rows, w.cols);
    const Index carried = (w.cols - 1) * u.cols;
    detail::require_carried<T>("short_conv", seq, initial, carried);
    detail::require_carried<T>("short_conv", seq, dfinal, carried);
    detail::require_carried<T>("short_conv", seq, dinitial, carried);
    ctx.parallel_tasks(ceil_div(u.cols, detail::conv_grain<T>), [&](Index task, int thread) {
        const Index first = task * detail::conv_grain<T>, last = (std::min)(u.cols, first + detail::conv_grain<T>);
        const auto channels = detail::ConvChannels<T>::load(ctx, thread, w, first, last, 2);
        T* sums = channels.tap(w.cols);
        std::fill(sums, sums + w.cols * channels.count(), T(0));
        for (Index s = 0; s < seq.count(); ++s) {
            detail::conv_sequence_backward<T>(channels, dy, u, seq.begin(s), seq.length(s),
                                              detail::carried_in<T>(seq, s, initial),
                                              dfinal.rows == 0 ? nullptr : dfinal.row(seq.slot(s)), du, sums,
                                              dinitial.rows == 0 ? nullptr : dinitial.row(seq.slot(s)));
        }
        for (Index c = first; c < last; ++c)
            for (Index j = 0; j < w.cols; ++j) dw(c, j) += sums[j * channels.count() + c - first];
        detail::clear_slack(du, seq.tokens(), first, last);
    });
}

}  // namespace kimik3
