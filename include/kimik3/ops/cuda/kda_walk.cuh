#pragma once
// Kimi Delta Attention token by token on the GPU (formulas in ops/kda_recurrent.hpp), behind all three KDA
// operations. The columns of a state never meet, so a block owns 32 of them for one head of one sequence: a lane is a
// column, warp w holds the rows w, w + 8, ... in registers. Backward walks the segments in reverse: it takes the
// saved state before a segment, walks it forward once more, keeps every token's state in scratch memory, and walks it
// back. What it sums over value channels (dq, dk, dg, dbeta) leaves the blocks as parts, which are added in the order
// of the blocks.

#include "kimik3/ops/cuda/carried.cuh"
#include "kimik3/ops/kda_operands.hpp"

namespace kimik3::gpu {

inline constexpr int walk_columns = 32, walk_warps = 8;

struct KdaSizes : detail::KdaShape {
    KIMIK3_HOST_DEVICE Index tiles() const { return ceil_div(value, walk_columns); }
};

/// One block's place: 32 value columns of a head of a sequence.
struct KdaPlace {
    Index s, h, tile;
    int lane, warp;
    Index column;  // of the head's V
    bool inside;   // column < V

    __device__ explicit KdaPlace(const KdaSizes& sizes)
        : s(blockIdx.x / (sizes.tiles() * sizes.heads)),
          h(blockIdx.x / sizes.tiles() % sizes.heads),
          tile(blockIdx.x % sizes.tiles()),
          lane(threadIdx.x % 32),
          warp(threadIdx.x / 32),
          column(tile * walk_columns + lane),
          inside(column < sizes.value) {}
};

/// The sum over the warps of a lane's values, for every thread.
template <class T>
__device__ T sum_of_warps(T value, T (*parts)[walk_columns], int warp, int lane) {
    __syncthreads();
    parts[warp][lane] = value;
    __syncthreads();
    T total = T(0);
    for (int w = 0; w < walk_warps; ++w) total += parts[w][lane];
    return total;
}

/// A token's q K^-1/2, k and e^g of one head.
template <class T>
struct KdaRow {
    T q[256], k[256], decay[256];

    __device__ void load(const KdaInput<T>& in, const KdaSizes& sizes, Index n, Index h) {
        __syncthreads();
        const T scale = T(1) / sqrt(static_cast<T>(sizes.key));
        for (Index a = threadIdx.x; a < sizes.key; a += blockDim.x) {
            const Index at = h * sizes.key + a;
            q[a] = in.q(n, at) * scale;
            k[a] = in.k(n, at);
            decay[a] = exp(in.g(n, at));
        }
        __syncthreads();
    }
};

/// state takes in the token of row; returns u of the lane's column.
template <class T, int rows>
__device__ T walk_step(T (&state)[rows], const KdaRow<T>& row, Index key, T v, T beta, T (*parts)[walk_columns],
                       int warp, int lane) {
    T predicted = T(0);
#pragma unroll
    for (int i = 0; i < rows; ++i) {
        const int a = warp + walk_warps * i;
        if (a < key) {
            state[i] *= row.decay[a];
            predicted += state[i] * row.k[a];
        }
    }
    const T u = beta * (v - sum_of_warps(predicted, parts, warp, lane));
#pragma unroll
    for (int i = 0; i < rows; ++i) {
        const int a = warp + walk_warps * i;
        if (a < key) state[i] += row.k[a] * u;
    }
    return u;
}

template <class T, int rows>
__device__ void load_state(T (&state)[rows], const T* from, const KdaSizes& sizes, const KdaPlace& at) {
#pragma unroll
    for (int i = 0; i < rows; ++i) {
        const Index a = at.warp + walk_warps * i;
        state[i] = from != nullptr && at.inside && a < sizes.key ? from[a * sizes.value + at.column] : T(0);
    }
}
template <class T, int rows>
__device__ void store_state(const T (&state)[rows], T* to, const KdaSizes& sizes, const KdaPlace& at) {
#pragma unroll
    for (int i = 0; i < rows; ++i) {
        const Index a = at.warp + walk_warps * i;
        if (at.inside && a < sizes.key) to[a * sizes.value + at.column] = state[i];
    }
}

/// Rows of saved states before those of sequence s.
__device__ inline Index first_segment(const DeviceSequences& seq, Index s, Index segment) {
    Index before = 0;
    for (Index earlier = 0; earlier < s; ++earlier) before += ceil_div(seq.length(earlier), segment);
    return before;
}

/// o without data is not written; states without rows are not kept.
template <class T, int rows>
__global__ void __launch_bounds__(256)
    walk_forward_kernel(KdaSizes sizes, DeviceSequences seq, Index segment, KdaInput<T> in, MatrixView<T> o,
                        MatrixView<T> final, MatrixView<T> states) {
    __shared__ KdaRow<T> row;
    __shared__ T parts[walk_warps][walk_columns];
    const KdaPlace at(sizes);
    const T* from = carried_in<T>(seq, at.s, in.initial);
    T state[rows];
    load_state(state, from == nullptr ? nullptr : from + at.h * sizes.state(), sizes, at);
    Index saved = states.rows == 0 ? 0 : first_segment(seq, at.s, segment);
    for (Index n = seq.begin(at.s); n < seq.end(at.s); ++n) {
        if (states.rows != 0 && (n - seq.begin(at.s)) % segment == 0)
            store_state(state, states.row(saved++) + at.h * sizes.state(), sizes, at);
        row.load(in, sizes, n, at.h);
        const T v = at.inside ? in.v(n, at.h * sizes.value + at.column) : T(0);
        walk_step(state, row, sizes.key, v, in.beta(n, at.h), parts, at.warp, at.lane);
        if (o.data == nullptr) continue;
        T read = T(0);
#pragma unroll
        for (int i = 0; i < rows; ++i) {
            const int a = at.warp + walk_warps * i;
            if (a < sizes.key) read += state[i] * row.q[a];
        }
        read = sum_of_warps(read, parts, at.warp, at.lane);
        if (at.warp == 0 && at.inside) o(n, at.h * sizes.value + at.column) = read;
    }
    T* to = carried_out<T>(seq, at.s, in.initial, final);
    if (to != nullptr) store_state(state, to + at.h * sizes.state(), sizes, at);
}

/// What the blocks of backward leave for the sums over value channels: [tiles] parts of each.
template <class T>
struct KdaParts {
    T *q, *k, *g, *beta;  // [tiles, N, H K] three times, [tiles, N, H]
    T* dv;                // [N, H V] whole
    T* walked;            // [blocks, segment, K, 32] the state before every token of a segment
};

/// d_o and the gradients of what is summed over value channels go by parts.
template <class T, int rows>
__global__ void __launch_bounds__(256)
    walk_backward_kernel(KdaSizes sizes, DeviceSequences seq, Index segment, KdaInput<T> in, MatrixView<const T> states,
                         MatrixView<const T> d_o, MatrixView<const T> dfinal, MatrixView<T> dinitial, KdaParts<T> to) {
    __shared__ KdaRow<T> row;
    __shared__ T parts[walk_warps][walk_columns];
    const KdaPlace at(sizes);
    const Index key = sizes.key, wide = sizes.heads * key, length = seq.length(at.s),
                chunks = ceil_div(length, segment);
    const Index saved = first_segment(seq, at.s, segment);
    T* walked = to.walked + blockIdx.x * segment * key * walk_columns;
    T state[rows], grad[rows];
    load_state(grad, dfinal.rows == 0 ? nullptr : dfinal.row(seq.slots[at.s]) + at.h * sizes.state(), sizes, at);
    for (Index chunk = chunks; chunk-- > 0;) {
        const Index first = seq.begin(at.s) + chunk * segment,
                    count = length - chunk * segment < segment ? length - chunk * segment : segment;
        load_state(state, states.row(saved + chunk) + at.h * sizes.state(), sizes, at);
        for (Index t = 0; t < count; ++t) {
#pragma unroll
            for (int i = 0; i < rows; ++i) {
                const Index a = at.warp + walk_warps * i;
                if (a < key) walked[(t * key + a) * walk_columns + at.lane] = state[i];
            }
            row.load(in, sizes, first + t, at.h);
            const T v = at.inside ? in.v(first + t, at.h * sizes.value + at.column) : T(0);
            walk_step(state, row, key, v, in.beta(first + t, at.h), parts, at.warp, at.lane);
        }
        for (Index t = count; t-- > 0;) {
            const Index n = first + t, col = at.h * sizes.value + at.column;
            row.load(in, sizes, n, at.h);
            const T v = at.inside ? in.v(n, col) : T(0), beta = in.beta(n, at.h),
                    gradient = at.inside ? d_o(n, col) : T(0);
            T predicted = T(0), du = T(0);
#pragma unroll
            for (int i = 0; i < rows; ++i) {
                const int a = at.warp + walk_warps * i;
                state[i] = a < key ? row.decay[a] * walked[(t * key + a) * walk_columns + at.lane] : T(0);
                if (a < key) {
                    grad[i] += row.q[a] * gradient;
                    predicted += state[i] * row.k[a];
                    du += grad[i] * row.k[a];
                }
            }
            const T rest = v - sum_of_warps(predicted, parts, at.warp, at.lane), u = beta * rest;
            du = sum_of_warps(du, parts, at.warp, at.lane);
            const T dv = beta * du;
            if (at.warp == 0 && at.inside) to.dv[n * sizes.heads * sizes.value + col] = dv;
            if (at.warp == 0) {
                const T dbeta = warp_sum(du * rest);
                if (at.lane == 0) to.beta[(at.tile * seq.tokens + n) * sizes.heads + at.h] = dbeta;
            }
            const T scale = T(1) / sqrt(static_cast<T>(key));
#pragma unroll
            for (int i = 0; i < rows; ++i) {
                const int a = at.warp + walk_warps * i;
                if (a >= key) continue;
                const T dq = warp_sum((state[i] + row.k[a] * u) * gradient) * scale;
                const T before = grad[i] - row.k[a] * dv;
                const T dk = warp_sum(grad[i] * u - state[i] * dv), dg = warp_sum(before * state[i]);
                grad[i] = row.decay[a] * before;
                if (at.lane == 0) {
                    const Index place = (at.tile * seq.tokens + n) * wide + at.h * key + a;
                    to.q[place] = dq, to.k[place] = dk, to.g[place] = dg;
                }
            }
        }
    }
    if (dinitial.rows != 0) store_state(grad, dinitial.row(seq.slots[at.s]) + at.h * sizes.state(), sizes, at);
}

/// call(std::integral_constant<int, rows>) with registers enough for the rows of a warp.
template <class Call>
void with_rows(Index key, Call&& call) {
    if (key <= 32)
        call(std::integral_constant<int, 4>{});
    else if (key <= 64)
        call(std::integral_constant<int, 8>{});
    else if (key <= 128)
        call(std::integral_constant<int, 16>{});
    else
        call(std::integral_constant<int, 32>{});
}

template <class T>
void walk_forward(const Context<Cuda>& ctx, const Sequences& seq, const KdaSizes& sizes, Index segment,
                  const KdaInput<T>& in, MatrixView<T> o, MatrixView<T> final, MatrixView<T> states) {
    const Index blocks = seq.count() * sizes.heads * sizes.tiles();
    if (blocks > 0) {
        with_rows(sizes.key, [&](auto rows) {
            walk_forward_kernel<T, rows><<<exact_grid(blocks), 256, 0, ctx.stream()>>>(
                sizes, DeviceSequences(ctx, seq), segment, in, o, final, states);
        });
        check_launch();
    }
    if (o.data != nullptr) clear_rows_from(ctx, seq.tokens(), o);
}

/// to_n = sum of the parts of row n, for the rows of the sequences.
template <class T>
void add_parts(const Context<Cuda>& ctx, const T* from, Index parts, Index tokens, MatrixView<T> to) {
    const Index cols = to.cols;
    for_each(ctx, tokens * cols, [=] __device__(Index i) {
        T sum = T(0);
        for (Index p = 0; p < parts; ++p) sum += from[p * tokens * cols + i];
        to(i / cols, i % cols) = sum;
    });
    clear_rows_from(ctx, tokens, to);
}

template <class T>
void walk_backward(const Context<Cuda>& ctx, const Sequences& seq, const KdaSizes& sizes, Index segment,
                   const KdaInput<T>& in, MatrixView<const T> states, MatrixView<const T> d_o,
                   MatrixView<const T> dfinal, const KdaGradient<T>& gradient) {
    const Index blocks = seq.count() * sizes.heads * sizes.tiles(), tokens = seq.tokens(), tiles = sizes.tiles(),
                wide = sizes.heads * sizes.key;
    const Index deep = sizes.heads * sizes.value;
    T* memory = ctx.workspace<T>(Scratch::walk, tiles * tokens * (3 * wide + sizes.heads) + tokens * deep +
                                                    blocks * segment * sizes.key * walk_columns);
    KdaParts<T> parts{};
    parts.q = memory, parts.k = parts.q + tiles * tokens * wide, parts.g = parts.k + tiles * tokens * wide;
    parts.beta = parts.g + tiles * tokens * wide, parts.dv = parts.beta + tiles * tokens * sizes.heads;
    parts.walked = parts.dv + tokens * deep;
    if (blocks > 0) {
        with_rows(sizes.key, [&](auto rows) {
            walk_backward_kernel<T, rows><<<exact_grid(blocks), 256, 0, ctx.stream()>>>(
                sizes, DeviceSequences(ctx, seq), segment, in, states, d_o, dfinal, gradient.initial, parts);
        });
        check_launch();
    }
    add_parts<T>(ctx, parts.q, tiles, tokens, gradient.q);
    add_parts<T>(ctx, parts.k, tiles, tokens, gradient.k);
    add_parts<T>(ctx, parts.g, tiles, tokens, gradient.g);
    add_parts<T>(ctx, parts.beta, tiles, tokens, gradient.beta);
    add_parts<T>(ctx, parts.dv, 1, tokens, gradient.v);
}

}  // namespace kimik3::gpu
