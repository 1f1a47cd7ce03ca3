#pragma once
// Gradients of a chunk of KDA from the state before it, S, the gradient of the state after it, G, and dV'
// (kda_scan.cuh), a block a chunk and head (spec 2.7), through norm, gate and sigmoid to the raw inputs:
//   V' = U - W S;  dY = (I + L)^-T dV';  dP = tril(dO V'^T);  dX = -beta tril(dY V'^T, -1);  dv = beta dY
//   db = (1 - beta) dY . V', since V' = beta (V - K+ S - X V')
//   dq, dk as rows and dk as columns of the pairs meet each tile's decay at its middle, a factor a channel between
//   tiles
// Products that cancel in dc = q dq + k (dk_row - dk_col) come from the same bf16 operands in both places.

#include "kimik3/ops/cuda/kda_tiles.cuh"

namespace kimik3::gpu::kda {

template <class C>
inline constexpr int gradient_warps = 4 * C::tiles;
template <class C>
using GradientPart = Part<C, gradient_warps<C>>;

template <class C>
struct GradientMemory {
    static constexpr int warps = gradient_warps<C>, threads = 32 * warps, quarter = C::width / 4,
                         state_parts = warps / (C::width / 16);
    static constexpr int stage = C::width + 8;  // pitch of float32 sums
    union Whole {
        bf16 state[C::width * C::pitch];
        float sums[C::rows * stage];
    };
    union Half {
        struct {
            bf16 d_o[C::rows * C::pitch], dy[C::rows * C::pitch];
        };
        float sums[C::rows * stage];
    };
    Whole s, g;  // S^T and G^T, then the sums of dq and of dk as a row
    Half half;   // dO and dV', then dY; then the sums of dk as a column
    bf16 u[C::rows * C::pitch], w[C::rows * C::pitch];
    bf16 q[C::rows * C::pitch], k[C::rows * C::pitch], k_down[C::rows * C::pitch];
    union {
        struct {
            bf16 lower[C::rows * C::narrow], inner[C::tiles * 16 * 24];
        };
        struct {
            bf16 dp[C::rows * C::narrow], dx[C::rows * C::narrow];
        };
        float gate[2][warps * C::width];
    };
    float sums[warps * C::width];
    float steps[(C::tiles + 1) * C::width];     // 2^(m_J - m_(J - 1)), the first from the start, the last to the end
    float along_state[state_parts * C::width];  // sums over parts of V of S G
    float along_keys[C::tiles * C::width];      // sum over a tile of k dk through K-bar
    float beta[C::rows];
};

/// S^T and G^T to shared memory from the order of fragments, and the sums of their products: 16 channels a warp.
template <class C>
__device__ void load_states(GradientMemory<C>& m, const bf16* s, const bf16* g) {
    using M = GradientMemory<C>;
    constexpr int pairs = C::width / 16;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, i = warp % pairs, part = warp / pairs;
    float sum[4] = {};
    const auto put = [&](bf16* to, int strip, const uint4& four) {
        bf16* at = to + (16 * strip + lane / 4) * C::pitch + 16 * i + lane % 4 * 2;
        *reinterpret_cast<std::uint32_t*>(at) = four.x;
        *reinterpret_cast<std::uint32_t*>(at + 8 * C::pitch) = four.y;
        *reinterpret_cast<std::uint32_t*>(at + 8) = four.z;
        *reinterpret_cast<std::uint32_t*>(at + 8 * C::pitch + 8) = four.w;
    };
#pragma unroll
    for (int strip = part; strip < pairs; strip += M::state_parts) {
        const int at = ((strip * pairs + i) * 32 + lane) * 8;
        const uint4 of_s = as_16_bytes(s + at), of_g = as_16_bytes(g + at);
        put(m.s.state, strip, of_s), put(m.g.state, strip, of_g);
        float x[8], y[8];
        unpack_8(x, of_s), unpack_8(y, of_g);
#pragma unroll
        for (int e = 0; e < 8; ++e) sum[e / 4 * 2 + e % 2] += x[e] * y[e];
    }
#pragma unroll
    for (int e = 0; e < 4; ++e) {
#pragma unroll
        for (int apart = 4; apart < 32; apart *= 2) sum[e] += __shfl_xor_sync(0xffffffffu, sum[e], apart);
        if (lane < 4) m.along_state[part * C::width + 16 * i + e / 2 * 8 + lane * 2 + e % 2] = sum[e];
    }
}

/// U becomes V' = U - W S in 16 rows and half of the columns.
template <class C>
__device__ void values_of_chunk(GradientMemory<C>& m, int tile, int first) {
    constexpr int pairs = C::width / 32;
    const int lane = threadIdx.x % 32;
    float sum[pairs][2][4];
    const auto each = [&](auto&& body) {
#pragma unroll
        for (int p = 0; p < pairs; ++p)
#pragma unroll
            for (int i = 0; i < 4; ++i)
                body(sum[p][i / 2] + i % 2 * 2,
                     *reinterpret_cast<std::uint32_t*>(m.u + (16 * tile + lane / 4 + i % 2 * 8) * C::pitch + first +
                                                       16 * p + i / 2 * 8 + lane % 4 * 2));
    };
    each([](float* c, std::uint32_t& pair) {
        const float2 both = unpack_bf16(pair);
        c[0] = both.x, c[1] = both.y;
    });
#pragma unroll
    for (int a = 0; a < C::width / 16; ++a) {
        Fragment w;
        load_a(w, m.w, C::pitch, 16 * tile, 16 * a);
#pragma unroll
        for (int p = 0; p < pairs; ++p) {
            Fragment b;
            load_b(b, m.s.state, C::pitch, first + 16 * p, 16 * a);
            multiply_tile(sum[p], w, b);
        }
    }
    each([](float* c, std::uint32_t& pair) { pair = pack_bf16(c[0], c[1]); });
}

/// dV' becomes dY = (I + L)^-T dV' in 16 columns.
template <class C>
__device__ void solve_columns_back(GradientMemory<C>& m, int col) {
    Fragment solved[C::tiles];
#pragma unroll
    for (int tile = C::tiles - 1; tile >= 0; --tile) {
        Fragment a, b;
        float sum[2][4], whole[2][4] = {};
        load_a_turned(a, m.half.dy, C::pitch, 16 * tile, col);
        unpack_tile(sum, a);
#pragma unroll
        for (int after = C::tiles - 1; after > tile; --after) {
            load_b_turned(b, m.lower, C::narrow, 16 * after, 16 * tile);
            multiply_tile(sum, solved[after], b);
        }
        pack_tile(a, sum);
        load_b_turned(b, m.inner, 24, 16 * tile, 0);
        multiply_tile(whole, a, b);
        pack_tile(solved[tile], whole);
        __syncwarp();  // all lanes have read the tile
        store_turned(solved[tile], m.half.dy, C::pitch, 16 * tile, col);
    }
}

/// One tile of dP, or of dX and on the diagonal db.
template <class C>
__device__ void pair_gradients(GradientMemory<C>& m, int tile, int to, bool keys, const Place& place, Index head,
                               const MatrixView<bf16>& db) {
    const int lane = threadIdx.x % 32;
    float sum[2][4] = {}, more[2][4] = {};
#pragma unroll
    for (int a = 0; a < C::width / 16; ++a) {
        Fragment left, b;
        load_a(left, keys ? m.half.dy : m.half.d_o, C::pitch, 16 * tile, 16 * a);
        load_b(b, m.u, C::pitch, 16 * to, 16 * a);
        multiply_tile(a % 2 == 0 ? sum : more, left, b);
    }
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int i = 16 * tile + lane / 4 + 8 * half, j = 16 * to + 8 * n + lane % 4 * 2;
            float x = sum[n][2 * half] + more[n][2 * half], y = sum[n][2 * half + 1] + more[n][2 * half + 1];
            if (keys) {
                if ((i == j || i == j + 1) && i < place.count)
                    db(place.first + i, head) = bf16((1.0f - m.beta[i]) * (i == j ? x : y));
                x = j < i ? -m.beta[i] * x : 0.0f, y = j + 1 < i ? -m.beta[i] * y : 0.0f;
            } else {
                x = j <= i ? x : 0.0f, y = j + 1 <= i ? y : 0.0f;
            }
            *reinterpret_cast<std::uint32_t*>((keys ? m.dx : m.dp) + i * C::narrow + j) = pack_bf16(x, y);
        }
}

/// The sums of dq, dk as a row and dk as a column for 16 rows and a quarter of the channels, at the middle of the tile.
template <class C>
struct ChannelGradients {
    static constexpr int pairs = C::width / 64;
    float q[pairs][2][4] = {}, row[pairs][2][4] = {}, col[pairs][2][4] = {};

    /// body(p, n, channel) for the pairs of channels that the thread has sums of.
    template <class Body>
    __device__ static void each(int first, Body&& body) {
#pragma unroll
        for (int p = 0; p < pairs; ++p)
#pragma unroll
            for (int n = 0; n < 2; ++n) body(p, n, first + 16 * p + 8 * n + static_cast<int>(threadIdx.x) % 4 * 2);
    }
    __device__ static void scale(float (&sum)[pairs][2][4], const float* factors, int first) {
        each(first, [&](int p, int n, int channel) {
            const float2 f = *reinterpret_cast<const float2*>(factors + channel);
            sum[p][n][0] *= f.x, sum[p][n][1] *= f.y, sum[p][n][2] *= f.x, sum[p][n][3] *= f.y;
        });
    }

    __device__ void add_states(const GradientMemory<C>& m, int tile, int first) {
        const int lane = threadIdx.x % 32;
#pragma unroll 2
        for (int v = 0; v < C::width / 16; ++v) {
            Fragment d_o, dy, u;
            load_a(d_o, m.half.d_o, C::pitch, 16 * tile, 16 * v);
            load_a(dy, m.half.dy, C::pitch, 16 * tile, 16 * v);
            load_a(u, m.u, C::pitch, 16 * tile, 16 * v);
#pragma unroll
            for (int p = 0; p < pairs; ++p) {
                Fragment b;
                load_b_turned(b, m.s.state, C::pitch, 16 * v, first + 16 * p);
                multiply_tile(q[p], d_o, b), multiply_tile(row[p], dy, b);
                load_b_turned(b, m.g.state, C::pitch, 16 * v, first + 16 * p);
                multiply_tile(col[p], u, b);
            }
        }
        const float low = -m.beta[16 * tile + lane / 4], high = -m.beta[16 * tile + lane / 4 + 8];
        each(first, [&](int p, int n, int) {
            row[p][n][0] *= low, row[p][n][1] *= low, row[p][n][2] *= high, row[p][n][3] *= high;
        });
    }
    /// along_keys: what dk through K-bar gives for the decay of the whole chunk.
    __device__ void sum_keys(GradientMemory<C>& m, int tile, int first) const {
        const int lane = threadIdx.x % 32;
        each(first, [&](int p, int n, int channel) {
            float2 factor{1, 1}, sum{0, 0};
            for (int step = tile + 1; step <= C::tiles; ++step)
                factor.x *= m.steps[step * C::width + channel], factor.y *= m.steps[step * C::width + channel + 1];
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const float2 k = unpack_bf16(*reinterpret_cast<const std::uint32_t*>(
                    m.k_down + (16 * tile + lane / 4 + 8 * half) * C::pitch + channel));
                sum.x += k.x * col[p][n][2 * half], sum.y += k.y * col[p][n][2 * half + 1];
            }
            sum.x *= factor.x, sum.y *= factor.y;
#pragma unroll
            for (int apart = 4; apart < 32; apart *= 2) {
                sum.x += __shfl_xor_sync(0xffffffffu, sum.x, apart);
                sum.y += __shfl_xor_sync(0xffffffffu, sum.y, apart);
            }
            if (lane < 4) *reinterpret_cast<float2*>(m.along_keys + tile * C::width + channel) = sum;
        });
    }
    __device__ void add_pairs(const GradientMemory<C>& m, int tile, int first) {
        for (int to = 0; to <= tile; ++to) {
            scale(q, m.steps + to * C::width, first), scale(row, m.steps + to * C::width, first);
            Fragment dp, dx, b;
            load_a(dp, m.dp, C::narrow, 16 * tile, 16 * to), load_a(dx, m.dx, C::narrow, 16 * tile, 16 * to);
#pragma unroll
            for (int p = 0; p < pairs; ++p) {
                load_b_turned(b, m.k_down, C::pitch, 16 * to, first + 16 * p);
                multiply_tile(q[p], dp, b), multiply_tile(row[p], dx, b);
            }
        }
        for (int from = C::tiles - 1; from >= tile; --from) {
            scale(col, m.steps + (from + 1) * C::width, first);
            Fragment dp, dx, b;
            load_a_turned(dp, m.dp, C::narrow, 16 * from, 16 * tile);
            load_a_turned(dx, m.dx, C::narrow, 16 * from, 16 * tile);
#pragma unroll
            for (int p = 0; p < pairs; ++p) {
                load_b_turned(b, m.q, C::pitch, 16 * from, first + 16 * p);
                multiply_tile(col[p], dp, b);
                load_b_turned(b, m.k, C::pitch, 16 * from, first + 16 * p);
                multiply_tile(col[p], dx, b);
            }
        }
    }
    __device__ static void store(const float (&sum)[pairs][2][4], float* to, int tile, int first) {
        const int lane = threadIdx.x % 32;
        each(first, [&](int p, int n, int channel) {
#pragma unroll
            for (int half = 0; half < 2; ++half)
                *reinterpret_cast<float2*>(to + (16 * tile + lane / 4 + 8 * half) * GradientMemory<C>::stage +
                                           channel) = {sum[p][n][2 * half], sum[p][n][2 * half + 1]};
        });
    }
};

}  // namespace kimik3::gpu::kda
