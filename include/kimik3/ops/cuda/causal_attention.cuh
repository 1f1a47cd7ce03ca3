#pragma once
// Causal attention on the GPU: a block owns a tile of 32 queries (forward, dq) or of 32 keys (dk, dv) of one head of
// one sequence and walks over the tiles of the other kind; a tile of scores passes through shared memory. Backward
// keeps a copy of q, which dq may replace, and each head's share of dk_shared in scratch memory. In bf16, where the GPU
// has warpgroups and the heads suit them, causal_attention_*_bf16.cuh take over.

#include "kimik3/ops/causal_attention.hpp"
#include "kimik3/ops/cuda/causal_attention_backward_bf16.cuh"
#include "kimik3/ops/cuda/causal_attention_forward_bf16.cuh"
#include "kimik3/ops/cuda/tile_product.cuh"

namespace kimik3 {
namespace gpu {

inline constexpr Index attention_tile = 32;

/// One head of one sequence; rows count from the sequence's first.
template <class T>
struct AttentionHead {
    using A = accumulator_t<T>;
    MlaHeads heads;
    Index first, tokens, h;
    MatrixView<const T> q, kv, k_shared;

    __device__ A query(Index i, Index c) const { return q(first + i, h * heads.key() + c); }
    __device__ A key(Index j, Index c) const {
        return c < heads.nope ? kv(first + j, h * (heads.nope + heads.value) + c) : k_shared(first + j, c - heads.nope);
    }
    __device__ A value(Index j, Index c) const {
        return kv(first + j, h * (heads.nope + heads.value) + heads.nope + c);
    }
};

/// The places of blocks: tiles of every head of every sequence, counted by the longest.
struct AttentionPlace {
    Index s, h, tile;

    __device__ AttentionPlace(Index heads, Index tiles)
        : s(blockIdx.x / tiles / heads), h(blockIdx.x / tiles % heads), tile(blockIdx.x % tiles) {}
};

/// to [32, width] += w [32, 32] b [32, width], for the pairs that allowed(row, j) names; element by element in one
/// thread.
template <class T, class B, class Allowed>
__device__ void add_tile_product(Index width, const T (*w)[33], T* to, B b, Allowed allowed) {
    for (Index e = threadIdx.x; e < 32 * width; e += blockDim.x) {
        const Index row = e / width, c = e % width;
        T sum = T(0);
        for (Index j = 0; j < 32; ++j)
            if (allowed(row, j)) sum += w[row][j] * b(j, c);
        to[e] += sum;
    }
}

/// Shared memory: three tiles, three columns of 32, and the sums [32, width].
template <class T>
Index attention_shared(Index width) {
    return (3 * 32 * 33 + 3 * 32 + 32 * width) * static_cast<Index>(sizeof(T));
}

template <class T>
struct AttentionShared {
    T (*left)[33], (*right)[33], (*scores)[33];
    T *column, *other, *sums;

    __device__ AttentionShared() {
        extern __shared__ __align__(16) unsigned char memory[];
        T* at = reinterpret_cast<T*>(memory);
        left = reinterpret_cast<T(*)[33]>(at), right = left + 32, scores = right + 32;
        column = reinterpret_cast<T*>(scores + 32), other = column + 32, sums = other + 64;
    }
};

template <class T>
__global__ void attention_forward_kernel(MlaHeads heads, Index tiles, DeviceSequences seq,
                                         accumulator_t<T> scale, MatrixView<const T> q, MatrixView<const T> kv,
                                         MatrixView<const T> k_shared, MatrixView<T> o,
                                         MatrixView<accumulator_t<T>> lse) {
    using A = accumulator_t<T>;
    const AttentionPlace at(heads.count, tiles);
    const Index first = seq.begin(at.s), tokens = seq.length(at.s), top = at.tile * attention_tile, width = heads.value;
    if (top >= tokens) return;
    const AttentionHead<T> in{heads, first, tokens, at.h, q, kv, k_shared};
    const AttentionShared<A> shared;
    A *highest = shared.column, *total = shared.other;
    const int row = threadIdx.x / 32, col = threadIdx.x % 32;
    for (Index e = threadIdx.x; e < 32 * width; e += blockDim.x) shared.sums[e] = A(0);
    if (threadIdx.x < 32) highest[threadIdx.x] = -INFINITY, total[threadIdx.x] = A(0);
    for (Index j0 = 0; j0 <= top; j0 += attention_tile) {
        const auto sees = [=](Index i, Index j) { return top + i < tokens && j0 + j <= top + i; };
        TileProduct<A> s;
        s.dot(
            heads.key(), shared.left, shared.right,
            [&](Index i, Index c) { return top + i < tokens ? in.query(top + i, c) : A(0); },
            [&](Index j, Index c) { return j0 + j < tokens ? in.key(j0 + j, c) : A(0); });
        for (int i = 0; i < 4; ++i) {
            const int r = row + 8 * i;
            const bool seen = sees(r, col);
            const A score = seen ? s.value[i] * scale : -INFINITY, before = highest[r];
            A now = warp_max(score);
            now = before > now ? before : now;
            const A weight = seen ? exp(score - now) : A(0), fresh = warp_sum(weight),
                    fade = now == -INFINITY ? A(1) : exp(before - now);
            shared.scores[r][col] = weight;
            for (Index c = col; c < width; c += 32) shared.sums[r * width + c] *= fade;
            __syncwarp();
            if (col == 0) highest[r] = now, total[r] = total[r] * fade + fresh;
        }
        __syncthreads();
        add_tile_product(
            width, shared.scores, shared.sums, [&](Index j, Index c) { return in.value(j0 + j, c); }, sees);
        __syncthreads();
    }
    for (Index e = threadIdx.x; e < 32 * width; e += blockDim.x) {
        const Index i = e / width, c = e % width;
        if (top + i < tokens) o(first + top + i, at.h * width + c) = static_cast<T>(shared.sums[e] / total[i]);
    }
    if (threadIdx.x < 32 && top + threadIdx.x < tokens)
        lse(first + top + threadIdx.x, at.h) = highest[threadIdx.x] + log(total[threadIdx.x]);
}

/// What both backward kernels read.
template <class T>
struct AttentionBackward {
    using A = accumulator_t<T>;
    MlaHeads heads;
    Index tiles;
    DeviceSequences seq;
    A scale;
    MatrixView<const T> d_o, q, kv, k_shared;
    MatrixView<const A> lse, delta;

    /// P and dS of a tile of queries from row i0 and keys from row j0: P into w, dS returned in s.
    __device__ void weights(const AttentionHead<T>& in, const AttentionShared<A>& shared, Index i0, Index j0, A (&p)[4],
                            A (&ds)[4]) const {
        const int row = threadIdx.x / 32, col = threadIdx.x % 32;
        TileProduct<A> s, dp;
        s.dot(
            heads.key(), shared.left, shared.right,
            [&](Index i, Index c) { return i0 + i < in.tokens ? in.query(i0 + i, c) : A(0); },
            [&](Index j, Index c) { return j0 + j < in.tokens ? in.key(j0 + j, c) : A(0); });
        dp.dot(
            heads.value, shared.left, shared.right,
            [&](Index i, Index c) {
                return i0 + i < in.tokens ? A(d_o(in.first + i0 + i, in.h * heads.value + c)) : A(0);
            },
            [&](Index j, Index c) { return j0 + j < in.tokens ? in.value(j0 + j, c) : A(0); });
        for (int i = 0; i < 4; ++i) {
            const Index query = i0 + row + 8 * i;
            const bool seen = query < in.tokens && j0 + col <= query;
            p[i] = seen ? exp(s.value[i] * scale - lse(in.first + query, in.h)) : A(0);
            ds[i] = seen ? scale * p[i] * (dp.value[i] - delta(in.first + query, in.h)) : A(0);
        }
    }
};

template <class T>
__global__ void attention_dq_kernel(AttentionBackward<T> b, MatrixView<T> dq) {
    using A = accumulator_t<T>;
    const AttentionPlace at(b.heads.count, b.tiles);
    const Index first = b.seq.begin(at.s), tokens = b.seq.length(at.s), top = at.tile * attention_tile,
                width = b.heads.key();
    if (top >= tokens) return;
    const AttentionHead<T> in{b.heads, first, tokens, at.h, b.q, b.kv, b.k_shared};
    const AttentionShared<A> shared;
    const int row = threadIdx.x / 32, col = threadIdx.x % 32;
    for (Index e = threadIdx.x; e < 32 * width; e += blockDim.x) shared.sums[e] = A(0);
    for (Index j0 = 0; j0 <= top; j0 += attention_tile) {
        A p[4], ds[4];
        b.weights(in, shared, top, j0, p, ds);
        for (int i = 0; i < 4; ++i) shared.scores[row + 8 * i][col] = ds[i];
        __syncthreads();
        add_tile_product(
            width, shared.scores, shared.sums, [&](Index j, Index c) { return in.key(j0 + j, c); },
            [=](Index i, Index j) { return top + i < tokens && j0 + j <= top + i; });
        __syncthreads();
    }
    for (Index e = threadIdx.x; e < 32 * width; e += blockDim.x) {
        const Index i = e / width, c = e % width;
        if (top + i < tokens) dq(first + top + i, at.h * width + c) = static_cast<T>(shared.sums[e]);
    }
}

/// shares [H, N, r]: each head's part of dk_shared.
template <class T>
__global__ void attention_dkv_kernel(AttentionBackward<T> b, MatrixView<T> dkv, accumulator_t<T>* shares,
                                     Index rows) {
    using A = accumulator_t<T>;
    const AttentionPlace at(b.heads.count, b.tiles);
    const Index first = b.seq.begin(at.s), tokens = b.seq.length(at.s), j0 = at.tile * attention_tile;
    const Index keys = b.heads.key(), values = b.heads.value, shared_width = b.heads.shared, nope = b.heads.nope;
    if (j0 >= tokens) return;
    const AttentionHead<T> in{b.heads, first, tokens, at.h, b.q, b.kv, b.k_shared};
    const AttentionShared<A> shared;
    A *dk = shared.sums, *dv = shared.sums + 32 * keys;
    const int row = threadIdx.x / 32, col = threadIdx.x % 32;
    for (Index e = threadIdx.x; e < 32 * (keys + values); e += blockDim.x) shared.sums[e] = A(0);
    for (Index top = j0; top < tokens; top += attention_tile) {
        const auto seen_by = [=](Index j, Index i) { return top + i < tokens && j0 + j <= top + i; };
        A p[4], ds[4];
        b.weights(in, shared, top, j0, p, ds);
        for (int i = 0; i < 4; ++i) shared.scores[col][row + 8 * i] = p[i];
        __syncthreads();
        add_tile_product(
            values, shared.scores, dv, [&](Index i, Index c) { return A(b.d_o(first + top + i, at.h * values + c)); },
            seen_by);
        __syncthreads();
        for (int i = 0; i < 4; ++i) shared.scores[col][row + 8 * i] = ds[i];
        __syncthreads();
        add_tile_product(
            keys, shared.scores, dk, [&](Index i, Index c) { return in.query(top + i, c); }, seen_by);
        __syncthreads();
    }
    for (Index e = threadIdx.x; e < 32 * keys; e += blockDim.x) {
        const Index j = e / keys, c = e % keys, n = first + j0 + j;
        if (j0 + j >= tokens) continue;
        if (c < nope)
            dkv(n, at.h * (nope + values) + c) = static_cast<T>(dk[e]);
        else
            shares[(at.h * rows + n) * shared_width + c - nope] = dk[e];
    }
    for (Index e = threadIdx.x; e < 32 * values; e += blockDim.x) {
        const Index j = e / values, c = e % values;
        if (j0 + j < tokens) dkv(first + j0 + j, at.h * (nope + values) + nope + c) = static_cast<T>(dv[e]);
    }
}

/// Starts a kernel with a block a tile of every head of every sequence; sums: columns of its sums.
template <class T, class... Parameters, class... Arguments>
void launch_attention(const Context<Cuda>& ctx, void (*kernel)(Parameters...), Index blocks, Index sums,
                      const Arguments&... arguments) {
    if (blocks == 0) return;
    const int bytes = static_cast<int>(attention_shared<accumulator_t<T>>(sums));
    ctx.make_current();
    KIMIK3_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
    kernel<<<exact_grid(blocks), block_threads, to_size(bytes), ctx.stream()>>>(arguments...);
    check_launch();
}

}  // namespace gpu

template <class T>
void causal_attention_forward(const Context<Cuda>& ctx, const Sequences& seq, const MlaHeads& heads, In<T> q, In<T> kv,
                              In<T> k_shared, Out<T> o, Out<accumulator_t<T>> lse) {
    detail::check_attention<T>(seq, heads, q, kv, k_shared, o, lse);
    ctx.make_current();
    gpu::clear_rows_from(ctx, seq.tokens(), o);
    gpu::clear_rows_from(ctx, seq.tokens(), lse);
    if constexpr (std::is_same_v<T, bf16>)
        if (gpu::attention::forward_suits(heads, {q, kv, k_shared, o}))
            return gpu::attention::launch_forward(ctx, seq, heads, q, kv, k_shared, o, lse);
    const Index tiles = ceil_div(seq.longest(), gpu::attention_tile);
    gpu::launch_attention<T>(ctx, gpu::attention_forward_kernel<T>, seq.count() * heads.count * tiles, heads.value,
                             heads, tiles, DeviceSequences(ctx, seq), static_cast<accumulator_t<T>>(heads.scale()),
                             MatrixView<const T>(q), MatrixView<const T>(kv), MatrixView<const T>(k_shared), o, lse);
}

template <class T>
void causal_attention_backward(const Context<Cuda>& ctx, const Sequences& seq, const MlaHeads& heads, In<T> d_o,
                               In<T> q, In<T> kv, In<T> k_shared, In<T> o, In<accumulator_t<T>> lse, Out<T> dq,
                               Out<T> dkv, Out<T> dk_shared) {
    detail::check_attention<T>(seq, heads, q, kv, k_shared, o, lse);
    detail::check_attention<T>(seq, heads, dq, dkv, dk_shared, d_o, lse);
    ctx.make_current();
    for (MatrixView<T> m : {dq, dkv, dk_shared}) gpu::clear_rows_from(ctx, seq.tokens(), m);
    if constexpr (std::is_same_v<T, bf16>)
        if (gpu::attention::backward_suits(heads, {d_o, q, kv, k_shared, o, dq, dkv, dk_shared}))
            return gpu::attention::launch_backward(ctx, seq, heads, d_o, q, kv, k_shared, o, lse, dq, dkv, dk_shared);
    const Index rows = seq.tokens(), tiles = ceil_div(seq.longest(), gpu::attention_tile),
                blocks = seq.count() * heads.count * tiles;
    const Index width = heads.shared, values = heads.value, count = heads.count;
    using A = accumulator_t<T>;
    A* memory = ctx.workspace<A>(Scratch::operation, rows * (q.cols + count + count * width));
    const MatrixView<A> delta(memory, rows, count);
    A* shares = delta.data + delta.size();
    const MatrixView<T> query(reinterpret_cast<T*>(shares + rows * count * width), rows, q.cols);
    copy<T>(ctx, q.middle_rows(0, rows), query);
    gpu::for_rows(ctx, rows * count, values, [=] __device__(Index row, gpu::Team team) {
        const Index n = row / count, h = row % count;
        A sum = A(0);
        for (Index c = h * values + team.rank; c < (h + 1) * values; c += team.size) sum += A(d_o(n, c)) * A(o(n, c));
        sum = team.sum(sum);
        if (team.rank == 0) delta(n, h) = sum;
    });
    const gpu::AttentionBackward<T> b{
        heads, tiles, DeviceSequences(ctx, seq), static_cast<A>(heads.scale()), d_o, query, kv, k_shared, lse, delta};
    gpu::launch_attention<T>(ctx, gpu::attention_dq_kernel<T>, blocks, heads.key(), b, dq);
    gpu::launch_attention<T>(ctx, gpu::attention_dkv_kernel<T>, blocks, heads.key() + values, b, dkv, shares, rows);
    gpu::for_each(ctx, rows * width, [=] __device__(Index i) {
        A sum = A(0);
        for (Index h = 0; h < count; ++h) sum += shares[h * rows * width + i];
        dk_shared(i / width, i % width) = static_cast<T>(sum);
    });
}

}  // namespace kimik3
