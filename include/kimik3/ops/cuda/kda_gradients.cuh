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
    static constexpr int stage = C::width + 4;  // pitch of float32 sums
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

/// to = r (dy - y (y . dy)), the gradient before the L2 norm; y = x r.
template <class C>
__device__ void store_before_norm(bf16* to, const uint4& x, float r, float (&dy)[8], bool exists) {
    float y[8], along = 0;
    unpack_8(y, x);
#pragma unroll
    for (int e = 0; e < 8; ++e) y[e] *= r, along += y[e] * dy[e];
#pragma unroll
    for (int apart = 1; apart < C::octets; apart *= 2) along += __shfl_xor_sync(0xffffffffu, along, apart);
#pragma unroll
    for (int e = 0; e < 8; ++e) dy[e] = r * (dy[e] - y[e] * along);
    if (exists) as_16_bytes(to) = pack_8(dy);
}

/// Writes dq, dk and dz; gate_parts: [2, width] sums over the chunk of dz and of dz times the gate's logit.
template <class C>
__device__ void finish_gradients(GradientMemory<C>& m, const GradientPart<C>& part, const KdaRawInput<bf16>& in,
                                 const Place& place, Index head, float bound, const KdaRawGradient<bf16>& to,
                                 float* gate_parts) {
    constexpr float scale = C::width == 128 ? 0.08838834764831845f : 0.125f;  // K^-1/2
    const Index col = head * C::width + part.channel;
    float dc[GradientPart<C>::own][8];
#pragma unroll
    for (int t = 0; t < GradientPart<C>::own; ++t) {
        const int row = part.row + t, at = row * C::pitch + part.channel,
                  staged = row * GradientMemory<C>::stage + part.channel;
        const bool exists = row < place.count;
        const Index n = place.first + row;
        float dq[8], dk[8], dk_col[8], q[8], k[8], k_down[8];
        read_8(dq, m.s.sums + staged), read_8(dk, m.g.sums + staged), read_8(dk_col, m.half.sums + staged);
        unpack_8(q, as_16_bytes(m.q + at)), unpack_8(k, as_16_bytes(m.k + at));
        unpack_8(k_down, as_16_bytes(m.k_down + at));
#pragma unroll
        for (int e = 0; e < 8; ++e) {
            dc[t][e] = q[e] * dq[e] + k[e] * dk[e] - k_down[e] * dk_col[e];
            const float up = power_of_two(part.c[t][e]), down = power_of_two(-part.c[t][e]);
            dq[e] *= up * scale;
            dk[e] = dk[e] * up + dk_col[e] * down;
        }
        const uint4 raw_q = GradientPart<C>::raw(in.q, place, head, row, part.channel),
                    raw_k = GradientPart<C>::raw(in.k, place, head, row, part.channel);
        store_before_norm<C>(to.q.row(n) + col, raw_q, part.q_r[t], dq, exists);
        store_before_norm<C>(to.k.row(n) + col, raw_k, part.k_r[t], dk, exists);
    }
    // dg: sums of dc from the chunk's end.
#pragma unroll
    for (int e = 0; e < 8; ++e) {
#pragma unroll
        for (int t = GradientPart<C>::own - 2; t >= 0; --t) dc[t][e] += dc[t + 1][e];
        float total = dc[0][e];
#pragma unroll
        for (int apart = C::octets; apart < 32; apart *= 2) {
            const float after = __shfl_down_sync(0xffffffffu, total, apart);
            if (part.lane + apart < 32) total += after;
        }
        const float after = __shfl_down_sync(0xffffffffu, total, C::octets);
        if (part.lane < C::octets) m.sums[part.warp * C::width + part.channel + e] = total;
#pragma unroll
        for (int t = 0; t < GradientPart<C>::own; ++t) dc[t][e] += part.lane + C::octets < 32 ? after : 0.0f;
    }
    __syncthreads();
    for (int a = threadIdx.x; a < C::width; a += GradientMemory<C>::threads) {
        float sum = 0;
        for (int p = 0; p < GradientMemory<C>::state_parts; ++p) sum += m.along_state[p * C::width + a];
        for (int step = 0; step <= C::tiles; ++step) sum *= m.steps[step * C::width + a];
        for (int tile = 0; tile < C::tiles; ++tile) sum += m.along_keys[tile * C::width + a];
        for (int w = GradientMemory<C>::warps - 1; w >= 0; --w) {
            const float own = m.sums[w * C::width + a];
            m.sums[w * C::width + a] = sum;
            sum += own;
        }
    }
    __syncthreads();
    const float rate = expf(in.A_log[head]);
    const float* bias = in.dt_bias.data + col;
    float after[8], total[8] = {}, moment[8] = {};
    read_8(after, m.sums + part.warp * C::width + part.channel);
#pragma unroll
    for (int t = 0; t < GradientPart<C>::own; ++t) {
        float z[8];
        unpack_8(z, GradientPart<C>::raw(in.z, place, head, part.row + t, part.channel));
#pragma unroll
        for (int e = 0; e < 8; ++e) {
            const float logit = z[e] + bias[e], s = fast_sigmoid(rate * logit);
            z[e] = (dc[t][e] + after[e]) * bound * rate * s * (1.0f - s);
            if (part.row + t < place.count) total[e] += z[e], moment[e] += z[e] * logit;
        }
        if (part.row + t < place.count) as_16_bytes(to.z.row(place.first + part.row + t) + col) = pack_8(z);
    }
#pragma unroll
    for (int e = 0; e < 8; ++e) {
#pragma unroll
        for (int apart = C::octets; apart < 32; apart *= 2) {
            total[e] += __shfl_xor_sync(0xffffffffu, total[e], apart);
            moment[e] += __shfl_xor_sync(0xffffffffu, moment[e], apart);
        }
        if (part.lane >= C::octets) continue;
        m.gate[0][part.warp * C::width + part.channel + e] = total[e];
        m.gate[1][part.warp * C::width + part.channel + e] = moment[e];
    }
    __syncthreads();
    for (int i = threadIdx.x; i < 2 * C::width; i += GradientMemory<C>::threads) {
        float sum = 0;
        for (int w = 0; w < GradientMemory<C>::warps; ++w) sum += m.gate[i / C::width][w * C::width + i % C::width];
        gate_parts[i] = sum;
    }
}

template <class C>
__global__ void __launch_bounds__(GradientMemory<C>::threads, 1)
    gradient_kernel(KdaRawInput<bf16> in, const Place* places, Index heads, float bound, Prepared from,
                    MatrixView<const bf16> states, MatrixView<const bf16> d_o, const bf16* dvalues, const bf16* dstates,
                    KdaRawGradient<bf16> to, float* gate_parts) {
    extern __shared__ __align__(16) char memory[];
    using M = GradientMemory<C>;
    M& m = *reinterpret_cast<M*>(memory);
    const Index chunk = blockIdx.x / heads, head = blockIdx.x % heads, unit = blockIdx.x;
    const Place place = places[chunk];
    const auto from_blocks = [&](bf16* local, const bf16* all) {
#pragma unroll
        for (int i = threadIdx.x; i < C::rows * C::octets; i += M::threads) {
            const int row = i / C::octets, col = i % C::octets * 8;
            copy_16_bytes(local + row * C::pitch + col, all + unit * C::rows * C::width + in_blocks<C::rows>(row, col));
        }
    };
    from_blocks(m.u, from.u), from_blocks(m.w, from.w);
    copy_tile<M::threads, C::rows, C::width>(m.half.dy, C::pitch, dvalues + unit * C::rows * C::width, C::width);
    copy_tile<M::threads, C::rows, C::width>(m.half.d_o, C::pitch, d_o.row(place.first) + head * C::width, d_o.stride,
                                             place.count);
    copy_tile<M::threads, C::rows, C::rows>(m.lower, C::narrow, from.lower + unit * C::rows * C::rows, C::rows);
    copy_tile<M::threads, C::rows, 16>(m.inner, 24, from.inner + unit * C::rows * 16, 16);
    commit_copies();
    load_states(m, states.row(chunk) + head * C::state, dstates + unit * C::state);
    if (threadIdx.x < C::rows) {
        const int row = static_cast<int>(threadIdx.x);
        m.beta[row] = row < place.count ? fast_sigmoid(in.b(place.first + row, head)) : 0.0f;
    }
    GradientPart<C> part;
    part.load(in, place, head, bound, m.sums);
#pragma unroll
    for (int t = 0; t < part.own; ++t) {
        constexpr float scale = C::width == 128 ? 0.08838834764831845f : 0.125f;
        float q[8], k[8], down[8];
        unpack_8(q, part.q[t]), unpack_8(k, part.k[t]);
#pragma unroll
        for (int e = 0; e < 8; ++e) {
            const float up = power_of_two(part.c[t][e]), unit_k = k[e] * part.k_r[t];
            q[e] *= part.q_r[t] * scale * up, k[e] = unit_k * up, down[e] = unit_k * power_of_two(-part.c[t][e]);
        }
        const int at = (part.row + t) * C::pitch + part.channel;
        as_16_bytes(m.q + at) = pack_8(q), as_16_bytes(m.k + at) = pack_8(k), as_16_bytes(m.k_down + at) = pack_8(down);
    }
    for (int i = threadIdx.x; i < (C::tiles + 1) * C::width; i += M::threads) {
        const int step = i / C::width, a = i % C::width;
        const auto sum = [&](int warp) { return m.sums[warp * C::width + a]; };
        const float until = sum(step < C::tiles ? part.middle(step) : M::warps - 1);
        m.steps[i] = power_of_two(until - (step > 0 ? sum(part.middle(step - 1)) : 0.0f));
    }
    wait_for_copies<0>();
    __syncthreads();
    const int tile = part.warp % C::tiles;
    if (part.warp < M::warps / 2) {
        values_of_chunk(m, tile, part.warp / C::tiles * (C::width / 2));
    } else {
        for (int col = 16 * (part.warp - M::warps / 2); col < C::width; col += 16 * (M::warps / 2))
            solve_columns_back(m, col);
    }
    __syncthreads();
    for (int task = part.warp; task < C::tiles * (C::tiles + 1); task += M::warps) {
        const int pair = task / 2, row = pair < 1 ? 0 : pair < 3 ? 1 : pair < 6 ? 2 : 3;
        pair_gradients(m, row, pair - row * (row + 1) / 2, task % 2 != 0, place, head, to.b);
    }
    for (int i = threadIdx.x; i < C::rows * C::octets; i += M::threads) {
        const int row = i / C::octets, col = i % C::octets * 8;
        float dv[8];
        unpack_8(dv, as_16_bytes(m.half.dy + row * C::pitch + col));
#pragma unroll
        for (int e = 0; e < 8; ++e) dv[e] *= m.beta[row];
        if (row < place.count) as_16_bytes(to.v.row(place.first + row) + head * C::width + col) = pack_8(dv);
    }
    __syncthreads();
    {
        const int first = part.warp / C::tiles * M::quarter;
        ChannelGradients<C> sums;
        sums.add_states(m, tile, first);
        sums.sum_keys(m, tile, first);
        sums.add_pairs(m, tile, first);
        __syncthreads();
        sums.store(sums.q, m.s.sums, tile, first), sums.store(sums.row, m.g.sums, tile, first),
            sums.store(sums.col, m.half.sums, tile, first);
    }
    __syncthreads();
    finish_gradients(m, part, in, place, head, bound, to, gate_parts + unit * 2 * C::width);
}

/// ddt_bias += the sums over all chunks of dz, dA_log += those of dz times the logit: a block a head.
template <int width>
__global__ void __launch_bounds__(1024) gate_gradient_kernel(const float* parts, Index chunks, Index heads,
                                                             VectorView<float> dA_log, VectorView<float> ddt_bias) {
    constexpr int teams = 1024 / width;
    __shared__ float totals[teams][width], moments[teams][width];
    const int channel = threadIdx.x % width, team = threadIdx.x / width;
    const Index head = blockIdx.x;
    float total = 0, moment = 0;
#pragma unroll 8
    for (Index chunk = team; chunk < chunks; chunk += teams) {
        const float* part = parts + (chunk * heads + head) * 2 * width + channel;
        total += part[0], moment += part[width];
    }
    totals[team][channel] = total, moments[team][channel] = moment;
    __syncthreads();
    if (team > 0) return;
    for (int t = 1; t < teams; ++t) total += totals[t][channel], moment += moments[t][channel];
    ddt_bias[head * width + channel] += total;
    moments[0][channel] = moment;
    asm volatile("bar.sync 1, %0;" ::"n"(width));
    if (channel > 0) return;
    for (int a = 1; a < width; ++a) moment += moments[0][a];
    dA_log[head] += moment;
}

}  // namespace kimik3::gpu::kda
