#pragma once
// The short convolution on the GPU, by the kernels of short_conv_rows.cuh where they take the shapes. The plain
// backward puts e = dy SiLU' of every row into scratch memory, from which du, dw and the window's gradient follow; so
// du can take the place of dy.

#include "kimik3/ops/cuda/carried.cuh"
#include "kimik3/ops/cuda/short_conv_rows.cuh"
#include "kimik3/ops/formulas.hpp"
#include "kimik3/ops/short_conv.hpp"

namespace kimik3 {
namespace gpu {

/// What the convolution of channel c reads.
template <class T>
struct ConvInput {
    DeviceSequences seq;
    using A = accumulator_t<T>;
    MatrixView<const T> u;
    MatrixView<const A> w, initial;

    /// Input t of sequence s; t < 0 lies in the window, or is zero.
    __device__ A at(Index s, Index t, Index c) const {
        if (t >= 0) return u(seq.begin(s) + t, c);
        const A* window = carried_in(seq, s, initial);
        return window == nullptr ? A(0) : window[(t + w.cols - 1) * u.cols + c];
    }
    /// The sum before SiLU.
    __device__ A sum(Index s, Index t, Index c) const {
        A total = A(0);
        for (Index j = 0; j < w.cols; ++j) total += w(c, j) * at(s, t - (w.cols - 1) + j, c);
        return total;
    }
    /// The gradient of input t > -W, from e and the final window's gradient.
    __device__ A gradient(Index s, Index t, Index c, const MatrixView<A>& e,
                          const MatrixView<const A>& dfinal) const {
        const Index taps = w.cols, length = seq.length(s), kept = t - (length - (taps - 1));
        A total = A(0);
        for (Index j = 0; j < taps; ++j) {
            const Index row = t + taps - 1 - j;
            if (row >= 0 && row < length) total += w(c, j) * e(seq.begin(s) + row, c);
        }
        if (dfinal.rows != 0 && kept >= 0) total += dfinal(seq.slots[s], kept * u.cols + c);
        return total;
    }
};

template <class T>
ConvInput<T> conv_input(const Context<Cuda>& ctx, const Sequences& seq, In<T> u, In<accumulator_t<T>> w,
                        In<accumulator_t<T>> initial, In<T> out) {
    require_shape("short_conv: u", u, out.rows, out.cols);
    require(w.rows == u.cols && w.cols >= 1, "short_conv: w must be [{}, W] with W >= 1, got [{}, {}]", u.cols, w.rows,
            w.cols);
    require(seq.tokens() <= u.rows, "short_conv: {} tokens do not fit {} rows", seq.tokens(), u.rows);
    detail::require_carried<T>("short_conv", seq, initial, (w.cols - 1) * u.cols);
    return {DeviceSequences(ctx, seq), u, w, initial};
}

}  // namespace gpu

template <class T>
void short_conv_forward(const Context<Cuda>& ctx, const Sequences& seq, In<T> u, In<accumulator_t<T>> w,
                        In<accumulator_t<T>> initial, Out<T> y, std::type_identity_t<Out<accumulator_t<T>>> final) {
    using A = accumulator_t<T>;
    const gpu::ConvInput<T> in = gpu::conv_input<T>(ctx, seq, u, w, initial, y);
    detail::require_carried<T>("short_conv", seq, final, (w.cols - 1) * u.cols);
    if constexpr (gpu::has_conv_rows<T>) {
        if (seq.tokens() > 0 && gpu::conv_in_rows<T>(u, y, {}, w, {initial.rows, final.rows})) {
            gpu::conv_rows_forward<T>(ctx, in.seq, u, w, y);
            return gpu::clear_rows_from(ctx, seq.tokens(), y);
        }
    }
    gpu::for_rows(ctx, seq.tokens(), u.cols, [=] __device__(Index n, gpu::Team team) {
        const Index s = in.seq.of(n);
        for (Index c = team.rank; c < in.u.cols; c += team.size)
            y(n, c) = static_cast<T>(silu(in.sum(s, n - in.seq.begin(s), c)));
    });
    if (final.rows != 0) {
        // One thread a channel, the oldest row first: final may be initial, whose rows are read before they are
        // replaced.
        gpu::for_rows(ctx, seq.count(), u.cols, [=] __device__(Index s, gpu::Team team) {
            A* to = gpu::carried_out(in.seq, s, in.initial, final);
            if (to == nullptr) return;
            const Index taps = in.w.cols, length = in.seq.length(s);
            for (Index c = team.rank; c < in.u.cols; c += team.size)
                for (Index j = 0; j + 1 < taps; ++j) to[j * in.u.cols + c] = in.at(s, length - (taps - 1) + j, c);
        });
    }
    gpu::clear_rows_from(ctx, seq.tokens(), y);
}

template <class T>
void short_conv_backward(const Context<Cuda>& ctx, const Sequences& seq, In<T> dy, In<T> u, In<accumulator_t<T>> w,
                         In<accumulator_t<T>> initial, In<accumulator_t<T>> dfinal, Out<T> du,
                         std::type_identity_t<Out<accumulator_t<T>>> dw,
                         std::type_identity_t<Out<accumulator_t<T>>> dinitial) {
    using A = accumulator_t<T>;
    const gpu::ConvInput<T> in = gpu::conv_input<T>(ctx, seq, u, w, initial, du);
    require_shape("short_conv: dy", dy, du.rows, du.cols);
    require_shape("short_conv: dw", dw, w.rows, w.cols);
    detail::require_carried<T>("short_conv", seq, dfinal, (w.cols - 1) * u.cols);
    detail::require_carried<T>("short_conv", seq, dinitial, (w.cols - 1) * u.cols);
    if constexpr (gpu::has_conv_rows<T>) {
        if (seq.tokens() > 0 && gpu::conv_in_rows<T>(u, du, dy, w, {initial.rows, dfinal.rows, dinitial.rows})) {
            gpu::conv_rows_backward<T>(ctx, in.seq, dy, u, w, du, dw);
            return gpu::clear_rows_from(ctx, seq.tokens(), du);
        }
    }
    const Index taps = w.cols, channels = u.cols;
    const MatrixView<A> e(ctx.workspace<A>(Scratch::operation, seq.tokens() * channels), seq.tokens(), channels);
    gpu::for_rows(ctx, seq.tokens(), channels, [=] __device__(Index n, gpu::Team team) {
        const Index s = in.seq.of(n);
        for (Index c = team.rank; c < channels; c += team.size)
            e(n, c) = dy(n, c) * silu_derivative(in.sum(s, n - in.seq.begin(s), c));
    });
    gpu::column_sums<A>(
        ctx, seq.tokens(), channels * taps,
        [=] __device__(Index n, Index i) {
            const Index s = in.seq.of(n), c = i % channels, j = i / channels;
            return e(n, c) * in.at(s, n - in.seq.begin(s) - (taps - 1) + j, c);
        },
        [=] __device__(Index i, A sum) { dw(i % channels, i / channels) += sum; });
    gpu::for_rows(ctx, seq.tokens(), channels, [=] __device__(Index n, gpu::Team team) {
        const Index s = in.seq.of(n);
        for (Index c = team.rank; c < channels; c += team.size)
            du(n, c) = static_cast<T>(in.gradient(s, n - in.seq.begin(s), c, e, dfinal));
    });
    if (dinitial.rows != 0) {
        gpu::for_rows(ctx, seq.count(), channels, [=] __device__(Index s, gpu::Team team) {
            for (Index c = team.rank; c < channels; c += team.size)
                for (Index j = 0; j + 1 < taps; ++j)
                    dinitial(in.seq.slots[s], j * channels + c) = in.gradient(s, j - (taps - 1), c, e, dfinal);
        });
    }
    gpu::clear_rows_from(ctx, seq.tokens(), du);
}

}  // namespace kimik3
