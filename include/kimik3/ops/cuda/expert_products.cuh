#pragma once
// The routed experts on the GPU. How many rows an expert has is known on the device only, so its products are made
// here: a block makes 32 x 32 elements of one expert's product, and blocks beyond the last tile have nothing to do.

#include "kimik3/ops/cuda/situ.cuh"
#include "kimik3/ops/cuda/tile_product.cuh"
#include "kimik3/ops/expert_products.hpp"

namespace kimik3 {
namespace gpu {

/// Up to 32 rows of one expert; count 0: none.
struct ExpertTile {
    Index expert, first, count;

    __device__ static ExpertTile of(const VectorView<Index>& offset, Index tile) {
        for (Index e = 0; e + 1 < offset.size; ++e) {
            const Index rows = offset[e + 1] - offset[e], tiles = ceil_div(rows, 32);
            if (tile < tiles) return {e, offset[e] + 32 * tile, rows - 32 * tile < 32 ? rows - 32 * tile : 32};
            tile -= tiles;
        }
        return {0, 0, 0};
    }
};

/// c [rows, width] = or += a [rows, inner] w_e, where w_e [width, inner] (turned: [inner, width]) is the expert's
/// block of w.
template <class T, bool turned>
__global__ void expert_rows_kernel(ExpertDispatch d, MatrixView<const T> a, MatrixView<const T> w, MatrixView<T> c,
                                   Add add) {
    __shared__ T left[32][33], right[32][33];
    __shared__ ExpertTile shared_tile;
    const Index col_tiles = ceil_div(c.cols, 32), first_col = blockIdx.x % col_tiles * 32;
    if (threadIdx.x == 0) shared_tile = ExpertTile::of(d.offset, blockIdx.x / col_tiles);
    __syncthreads();
    const ExpertTile tile = shared_tile;
    if (tile.count == 0) return;
    TileProduct<T> product;
    product.dot(
        a.cols, left, right, [&](Index i, Index k) { return i < tile.count ? a(tile.first + i, k) : T(0); },
        [&](Index j, Index k) {
            if (first_col + j >= c.cols) return T(0);
            return turned ? w(tile.expert * a.cols + k, first_col + j) : w(tile.expert * c.cols + first_col + j, k);
        });
    const Index col = first_col + threadIdx.x % 32;
    for (int i = 0; i < 4; ++i) {
        const Index row = threadIdx.x / 32 + 8 * i;
        if (row >= tile.count || col >= c.cols) continue;
        T& to = c(tile.first + row, col);
        to = add == Add::yes ? to + product.value[i] : product.value[i];
    }
}

template <class T, bool turned>
void expert_rows_product(const Context<Cuda>& ctx, const ExpertDispatch& d, In<T> a, In<T> w, Out<T> c, Add add) {
    const Index blocks = (ceil_div(d.source.size, 32) + d.experts()) * ceil_div(c.cols, 32);
    if (d.source.size == 0) return;
    expert_rows_kernel<T, turned><<<exact_grid(blocks), block_threads, 0, ctx.stream()>>>(d, a, w, c, add);
    check_launch();
}

/// dw_e [R, C] += a_e^T b_e over the expert's rows of a [rows, R] and b [rows, C].
template <class T>
__global__ void expert_weights_kernel(ExpertDispatch d, MatrixView<const T> a, MatrixView<const T> b,
                                      MatrixView<T> dw) {
    __shared__ T left[32][33], right[32][33];
    const Index row_tiles = ceil_div(a.cols, 32), col_tiles = ceil_div(b.cols, 32);
    const Index e = blockIdx.x / (row_tiles * col_tiles), r0 = blockIdx.x / col_tiles % row_tiles * 32,
                c0 = blockIdx.x % col_tiles * 32;
    const Index first = d.offset[e], count = d.offset[e + 1] - first;
    if (count == 0) return;
    TileProduct<T> product;
    product.dot(
        count, left, right, [&](Index i, Index k) { return r0 + i < a.cols ? a(first + k, r0 + i) : T(0); },
        [&](Index j, Index k) { return c0 + j < b.cols ? b(first + k, c0 + j) : T(0); });
    const Index col = c0 + threadIdx.x % 32;
    for (int i = 0; i < 4; ++i) {
        const Index row = r0 + threadIdx.x / 32 + 8 * i;
        if (row < a.cols && col < b.cols) dw(e * a.cols + row, col) += product.value[i];
    }
}

template <class T>
void expert_weights_product(const Context<Cuda>& ctx, const ExpertDispatch& d, In<T> a, In<T> b, Out<T> dw) {
    const Index blocks = d.experts() * ceil_div(a.cols, 32) * ceil_div(b.cols, 32);
    expert_weights_kernel<T><<<exact_grid(blocks), block_threads, 0, ctx.stream()>>>(d, a, b, dw);
    check_launch();
}

/// to[row] = from[token of the row], zero where a row is padding.
template <class T>
void gather_rows(const Context<Cuda>& ctx, const ExpertDispatch& d, In<T> from, Out<T> to) {
    const Index chosen = d.position.cols;
    for_rows(ctx, to.rows, to.cols, [=] __device__(Index row, Team team) {
        if (row >= d.offset[d.offset.size - 1]) return;
        const Index pair = d.source[row];
        for (Index c = team.rank; c < to.cols; c += team.size) to(row, c) = pair < 0 ? T(0) : from(pair / chosen, c);
    });
}

/// to[n] = sum over slots, in their order, of p(n, slot) from[row of the pair]; p without rows: of from alone.
template <class T>
void combine_rows(const Context<Cuda>& ctx, const ExpertDispatch& d, In<T> from, In<T> p, Out<T> to) {
    for_rows(ctx, to.rows, to.cols, [=] __device__(Index n, Team team) {
        for (Index c = team.rank; c < to.cols; c += team.size) {
            T sum = T(0);
            for (Index j = 0; j < d.position.cols; ++j)
                sum += (p.rows == 0 ? T(1) : p(n, j)) * from(d.position(n, j), c);
            to(n, c) = sum;
        }
    });
}

}  // namespace gpu

template <class T>
void expert_products_forward(const Context<Cuda>& ctx, In<T> z, In<T> w1, In<T> w3, In<T> w2, SituBetas betas,
                             const ExpertDispatch& d, In<T> p, const ExpertRows<T>& s, Out<T> u) {
    const Index inner = s.gate.cols, latent = z.cols;
    require_shape("experts: w1", w1, d.experts() * inner, latent);
    require_shape("experts: w3", w3, d.experts() * inner, latent);
    require_shape("experts: w2", w2, d.experts() * latent, inner);
    require_shape("experts: p", p, z.rows, d.position.cols);
    require_shape("experts: u", u, z.rows, latent);
    gpu::gather_rows<T>(ctx, d, z, s.rows);
    gpu::expert_rows_product<T, false>(ctx, d, s.rows, w1, s.gate, Add::no);
    gpu::expert_rows_product<T, false>(ctx, d, s.rows, w3, s.up, Add::no);
    const gpu::SituNumbers<T> form(betas);
    const ExpertRows<T> rows = s;
    gpu::for_rows(ctx, s.hidden.rows, inner, [=] __device__(Index row, gpu::Team team) {
        if (row >= d.offset[d.offset.size - 1]) return;
        for (Index c = team.rank; c < inner; c += team.size)
            rows.hidden(row, c) = form.value(rows.gate(row, c), rows.up(row, c));
    });
    gpu::expert_rows_product<T, false>(ctx, d, s.hidden, w2, s.out, Add::no);
    gpu::combine_rows<T>(ctx, d, s.out, p, u);
}

template <class T>
void expert_products_backward(const Context<Cuda>& ctx, In<T> du, In<T> w1, In<T> w3, In<T> w2, SituBetas betas,
                              const ExpertDispatch& d, const ExpertRows<T>& s, Out<T> p, Out<T> dz, Out<T> dw1,
                              Out<T> dw3, Out<T> dw2) {
    const Index inner = s.gate.cols, latent = du.cols;
    require_shape("experts: dz", dz, du.rows, latent);
    require_shape("experts: p", p, du.rows, d.position.cols);
    require_shape("experts: dw1", dw1, d.experts() * inner, latent);
    require_shape("experts: dw3", dw3, d.experts() * inner, latent);
    require_shape("experts: dw2", dw2, d.experts() * latent, inner);
    const MatrixView<T> dhidden(ctx.workspace<T>(Scratch::operation, s.hidden.size()), s.hidden.rows, inner);
    gpu::gather_rows<T>(ctx, d, du, s.out);
    gpu::expert_rows_product<T, true>(ctx, d, s.out, w2, dhidden, Add::no);
    const gpu::SituNumbers<T> form(betas);
    const ExpertRows<T> rows = s;
    gpu::for_rows(ctx, s.hidden.rows, inner, [=] __device__(Index row, gpu::Team team) {
        if (row >= d.offset[d.offset.size - 1]) return;
        const Index pair = d.source[row];
        T dot = T(0), weight = T(0);
        for (Index c = team.rank; c < inner; c += team.size) dot += dhidden(row, c) * rows.hidden(row, c);
        dot = team.sum(dot);
        if (pair >= 0) {
            T& of_pair = p(pair / p.cols, pair % p.cols);
            weight = of_pair;
            team.sync();
            if (team.rank == 0) of_pair = dot;
        }
        for (Index c = team.rank; c < inner; c += team.size) {
            rows.hidden(row, c) *= weight;
            const SituGradient<T> gradient =
                form.gradient(rows.gate(row, c), rows.up(row, c), dhidden(row, c) * weight);
            rows.gate(row, c) = gradient.gate;
            rows.up(row, c) = gradient.up;
        }
    });
    gpu::expert_weights_product<T>(ctx, d, s.gate, s.rows, dw1);
    gpu::expert_weights_product<T>(ctx, d, s.up, s.rows, dw3);
    gpu::expert_weights_product<T>(ctx, d, s.out, s.hidden, dw2);
    gpu::expert_rows_product<T, true>(ctx, d, s.gate, w1, s.out, Add::no);
    gpu::expert_rows_product<T, true>(ctx, d, s.up, w3, s.out, Add::yes);
    gpu::combine_rows<T>(ctx, d, s.out, {}, dz);
}

}  // namespace kimik3
