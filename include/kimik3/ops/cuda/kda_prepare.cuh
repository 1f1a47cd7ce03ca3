#pragma once
// What chunks of KDA need before their states are known (ops/kda_chunk.hpp has the formulas), a block a chunk and head:
//   -W = -(I + L)^-1 beta K+,  U = (I + L)^-1 beta V,  Q+ = q e^c,  K-bar = k e^(c_C - c),  P = tril(q k^T decayed)
// from raw q, k, v, z and b. Products of bf16 on tensor cores; decays, sums and the inverses of I + L in tiles of 16
// rows in float32. Tile by tile of rows, W and U follow from the tiles before, every warp for its own columns.

#include "kimik3/ops/cuda/kda_tiles.cuh"

namespace kimik3::gpu::kda {

template <class C>
struct PrepareMemory {
    bf16 q[C::rows * C::pitch], k[C::rows * C::pitch], k_down[C::rows * C::pitch];  // at the middle of their tiles
    bf16 k_plus[C::rows * C::pitch], v[C::rows * C::pitch];                         // afterwards -W and U
    bf16 lower[C::rows * C::narrow];                                                // -L
    bf16 inner[C::tiles * 16 * 24];
    float diagonal[C::tiles * (256 + 16)];  // L
    float sums[C::warps * C::width];
    std::uint32_t apart[C::tiles * C::tiles * C::width / 2];  // [I, J] 2^(m_I - m_J), pairs of bf16
    float beta[C::rows];
};

/// Column lane % 16 of the inverse of I + L in one tile of the diagonal; a warp does two.
template <class C>
__device__ void invert_diagonal(PrepareMemory<C>& m, int warp, int lane) {
    const int tile = 2 * warp + lane / 16, column = lane % 16;
    if (2 * warp >= C::tiles) return;
    const float* lower = m.diagonal + tile * (256 + 16);
    float x[16];
#pragma unroll
    for (int i = 0; i < 16; ++i) {
        float sum = i == column ? 1.0f : 0.0f, rest = 0;
#pragma unroll
        for (int j = 0; j < i; ++j) (j % 2 == 0 ? sum : rest) -= lower[i * 16 + j] * x[j];
        x[i] = sum + rest;
        m.inner[(tile * 16 + i) * 24 + column] = bf16(x[i]);
    }
}

/// y^T := beta-scaled columns, then (I + L)^-1 of them, 16 columns from col on, in place.
template <class C>
__device__ void solve_columns(const PrepareMemory<C>& m, bf16* y, int col, float sign) {
    const int lane = threadIdx.x % 32;
    Fragment solved[C::tiles];
#pragma unroll
    for (int tile = 0; tile < C::tiles; ++tile) {
        Fragment a, b;
        float sum[2][4];
        load_a_turned(a, y, C::pitch, 16 * tile, col);
        unpack_tile(sum, a);
#pragma unroll
        for (int n = 0; n < 2; ++n)
#pragma unroll
            for (int e = 0; e < 4; ++e) sum[n][e] *= sign * m.beta[16 * tile + 8 * n + lane % 4 * 2 + e % 2];
#pragma unroll
        for (int before = 0; before < tile; ++before) {
            load_b(b, m.lower, C::narrow, 16 * tile, 16 * before);
            multiply_tile(sum, solved[before], b);
        }
        pack_tile(a, sum);
        float whole[2][4] = {};
        load_b(b, m.inner, 24, 16 * tile, 0);
        multiply_tile(whole, a, b);
        pack_tile(solved[tile], whole);
        __syncwarp();  // all lanes have read the tile
        store_turned(solved[tile], y, C::pitch, 16 * tile, col);
    }
}

/// One tile of P (of q) or of L (of k).
template <class C>
__device__ void pair_products(PrepareMemory<C>& m, int tile, int to, bool keys, bf16* p) {
    const int lane = threadIdx.x % 32;
    const bf16* left = keys ? m.k : m.q;
    const std::uint32_t* apart = m.apart + (tile * C::tiles + to) * C::width / 2;
    float sum[2][4] = {}, more[2][4] = {};
#pragma unroll
    for (int i = 0; i < C::width / 16; ++i) {
        Fragment a, b;
        load_a(a, left, C::pitch, 16 * tile, 16 * i);
        load_b(b, m.k_down, C::pitch, 16 * to, 16 * i);
        const std::uint32_t low = apart[8 * i + lane % 4], high = apart[8 * i + 4 + lane % 4];
        a[0] = multiply_pairs(a[0], low), a[1] = multiply_pairs(a[1], low);
        a[2] = multiply_pairs(a[2], high), a[3] = multiply_pairs(a[3], high);
        multiply_tile(i % 2 == 0 ? sum : more, a, b);
    }
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int inside = lane / 4 + 8 * half, i = 16 * tile + inside, j = 16 * to + 8 * n + lane % 4 * 2;
            float x = sum[n][2 * half] + more[n][2 * half], y = sum[n][2 * half + 1] + more[n][2 * half + 1];
            if (keys) {
                x = j < i ? m.beta[i] * x : 0.0f, y = j + 1 < i ? m.beta[i] * y : 0.0f;
                *reinterpret_cast<std::uint32_t*>(m.lower + i * C::narrow + j) = pack_bf16(-x, -y);
                if (to == tile)
                    *reinterpret_cast<float2*>(m.diagonal + tile * (256 + 16) + inside * 16 + j % 16) = {x, y};
            } else {
                x = j <= i ? x : 0.0f, y = j + 1 <= i ? y : 0.0f;
                *reinterpret_cast<std::uint32_t*>(p + swizzled(i, j)) = pack_bf16(x, y);
            }
        }
}
/// Zeros in the tiles of P above the diagonal.
template <class C>
__device__ void clear_above(bf16* p) {
    for (int i = threadIdx.x; i < C::rows * C::rows / 8; i += C::threads) {
        const int row = i / (C::rows / 8), col = i % (C::rows / 8) * 8;
        if (col / 16 > row / 16) as_16_bytes(p + swizzled(row, col)) = uint4{0, 0, 0, 0};
    }
}

template <class C>
__device__ void write_tile(bf16* to, const bf16* from) {
    constexpr int pieces = C::width / 8;
#pragma unroll
    for (int i = threadIdx.x; i < C::rows * pieces; i += C::threads)
        as_16_bytes(to + in_blocks<C::rows>(i / pieces, i % pieces * 8)) =
            as_16_bytes(from + i / pieces * C::pitch + i % pieces * 8);
}

template <class C>
__global__ void __launch_bounds__(C::threads, C::tiles == 4 ? 2 : 4)
    prepare_kernel(KdaRawInput<bf16> in, const Place* places, Index heads, float bound, Prepared to, Index ahead) {
    begin_in_turn();
    extern __shared__ __align__(16) char memory[];
    PrepareMemory<C>& m = *reinterpret_cast<PrepareMemory<C>*>(memory);
    const Index chunk = blockIdx.x / heads, head = blockIdx.x % heads, unit = blockIdx.x;
    const Place place = places[chunk];
    Part<C, C::warps> part;
    part.fetch(in, place, head);
    copy_tile<C::threads, C::rows, C::width>(m.v, C::pitch, in.v.row(place.first) + head * C::width, in.v.stride,
                                             place.count);
    commit_copies();
    if (threadIdx.x < C::rows) {
        const int row = static_cast<int>(threadIdx.x);
        m.beta[row] = row < place.count ? fast_sigmoid(in.b(place.first + row, head)) : 0.0f;
    }
    {
        part.prepare(in, place, head, bound, m.sums);
        float middle[8], end[8];
        read_8(middle, m.sums + part.middle(part.tile()) * C::width + part.channel);
        read_8(end, m.sums + (C::warps - 1) * C::width + part.channel);
        constexpr float scale = C::width == 128 ? 0.08838834764831845f : 0.125f;  // K^-1/2
#pragma unroll
        for (int e = 0; e < 8; ++e) end[e] = quick_exp2(end[e] - middle[e]), middle[e] = quick_exp2(middle[e]);
#pragma unroll
        for (int t = 0; t < Part<C, C::warps>::own; ++t) {
            float q[8], k[8], down[8];
            unpack_8(q, part.q[t]), unpack_8(k, part.k[t]);
#pragma unroll
            for (int e = 0; e < 8; ++e) {
                const float up = quick_exp2(part.c[t][e]), unit_k = k[e] * part.k_r[t];
                q[e] *= part.q_r[t] * scale * up;
                k[e] = unit_k * up;
                down[e] = unit_k * quick_exp2(-part.c[t][e]);
            }
            const int at = (part.row + t) * C::pitch + part.channel;
            as_16_bytes(m.q + at) = pack_8(q), as_16_bytes(m.k + at) = pack_8(k);
            as_16_bytes(m.k_down + at) = pack_8(down);
#pragma unroll
            for (int e = 0; e < 8; ++e) q[e] *= middle[e], k[e] *= middle[e], down[e] *= end[e];
            as_16_bytes(m.k_plus + at) = pack_8(k);
            const Index out = unit * C::rows * C::width + in_blocks<C::rows>(part.row + t, part.channel);
            as_16_bytes(to.q + out) = pack_8(q), as_16_bytes(to.k + out) = pack_8(down);
        }
    }
    if (const Index later = unit + ahead; later < gridDim.x) {
        const Place next = places[later / heads];
        const auto expect = [&](const auto& all) { expect_rows<C, C::threads>(all, next, later % heads); };
        expect(in.q), expect(in.k), expect(in.z), expect(in.v);
    }
    for (int i = threadIdx.x; i < C::tiles * C::tiles * C::width / 2; i += C::threads) {
        const int pair = i / (C::width / 2), channel = i % (C::width / 2) * 2, tile = pair / C::tiles,
                  before = pair % C::tiles;
        if (before > tile) continue;
        const auto apart = [&](int a) {
            using P = Part<C, C::warps>;
            return quick_exp2(m.sums[P::middle(tile) * C::width + a] - m.sums[P::middle(before) * C::width + a]);
        };
        m.apart[i] = pack_bf16(apart(channel), apart(channel + 1));
    }
    for (int a = threadIdx.x; a < C::width; a += C::threads)
        to.end[unit * C::width + a] = quick_exp2(m.sums[(C::warps - 1) * C::width + a]);
    wait_for_copies<0>();
    __syncthreads();
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    bf16* p = to.p + unit * C::rows * 64;
    clear_above<C>(p);
    for (int task = warp; task < C::tiles * (C::tiles + 1); task += C::warps) {
        const int pair = task / 2, row = pair < 1 ? 0 : pair < 3 ? 1 : pair < 6 ? 2 : 3;
        pair_products<C>(m, row, pair - row * (row + 1) / 2, task % 2 == 0, p);
    }
    __syncthreads();
    invert_diagonal<C>(m, warp, lane);
    __syncthreads();
    for (int col = 16 * warp; col < 2 * C::width; col += 16 * C::warps) {
        const bool keys_part = col < C::width;
        solve_columns<C>(m, keys_part ? m.k_plus : m.v, col % C::width, keys_part ? -1.0f : 1.0f);
    }
    if (to.lower != nullptr) {
        for (int i = threadIdx.x; i < C::rows * C::rows / 8; i += C::threads)
            as_16_bytes(to.lower + unit * C::rows * C::rows + i * 8) =
                as_16_bytes(m.lower + i / (C::rows / 8) * C::narrow + i % (C::rows / 8) * 8);
        for (int i = threadIdx.x; i < C::rows * 2; i += C::threads)
            as_16_bytes(to.inner + unit * C::rows * 16 + i * 8) = as_16_bytes(m.inner + i / 2 * 24 + i % 2 * 8);
    }
    __syncthreads();
    write_tile<C>(to.w + unit * C::rows * C::width, m.k_plus);
    write_tile<C>(to.u + unit * C::rows * C::width, m.v);
}

}  // namespace kimik3::gpu::kda
