#pragma once
// The short convolution of rows of Eights (vectors.cuh), up to four taps, without carried windows: a thread walks a
// stretch of rows with one Eight of channels, the last three inputs in registers and the next ones on their way to
// shared memory; a block has 8 stretches of 16 Eights. Backward recomputes the sums before SiLU, keeps the gradients of
// the last three rows until they are complete, and needs e = dy SiLU' of the three rows after its stretch; where du may
// be dy, those rows of dy are copied beforehand (borders).

#include "kimik3/ops/cuda/quick_formulas.cuh"
#include "kimik3/ops/cuda/tensor_core.cuh"
#include "kimik3/ops/cuda/vectors.cuh"

namespace kimik3::gpu {

inline constexpr int conv_taps = 4, conv_threads = 128;
inline constexpr int conv_lanes = 16, conv_stretches = conv_threads / conv_lanes;
inline constexpr int conv_columns = 8 * conv_lanes, conv_sums = conv_taps * conv_columns;  // of a block

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

/// The place of a thread: Eight c ... c + 7 of length rows from first on, none where there is nothing to do, and where
/// the sequence of the row at hand begins and ends, counted from first. Blocks: slices of a row's channels, group by
/// group of stretches.
struct ConvPlace {
    Index first;
    int c, stretch, s, length, begin, end;

    __device__ ConvPlace(const DeviceSequences& seq, Index channels, Index rows) {
        const int slices = static_cast<int>(slices_of(channels)), block = static_cast<int>(blockIdx.x),
                  group = block / slices, thread = static_cast<int>(threadIdx.x);
        c = conv_columns * (block - group * slices) + 8 * (thread % conv_lanes);
        stretch = group * conv_stretches + thread / conv_lanes, first = stretch * rows;
        const Index left = c < channels && first < seq.tokens ? seq.tokens - first : 0;
        length = static_cast<int>(rows < left ? rows : left);
        c = length == 0 ? 0 : c, s = begin = end = 0;
        if (length == 0) return;
        s = static_cast<int>(seq.of(first));
        place(seq);
    }
    KIMIK3_HOST_DEVICE static Index slices_of(Index channels) { return (channels + conv_columns - 1) / conv_columns; }
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

/// The Eights that a thread reads next, on their way to shared memory: rows_ahead rows of count matrices, a power of
/// two; by default as many as 48 KiB a block have room for.
template <class T, int count, int rows_ahead = count * sizeof(T) <= 4 ? 8 : 2>
struct ConvRing {
    static constexpr int words = Eight<T>::words, ahead = rows_ahead;
    uint4 (*held)[count * words][conv_threads];

    __device__ void fetch(int k, int matrix, const T* from) const {
#pragma unroll
        for (int i = 0; i < words; ++i)
            copy_16_bytes(&held[k & (ahead - 1)][matrix * words + i][threadIdx.x],
                          reinterpret_cast<const uint4*>(from) + i);
    }
    __device__ void get(int k, int matrix, accumulator_t<T> (&to)[8]) const {
        Eight<T> e;
#pragma unroll
        for (int i = 0; i < words; ++i) e.word[i] = held[k & (ahead - 1)][matrix * words + i][threadIdx.x];
        e.get(to);
    }
};

template <class T>
__global__ void __launch_bounds__(conv_threads)
    conv_forward_kernel(DeviceSequences seq, Index rows, MatrixView<const T> u, MatrixView<const accumulator_t<T>> w,
                        MatrixView<T> y) {
    using A = accumulator_t<T>;
    begin_in_turn();
    using Ring = ConvRing<T, 1>;
    __shared__ uint4 held[Ring::ahead][Ring::words][conv_threads];
    const Ring ring{held};
    ConvPlace at(seq, u.cols, rows);
    if (at.length == 0) return;
    const T* next = u.row(at.first) + at.c;
    const auto fetch = [&](int k) {
        if (k < at.length) ring.fetch(k, 0, next);
        next += u.stride;
        commit_copies();
    };
    for (int k = 0; k < Ring::ahead - 1; ++k) fetch(k);
    A past[3][8];
    load_past(u, at, past);
    const ConvWeights<A> weights(w, at.c);
    T* to = y.row(at.first) + at.c;
#pragma unroll 4
    for (int k = 0; k < at.length; ++k) {
        fetch(k + Ring::ahead - 1);
        if (k == at.end) at.next_sequence(seq, k), clear_past(past);
        wait_for_copies<Ring::ahead - 1>();
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

/// borders: the rows of dy after a stretch begin at row apart (stretch + 1), either those of dy itself, or, apart = 3,
/// copies which the kernel before makes when its predecessors have ended. parts [blocks, 4, 128]: the sums of dw over a
/// block's stretches, by the distance in time.
template <class T>
__global__ void __launch_bounds__(conv_threads, 3)
    conv_backward_kernel(DeviceSequences seq, Index rows, MatrixView<const T> dy, MatrixView<const T> u,
                         MatrixView<const accumulator_t<T>> w, MatrixView<const T> borders, Index apart,
                         MatrixView<T> du, accumulator_t<T>* parts) {
    using A = accumulator_t<T>;
    using Ring = ConvRing<T, 2>;
    __shared__ uint4 held[Ring::ahead][2 * Ring::words][conv_threads];
    __shared__ uint4 after[3][2 * Ring::words][conv_threads];  // the rows after the stretch
    if (apart != 3) await_predecessor();
    ConvPlace at(seq, u.cols, rows);
    const Ring ring{held};
    const ConvRing<T, 2, 4> after_ring{after};
    const Index left = seq.tokens - at.first - at.length;
    const int more = at.length == 0 ? 0 : static_cast<int>(left < 3 ? left : 3);
    const T *next_u = u.row(at.first) + at.c, *next_dy = dy.row(at.first) + at.c;
    const auto fetch = [&](int k) {
        if (k < at.length) ring.fetch(k, 0, next_u), ring.fetch(k, 1, next_dy);
        next_u += u.stride, next_dy += dy.stride;
        commit_copies();
    };
    for (int k = 0; k < Ring::ahead - 1; ++k) fetch(k);
    A past[3][8], open[3][8], sums[conv_taps][8] = {};  // open[k]: the gradient so far of the input k + 1 rows back
    load_past(u, at, past), clear_past(open);
    const ConvWeights<A> weights(w, at.c);
    begin_in_turn();
    for (int k = 0; k < more; ++k) {
        after_ring.fetch(k, 0, u.row(at.first + at.length + k) + at.c);
        after_ring.fetch(k, 1, borders.row(apart * (at.stretch + 1) + k) + at.c);
    }
    commit_copies();
    int low = 0;                                      // the first row that open is the gradient of
    T* to = du.row(at.first) + at.c - 3 * du.stride;  // three rows back
    const auto finish_sequence = [&](int k) {
#pragma unroll
        for (int back = 0; back < 3; ++back)
            if (const int row = k - 1 - back; row >= low && row < at.length)
                Eight<T>::of(open[back]).store(to + (2 - back) * du.stride);
    };
    const auto walk = [&](int k, auto inside, A(&now)[8], A(&e)[8]) {
        A sum[8];
        convolve(weights, now, past, sum);
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const A s = sigmoid_of<T>(sum[i]);
            e[i] *= s * (A(1) + sum[i] * (A(1) - s));
        }
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            if constexpr (inside) sums[0][i] += e[i] * now[i];
#pragma unroll
            for (int back = 0; back < 3; ++back) {
                if constexpr (inside) sums[back + 1][i] += e[i] * past[back][i];
                open[back][i] += weights.of[back + 1][i] * e[i];
            }
        }
        if (k - 3 >= low) Eight<T>::of(open[2]).store(to);
        to += du.stride;
        push(past, now);
#pragma unroll
        for (int i = 0; i < 8; ++i) e[i] *= weights.of[0][i];
        push(open, e);
    };
    A now[8], e[8];
#pragma unroll 2
    for (int k = 0; k < at.length; ++k) {
        if (k == at.end) {  // rows of this sequence are complete, the next one's begin anew
            finish_sequence(k);
            at.next_sequence(seq, k);
            clear_past(past);
            low = k;
        }
        fetch(k + Ring::ahead - 1);
        wait_for_copies<Ring::ahead - 1>();
        ring.get(k, 0, now), ring.get(k, 1, e);
        walk(k, std::true_type{}, now, e);
    }
    wait_for_copies<0>();
    int k = at.length;
    for (; k < at.length + more && k < at.end; ++k) {
        after_ring.get(k - at.length, 0, now), after_ring.get(k - at.length, 1, e);
        walk(k, std::false_type{}, now, e);
    }
    finish_sequence(k);
    __syncthreads();
    leave_column_sums(conv_lanes, sums, conv_taps * conv_lanes, reinterpret_cast<A*>(held),
                      parts + Index{blockIdx.x} * conv_sums);
}

/// Whether the kernels take rows of these numbers, and whether they take these rows: conv_forward_kernel without dy.
template <class T>
inline constexpr bool has_conv_rows = sizeof(T) <= 4;
template <class T>
bool conv_in_rows(In<T> u, In<T> out, In<T> dy, In<accumulator_t<T>> w, std::initializer_list<Index> carried_rows) {
    for (const Index rows : carried_rows)
        if (rows != 0) return false;
    return w.cols <= conv_taps && in_eights<const T>({u, out}) && (dy.rows == 0 || in_eights<const T>({dy}));
}

/// How the kernels are started: with so many blocks, whose threads walk so many rows, all at the same time.
struct ConvGrid {
    Index rows, blocks;

    template <class Kernel>
    ConvGrid(Kernel kernel, Index tokens, Index channels) {
        const Index slices = ConvPlace::slices_of(channels), groups = resident_blocks(kernel, conv_threads) / slices;
        rows = (std::max)(Index{16}, ceil_div(tokens, (std::max)(Index{1}, groups) * conv_stretches));
        blocks = ceil_div(tokens, rows * conv_stretches) * slices;
    }
};

template <class T>
void conv_rows_forward(const Context<Cuda>& ctx, const DeviceSequences& seq, In<T> u, In<accumulator_t<T>> w,
                       Out<T> y) {
    constexpr auto kernel = conv_forward_kernel<T>;
    const ConvGrid grid(kernel, seq.tokens, u.cols);
    launch_early(ctx, grid.blocks, conv_threads, 0, kernel, seq, grid.rows, u, w, y);
}

template <class T>
void conv_rows_backward(const Context<Cuda>& ctx, const DeviceSequences& seq, In<T> dy, In<T> u,
                        In<accumulator_t<T>> w, Out<T> du, Out<accumulator_t<T>> dw) {
    using A = accumulator_t<T>;
    constexpr auto kernel = conv_backward_kernel<T>;
    const Index channels = u.cols, tokens = seq.tokens, taps = w.cols;
    const ConvGrid grid(kernel, tokens, channels);
    const Index length = grid.rows, border_rows = 3 * ceil_div(tokens, length);
    MatrixView<const T> borders = dy;
    const bool copied = dy.row(dy.rows) > du.data && du.row(du.rows) > dy.data;
    if (copied) {
        const MatrixView<T> to(ctx.workspace<T>(Scratch::operation, border_rows * channels), border_rows, channels);
        for_eights(ctx, border_rows, channels, [=] __device__(Index row, Index c) {
            let_next_begin();
            const Index n = row / 3 * length + row % 3;
            if (n < tokens) Eight<T>::load(dy.row(n) + c).store(to.row(row) + c);
        });
        borders = to;
    }
    A* parts = ctx.workspace<A>(Scratch::sums, grid.blocks * conv_sums);
    launch_early(ctx, grid.blocks, conv_threads, 0, kernel, seq, length, dy, u, w, borders, copied ? 3 : length, du,
                 parts);
    const Index cols = ConvPlace::slices_of(channels) * conv_sums;
    sum_parts(ctx, parts, grid.blocks * conv_sums / cols, cols, [=] __device__(Index i, A sum) {
        const Index c = i / conv_sums * conv_columns + i % conv_columns, back = i % conv_sums / conv_columns;
        if (c < channels && back < taps) dw(c, taps - 1 - back) += sum;
    });
}

}  // namespace kimik3::gpu
