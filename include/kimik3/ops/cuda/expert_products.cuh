#pragma once
// The routed experts on the GPU. How many rows an expert has is known on the device only, so its products are made
// here: a block makes 32 x 32 elements of one expert's product, and blocks beyond the last tile have nothing to do.

#include "kimik3/ops/cuda/expert_products_bf16.cuh"
#include "kimik3/ops/cuda/tile_product.cuh"
#include "kimik3/ops/expert_products.hpp"
#include "kimik3/ops/matmul.hpp"

namespace kimik3 {

/// The latents are gathered again in backward, and the hidden values made again.
template <class T>
struct ExpertRows<Cuda, T> {
    MatrixView<T> gate, up;  // [rows, F]

    static ExpertRows bind(Arena& arena, Index rows, Index, Index inner) {
        return {arena.matrix<T>(rows, inner), arena.matrix<T>(rows, inner)};
    }
};

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
    using A = accumulator_t<T>;
    __shared__ A left[32][33], right[32][33];
    __shared__ ExpertTile shared_tile;
    const Index col_tiles = ceil_div(c.cols, 32), first_col = blockIdx.x % col_tiles * 32;
    if (threadIdx.x == 0) shared_tile = ExpertTile::of(d.offset, blockIdx.x / col_tiles);
    __syncthreads();
    const ExpertTile tile = shared_tile;
    if (tile.count == 0) return;
    TileProduct<A> product;
    product.dot(
        a.cols, left, right,
        [&](Index i, Index k) { return i < tile.count ? static_cast<A>(a(tile.first + i, k)) : A(0); },
        [&](Index j, Index k) {
            if (first_col + j >= c.cols) return A(0);
            return static_cast<A>(turned ? w(tile.expert * a.cols + k, first_col + j)
                                         : w(tile.expert * c.cols + first_col + j, k));
        });
    const Index col = first_col + threadIdx.x % 32;
    for (int i = 0; i < 4; ++i) {
        const Index row = threadIdx.x / 32 + 8 * i;
        if (row >= tile.count || col >= c.cols) continue;
        T& to = c(tile.first + row, col);
        to = static_cast<T>(add == Add::yes ? static_cast<A>(to) + product.value[i] : product.value[i]);
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
template <class T, class A>
__global__ void expert_weights_kernel(ExpertDispatch d, MatrixView<const T> a, MatrixView<const T> b,
                                      MatrixView<A> dw) {
    __shared__ A left[32][33], right[32][33];
    const Index row_tiles = ceil_div(a.cols, 32), col_tiles = ceil_div(b.cols, 32);
    const Index e = blockIdx.x / (row_tiles * col_tiles), r0 = blockIdx.x / col_tiles % row_tiles * 32,
                c0 = blockIdx.x % col_tiles * 32;
    const Index first = d.offset[e], count = d.offset[e + 1] - first;
    if (count == 0) return;
    TileProduct<A> product;
    product.dot(
        count, left, right,
        [&](Index i, Index k) { return r0 + i < a.cols ? static_cast<A>(a(first + k, r0 + i)) : A(0); },
        [&](Index j, Index k) { return c0 + j < b.cols ? static_cast<A>(b(first + k, c0 + j)) : A(0); });
    const Index col = c0 + threadIdx.x % 32;
    for (int i = 0; i < 4; ++i) {
        const Index row = r0 + threadIdx.x / 32 + 8 * i;
        if (row < a.cols && col < b.cols) dw(e * a.cols + row, col) += product.value[i];
    }
}

template <class T>
void expert_weights_product(const Context<Cuda>& ctx, const ExpertDispatch& d, In<T> a, In<T> b,
                            Out<accumulator_t<T>> dw) {
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
        for (Index c = team.rank; c < to.cols; c += team.size)
            to(row, c) = pair < 0 ? static_cast<T>(0) : from(pair / chosen, c);
    });
}

/// to[n] = sum over slots, in their order, of p(n, slot) from[row of the pair]; p without rows: of from alone.
template <class T>
void combine_rows(const Context<Cuda>& ctx, const ExpertDispatch& d, In<T> from, In<accumulator_t<T>> p, Out<T> to) {
    using A = accumulator_t<T>;
    for_rows(ctx, to.rows, to.cols, [=] __device__(Index n, Team team) {
        for (Index c = team.rank; c < to.cols; c += team.size) {
            A sum = A(0);
            for (Index j = 0; j < d.position.cols; ++j)
                sum += (p.rows == 0 ? A(1) : p(n, j)) * static_cast<A>(from(d.position(n, j), c));
            to(n, c) = static_cast<T>(sum);
        }
    });
}

template <class T>
void plain_experts_forward(const Context<Cuda>& ctx, In<T> z, In<T> w1, In<T> w3, In<T> w2, SituBetas betas,
                           const ExpertDispatch& d, In<accumulator_t<T>> p, const ExpertRows<Cuda, T>& s, Out<T> u) {
    const Index all = d.source.size, inner = s.gate.cols, latent = z.cols;
    T* scratch = ctx.workspace<T>(Scratch::operation, all * (2 * latent + inner));
    const MatrixView<T> rows(scratch, all, latent), out(rows.row(all), all, latent), hidden(out.row(all), all, inner);
    gather_rows<T>(ctx, d, z, rows);
    expert_rows_product<T, false>(ctx, d, rows, w1, s.gate, Add::no);
    expert_rows_product<T, false>(ctx, d, rows, w3, s.up, Add::no);
    const SituNumbers<accumulator_t<T>> form(betas);
    const ExpertRows<Cuda, T> saved = s;
    for_rows(ctx, all, inner, [=] __device__(Index row, Team team) {
        if (row >= d.offset[d.offset.size - 1]) return;
        for (Index c = team.rank; c < inner; c += team.size)
            hidden(row, c) = static_cast<T>(form.value(saved.gate(row, c), saved.up(row, c)));
    });
    expert_rows_product<T, false>(ctx, d, hidden, w2, out, Add::no);
    combine_rows<T>(ctx, d, out, p, u);
}

template <class T>
void plain_experts_backward(const Context<Cuda>& ctx, In<T> z, In<T> du, In<T> w1, In<T> w3, In<T> w2, SituBetas betas,
                            const ExpertDispatch& d, const ExpertRows<Cuda, T>& s, Out<accumulator_t<T>> p, Out<T> dz,
                            Out<accumulator_t<T>> dw1, Out<accumulator_t<T>> dw3, Out<accumulator_t<T>> dw2) {
    using A = accumulator_t<T>;
    const Index all = d.source.size, inner = s.gate.cols, latent = du.cols;
    T* scratch = ctx.workspace<T>(Scratch::operation, all * (latent + 2 * inner));
    const MatrixView<T> rows(scratch, all, latent), hidden(rows.row(all), all, inner),
        dhidden(hidden.row(all), all, inner);
    gather_rows<T>(ctx, d, du, rows);
    expert_rows_product<T, true>(ctx, d, rows, w2, dhidden, Add::no);
    const SituNumbers<A> form(betas);
    const ExpertRows<Cuda, T> saved = s;
    for_rows(ctx, all, inner, [=] __device__(Index row, Team team) {
        if (row >= d.offset[d.offset.size - 1]) return;
        const Index pair = d.source[row];
        A dot = A(0), weight = A(0);
        for (Index c = team.rank; c < inner; c += team.size)
            dot += static_cast<A>(dhidden(row, c)) * form.value(saved.gate(row, c), saved.up(row, c));
        dot = team.sum(dot);
        if (pair >= 0) {
            A& of_pair = p(pair / p.cols, pair % p.cols);
            weight = of_pair;
            team.sync();
            if (team.rank == 0) of_pair = dot;
        }
        for (Index c = team.rank; c < inner; c += team.size) {
            const A gate = saved.gate(row, c), up = saved.up(row, c);
            hidden(row, c) = static_cast<T>(form.value(gate, up) * weight);
            const SituGradient<A> gradient = form.gradient(gate, up, static_cast<A>(dhidden(row, c)) * weight);
            saved.gate(row, c) = static_cast<T>(gradient.gate);
            saved.up(row, c) = static_cast<T>(gradient.up);
        }
    });
    expert_weights_product<T>(ctx, d, rows, hidden, dw2);
    gather_rows<T>(ctx, d, z, rows);
    expert_weights_product<T>(ctx, d, s.gate, rows, dw1);
    expert_weights_product<T>(ctx, d, s.up, rows, dw3);
    expert_rows_product<T, true>(ctx, d, s.gate, w1, rows, Add::no);
    expert_rows_product<T, true>(ctx, d, s.up, w3, rows, Add::yes);
    combine_rows<T>(ctx, d, rows, {}, dz);
}

}  // namespace gpu

template <class T>
void expert_products_forward(const Context<Cuda>& ctx, In<T> z, In<T> w1, In<T> w3, In<T> w2, SituBetas betas,
                             const ExpertDispatch& d, In<accumulator_t<T>> p, const ExpertRows<Cuda, T>& s, Out<T> u) {
    const Index inner = s.gate.cols, latent = z.cols;
    require_shape("experts: w1", w1, d.experts() * inner, latent);
    require_shape("experts: w3", w3, d.experts() * inner, latent);
    require_shape("experts: w2", w2, d.experts() * latent, inner);
    require_shape("experts: p", p, z.rows, d.position.cols);
    require_shape("experts: u", u, z.rows, latent);
    if constexpr (std::is_same_v<T, bf16>) {
        if (gpu::tensor_experts(d, z, w1, w3, w2, s.gate, s.up, u) && w1.stride == w3.stride &&
            s.gate.stride == s.up.stride)
            return gpu::tensor_experts_forward(ctx, z, w1, w3, w2, betas, d, p, s.gate, s.up, u);
    }
    gpu::plain_experts_forward<T>(ctx, z, w1, w3, w2, betas, d, p, s, u);
}

template <class T>
void expert_products_backward(const Context<Cuda>& ctx, In<T> z, In<T> du, In<T> w1, In<T> w3, In<T> w2,
                              SituBetas betas, const ExpertDispatch& d, const ExpertRows<Cuda, T>& s,
                              Out<accumulator_t<T>> p, Out<T> dz, Out<accumulator_t<T>> dw1,
                              Out<accumulator_t<T>> dw3, Out<accumulator_t<T>> dw2) {
    const Index inner = s.gate.cols, latent = du.cols;
    require_shape("experts: z", z, du.rows, latent);
    require_shape("experts: dz", dz, du.rows, latent);
    require_shape("experts: p", p, du.rows, d.position.cols);
    require_shape("experts: dw1", dw1, d.experts() * inner, latent);
    require_shape("experts: dw3", dw3, d.experts() * inner, latent);
    require_shape("experts: dw2", dw2, d.experts() * latent, inner);
    if constexpr (std::is_same_v<T, bf16>) {
        if (gpu::tensor_experts(d, z, du, w1, w3, w2, s.gate, s.up, dz) && w1.stride == w3.stride &&
            s.gate.stride == s.up.stride)
            return gpu::tensor_experts_backward(ctx, z, du, w1, w3, w2, betas, d, s.gate, s.up, p, dz, dw1, dw3, dw2);
    }
    gpu::plain_experts_backward<T>(ctx, z, du, w1, w3, w2, betas, d, s, p, dz, dw1, dw3, dw2);
}

}  // namespace kimik3
