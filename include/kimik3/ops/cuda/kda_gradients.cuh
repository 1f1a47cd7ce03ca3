#pragma once
// The kernels of gradients of chunks of KDA (kda_gradient_sums.cuh), through the L2 norm of q and k and the decay gate
// to the raw inputs. A block also asks for what a later one reads.

#include "kimik3/ops/cuda/kda_gradient_sums.cuh"

namespace kimik3::gpu::kda {

/// to = r (dy - y (y . dy)), the gradient before the L2 norm of y.
template <class C>
__device__ void store_before_norm(bf16* to, const float (&y)[8], float r, float (&dy)[8], bool exists) {
    float along = 0;
#pragma unroll
    for (int e = 0; e < 8; ++e) along += y[e] * dy[e];
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
            const float up = quick_exp2(part.c[t][e]), down = quick_exp2(-part.c[t][e]);
            dq[e] *= up * scale, q[e] *= down / scale;  // from here on the unit vectors
            dk[e] = dk[e] * up + dk_col[e] * down, k[e] *= down;
        }
        store_before_norm<C>(to.q.row(n) + col, q, part.q_r[t], dq, exists);
        store_before_norm<C>(to.k.row(n) + col, k, part.k_r[t], dk, exists);
    }
    // dg: sums of dc from the chunk's end.
    float totals[8];
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
        totals[e] = total;
#pragma unroll
        for (int t = 0; t < GradientPart<C>::own; ++t) dc[t][e] += part.lane + C::octets < 32 ? after : 0.0f;
    }
    if (part.lane < C::octets) write_8(m.sums + part.warp * C::width + part.channel, totals);
    __syncthreads();
    for (int a = threadIdx.x; a < C::width; a += GradientMemory<C>::threads) {
        float sum = 0;
        for (int p = 0; p < GradientMemory<C>::state_parts; ++p) sum += m.along_state[p * C::width + a];
        for (int step = 0; step <= C::tiles; ++step) sum *= m.steps[step * C::width + a];
        for (int tile = 0; tile < C::tiles; ++tile) sum += m.along_keys[tile * C::width + a];
        float of_warps[GradientMemory<C>::warps];
#pragma unroll
        for (int w = 0; w < GradientMemory<C>::warps; ++w) of_warps[w] = m.sums[w * C::width + a];
#pragma unroll
        for (int w = GradientMemory<C>::warps - 1; w >= 0; --w) {
            m.sums[w * C::width + a] = sum;
            sum += of_warps[w];
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
        unpack_8(z, part.z[t]);
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
    }
    if (part.lane < C::octets) {
        write_8(m.gate[0] + part.warp * C::width + part.channel, total);
        write_8(m.gate[1] + part.warp * C::width + part.channel, moment);
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
                    KdaRawGradient<bf16> to, float* gate_parts, Index ahead) {
    extern __shared__ __align__(16) char memory[];
    begin_in_turn();
    using M = GradientMemory<C>;
    M& m = *reinterpret_cast<M*>(memory);
    const Index chunk = blockIdx.x / heads, head = blockIdx.x % heads, unit = blockIdx.x;
    const Place place = places[chunk];
    GradientPart<C> part;
    part.fetch(in, place, head);
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
    part.prepare(in, place, head, bound, m.sums);
#pragma unroll
    for (int t = 0; t < part.own; ++t) {
        constexpr float scale = C::width == 128 ? 0.08838834764831845f : 0.125f;
        float q[8], k[8], down[8];
        unpack_8(q, part.q[t]), unpack_8(k, part.k[t]);
#pragma unroll
        for (int e = 0; e < 8; ++e) {
            const float up = quick_exp2(part.c[t][e]), unit_k = k[e] * part.k_r[t];
            q[e] *= part.q_r[t] * scale * up, k[e] = unit_k * up, down[e] = unit_k * quick_exp2(-part.c[t][e]);
        }
        const int at = (part.row + t) * C::pitch + part.channel;
        as_16_bytes(m.q + at) = pack_8(q), as_16_bytes(m.k + at) = pack_8(k), as_16_bytes(m.k_down + at) = pack_8(down);
    }
    for (int i = threadIdx.x; i < (C::tiles + 1) * C::width; i += M::threads) {
        const int step = i / C::width, a = i % C::width;
        const auto sum = [&](int warp) { return m.sums[warp * C::width + a]; };
        const float until = sum(step < C::tiles ? part.middle(step) : M::warps - 1);
        m.steps[i] = quick_exp2(until - (step > 0 ? sum(part.middle(step - 1)) : 0.0f));
    }
    wait_for_copies<0>();
    __syncthreads();
    if (const Index later = unit + ahead; later < gridDim.x) {
        const Place next = places[later / heads];
        const auto expect = [&](const auto& all) { expect_rows<C, M::threads>(all, next, later % heads); };
        expect(in.q), expect(in.k), expect(in.z), expect(d_o);
        constexpr int square = C::rows * C::width, pairs = C::rows * C::rows;
        expect_array<M::threads, square>(from.u + later * square);
        expect_array<M::threads, square>(from.w + later * square);
        expect_array<M::threads, square>(dvalues + later * square);
        expect_array<M::threads, C::state>(states.row(later / heads) + later % heads * C::state);
        expect_array<M::threads, C::state>(dstates + later * C::state);
        expect_array<M::threads, pairs>(from.lower + later * pairs);
    }
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
    begin_in_turn();
    __shared__ float totals[teams][width], moments[teams][width];
    const int channel = threadIdx.x % width, team = threadIdx.x / width;
    const Index head = blockIdx.x;
    float total = 0, moment = 0;
#pragma unroll 32
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
    if (channel >= 32) return;
    moment = 0;
    for (int a = channel; a < width; a += 32) moment += moments[0][a];
    moment = warp_sum(moment);
    if (channel == 0) dA_log[head] += moment;
}

}  // namespace kimik3::gpu::kda
