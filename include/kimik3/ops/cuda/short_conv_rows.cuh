#pragma once
// The short convolution of rows of Eights (vectors.cuh), up to four taps, without carried windows: a thread walks a
// stretch of rows with one Eight of channels, the last three inputs in registers and the next ones on their way to
// shared memory. Backward recomputes the sums before
// SiLU, keeps the gradients of the last three rows until they are complete, and needs e = dy SiLU' of the three rows
// after its stretch; since du may be dy, those rows of dy are copied beforehand (borders).

#include "kimik3/ops/cuda/quick_formulas.cuh"
#include "kimik3/ops/cuda/tensor_core.cuh"
#include "kimik3/ops/cuda/vectors.cuh"

namespace kimik3::gpu {

inline constexpr int conv_taps = 4, conv_threads = 128, conv_ahead = 8;

/// The weights of eight channels by their distance in time: of[0] belongs to the row itself.
template <class A>
struct ConvWeights {
    A of[conv_taps][8];

    __device__ ConvWeights(const MatrixView<const A>& w, Index c) {
        if (w.cols == conv_taps && w.stride == conv_taps && reinterpret_cast<std::uintptr_t>(w.data) % 16 == 0) {
#pragma unroll
            for (int i = 0; i < 8; i += 2) {
                A two[8];
                load_eight(w.row(c + i), two);
#pragma unroll
                for (int back = 0; back < conv_taps; ++back)
                    of[back][i] = two[conv_taps - 1 - back], of[back][i + 1] = two[2 * conv_taps - 1 - back];
            }
            return;
        }
#pragma unroll
        for (int back = 0; back < conv_taps; ++back)
#pragma unroll
            for (int i = 0; i < 8; ++i) of[back][i] = back < w.cols ? w(c + i, w.cols - 1 - back) : A(0);
    }
};

/// The place of a thread: Eight c ... c + 7 of length rows from first on, and where the sequence of the row at hand
/// begins and ends, counted from first.
struct ConvPlace {
    Index c, stretch, first, s;
    int length, begin, end;

    __device__ ConvPlace(const DeviceSequences& seq, Index thread, Index per_row, Index rows) {
        stretch = thread / per_row, c = 8 * (thread - stretch * per_row);
        first = stretch * rows;
        const Index left = seq.tokens - first;
        length = static_cast<int>(rows < left ? rows : left);
        if (length <= 0) return;
        s = seq.of(first);
        place(seq);
    }
    /// Goes on to the sequence that holds row k, the end of the one before.
    __device__ void next_sequence(const DeviceSequences& seq, int k) {
        while (k >= end) ++s, place(seq);
    }

private:
    __device__ void place(const DeviceSequences& seq) {
        const Index from = seq.begin(s) - first, to = seq.end(s) - first;
        begin = static_cast<int>(from > -8 ? from : -8), end = static_cast<int>(to < (1 << 30) ? to : 1 << 30);
    }
};

/// past[k]: the input k + 1 rows back, zero outside of the sequence. Returns the sum before SiLU.
template <class A>
__device__ void convolve(const ConvWeights<A>& w, const A (&now)[8], const A (&past)[3][8], A (&sum)[8]) {
#pragma unroll
    for (int i = 0; i < 8; ++i)
        sum[i] = w.of[0][i] * now[i] + w.of[1][i] * past[0][i] + w.of[2][i] * past[1][i] + w.of[3][i] * past[2][i];
}
template <class A>
__device__ void push(A (&past)[3][8], const A (&now)[8]) {
#pragma unroll
    for (int i = 0; i < 8; ++i) past[2][i] = past[1][i], past[1][i] = past[0][i], past[0][i] = now[i];
}
template <class A>
__device__ void clear_past(A (&past)[3][8]) {
#pragma unroll
    for (int i = 0; i < 8; ++i) past[0][i] = past[1][i] = past[2][i] = A(0);
}
template <class T, class A>
__device__ void load_past(const MatrixView<const T>& u, const ConvPlace& at, A (&past)[3][8]) {
#pragma unroll
    for (int k = 0; k < 3; ++k)
        (-1 - k >= at.begin ? Eight<T>::load(u.row(at.first - 1 - k) + at.c) : Eight<T>::zero()).get(past[k]);
}

/// The Eights that a thread reads next, on their way to shared memory: conv_ahead rows of count matrices.
template <class T, int count>
struct ConvRing {
    static constexpr int words = Eight<T>::words;
    uint4 (*held)[count * words][conv_threads];

    __device__ void fetch(int k, int matrix, const T* from) const {
#pragma unroll
        for (int i = 0; i < words; ++i)
            copy_16_bytes(&held[k & (conv_ahead - 1)][matrix * words + i][threadIdx.x],
                          reinterpret_cast<const uint4*>(from) + i);
    }
    __device__ void get(int k, int matrix, accumulator_t<T> (&to)[8]) const {
        Eight<T> e;
#pragma unroll
        for (int i = 0; i < words; ++i) e.word[i] = held[k & (conv_ahead - 1)][matrix * words + i][threadIdx.x];
        e.get(to);
    }
};

template <class T>
__global__ void __launch_bounds__(conv_threads)
    conv_forward_kernel(DeviceSequences seq, Index rows, MatrixView<const T> u, MatrixView<const accumulator_t<T>> w,
                        MatrixView<T> y) {
    using A = accumulator_t<T>;
    __shared__ uint4 held[conv_ahead][Eight<T>::words][conv_threads];
    const ConvRing<T, 1> ring{held};
    ConvPlace at(seq, Index{blockIdx.x} * conv_threads + threadIdx.x, u.cols / 8, rows);
    if (at.length <= 0) return;
    const T* next = u.row(at.first) + at.c;
    const auto fetch = [&](int k) {
        if (k < at.length) ring.fetch(k, 0, next);
        next += u.stride;
        commit_copies();
    };
    for (int k = 0; k < conv_ahead - 1; ++k) fetch(k);
    A past[3][8];
    load_past(u, at, past);
    const ConvWeights<A> weights(w, at.c);
    T* to = y.row(at.first) + at.c;
#pragma unroll 4
    for (int k = 0; k < at.length; ++k) {
        fetch(k + conv_ahead - 1);
        if (k == at.end) at.next_sequence(seq, k), clear_past(past);
        wait_for_copies<conv_ahead - 1>();
        A now[8], sum[8];
        ring.get(k, 0, now);
        convolve(weights, now, past, sum);
        push(past, now);
#pragma unroll
        for (int i = 0; i < 8; ++i) sum[i] *= sigmoid_of<T>(sum[i]);
        Eight<T>::of(sum).store(to);
        to += y.stride;
    }
}

/// borders [3 a stretch, P]: the first three rows of dy in every stretch. parts [stretches, 4 P]: the sums of dw over a
/// stretch, by the distance in time.
template <class T>
__global__ void __launch_bounds__(conv_threads)
    conv_backward_kernel(DeviceSequences seq, Index rows, MatrixView<const T> dy, MatrixView<const T> u,
                         MatrixView<const accumulator_t<T>> w, MatrixView<const T> borders, MatrixView<T> du,
                         accumulator_t<T>* parts) {
    using A = accumulator_t<T>;
    __shared__ uint4 held[conv_ahead][2 * Eight<T>::words][conv_threads];
    const ConvRing<T, 2> ring{held};
    ConvPlace at(seq, Index{blockIdx.x} * conv_threads + threadIdx.x, u.cols / 8, rows);
    if (at.length <= 0) return;
    const Index left = seq.tokens - at.first;
    const int wanted = static_cast<int>(at.length + 3 < left ? at.length + 3 : left);
    const T *next_u = u.row(at.first) + at.c, *next_dy = dy.row(at.first) + at.c;
    const auto fetch = [&](int k) {
        if (k == at.length) next_dy = borders.row(3 * (at.stretch + 1)) + at.c;
        if (k < wanted) ring.fetch(k, 0, next_u), ring.fetch(k, 1, next_dy);
        next_u += u.stride, next_dy += k < at.length ? dy.stride : borders.stride;
        commit_copies();
    };
    for (int k = 0; k < conv_ahead - 1; ++k) fetch(k);
    A past[3][8], open[3][8], sums[conv_taps][8] = {};  // open[k]: the gradient so far of the input k + 1 rows back
    load_past(u, at, past), clear_past(open);
    const ConvWeights<A> weights(w, at.c);
    int low = 0;  // the first row that open is the gradient of
#pragma unroll 4
    for (int k = 0; k < at.length + 3; ++k) {
        if (k == at.end) {  // rows of this sequence are complete, the next one's begin anew
#pragma unroll
            for (int back = 0; back < 3; ++back) {
                const int row = k - 1 - back;
                if (row >= low && row < at.length) Eight<T>::of(open[back]).store(du.row(at.first + row) + at.c);
            }
            if (k >= at.length) break;
            at.next_sequence(seq, k);
            clear_past(past);
            low = k;
        }
        fetch(k + conv_ahead - 1);
        wait_for_copies<conv_ahead - 1>();
        A now[8], sum[8], e[8];
        ring.get(k, 0, now), ring.get(k, 1, e);
        convolve(weights, now, past, sum);
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const A s = sigmoid_of<T>(sum[i]);
            e[i] *= s * (A(1) + sum[i] * (A(1) - s));
        }
        if (k < at.length) {
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                sums[0][i] += e[i] * now[i];
#pragma unroll
                for (int back = 0; back < 3; ++back) sums[back + 1][i] += e[i] * past[back][i];
            }
        }
#pragma unroll
        for (int i = 0; i < 8; ++i) {
#pragma unroll
            for (int back = 0; back < 3; ++back) open[back][i] += weights.of[back + 1][i] * e[i];
        }
        if (k - 3 >= low) Eight<T>::of(open[2]).store(du.row(at.first + k - 3) + at.c);
        push(past, now);
#pragma unroll
        for (int i = 0; i < 8; ++i) e[i] *= weights.of[0][i];
        push(open, e);
    }
    A* to = parts + at.stretch * conv_taps * u.cols + at.c;
#pragma unroll
    for (int back = 0; back < conv_taps; ++back) Eight<A>::of(sums[back]).store(to + back * u.cols);
}

/// Whether the kernels take these: conv_forward_kernel without dy.
template <class T>
bool conv_in_rows(In<T> u, In<T> out, In<T> dy, In<accumulator_t<T>> w, std::initializer_list<Index> carried_rows) {
    for (const Index rows : carried_rows)
        if (rows != 0) return false;
    return w.cols <= conv_taps && in_eights<const T>({u, out}) && (dy.rows == 0 || in_eights<const T>({dy}));
}

/// How many rows a thread walks, so that all threads run at the same time.
template <class Kernel>
Index conv_stretch(Kernel kernel, Index tokens, Index per_row) {
    const Index threads = resident_blocks(kernel, conv_threads) * conv_threads;
    return (std::max)(Index{16}, ceil_div(tokens, (std::max)(Index{1}, threads / per_row)));
}

template <class T>
void conv_rows_forward(const Context<Cuda>& ctx, const DeviceSequences& seq, In<T> u, In<accumulator_t<T>> w,
                       Out<T> y) {
    constexpr auto kernel = conv_forward_kernel<T>;
    const Index per_row = u.cols / 8, length = conv_stretch(kernel, seq.tokens, per_row);
    const Index threads = ceil_div(seq.tokens, length) * per_row;
    kernel<<<exact_grid(ceil_div(threads, conv_threads)), conv_threads, 0, ctx.stream()>>>(seq, length, u, w, y);
    check_launch();
}

template <class T>
void conv_rows_backward(const Context<Cuda>& ctx, const DeviceSequences& seq, In<T> dy, In<T> u,
                        In<accumulator_t<T>> w, Out<T> du, Out<accumulator_t<T>> dw) {
    using A = accumulator_t<T>;
    constexpr auto kernel = conv_backward_kernel<T>;
    const Index channels = u.cols, per_row = channels / 8, length = conv_stretch(kernel, seq.tokens, per_row);
    const Index stretches = ceil_div(seq.tokens, length), tokens = seq.tokens, taps = w.cols;
    const MatrixView<T> borders(ctx.workspace<T>(Scratch::operation, 3 * stretches * channels), 3 * stretches,
                                channels);
    for_eights(ctx, borders.rows, channels, [=] __device__(Index row, Index c) {
        const Index n = row / 3 * length + row % 3;
        if (n < tokens) Eight<T>::load(dy.row(n) + c).store(borders.row(row) + c);
    });
    A* parts = ctx.workspace<A>(Scratch::sums, stretches * conv_taps * channels);
    kernel<<<exact_grid(ceil_div(stretches * per_row, conv_threads)), conv_threads, 0, ctx.stream()>>>(
        seq, length, dy, u, w, borders, du, parts);
    check_launch();
    sum_parts(ctx, parts, stretches, conv_taps * channels, [=] __device__(Index i, A sum) {
        const Index back = i / channels;
        if (back < taps) dw(i % channels, taps - 1 - back) += sum;
    });
}

}  // namespace kimik3::gpu
