#pragma once
// The serial part of KDA: states forward and their gradients back, chunk by chunk (spec 2.5, 2.7). Columns of a state
// are independent, so a block owns a slice of the value channels of one head of one sequence, a warp 16 of them: S^T
// [16, K] in float32 sums. Per chunk, with -W, U, Q+, K-bar and P of kda_prepare.cuh,
//   forward:  V' = U - W S;  O = Q+ S + P V';  S := diag(e^c_C) S + K-bar^T V'
//   backward: dV' = K-bar G + P^T dO;  G := diag(e^c_C) G + Q+^T dO - W^T dV'
// The operands of a chunk come in two or three parts, each copied while the others are in use.

#include "kimik3/ops/cuda/carried.cuh"
#include "kimik3/ops/cuda/kda_tiles.cuh"

namespace kimik3::gpu::kda {

/// Warps of a slice: 16 value channels each.
template <class C, int warps_>
struct Slice {
    static constexpr int warps = warps_, threads = 32 * warps, columns = 16 * warps, count = C::width / columns,
                         pitch = columns + 8;
};

template <class C, class Sl>
struct ScanMemory {
    bf16 w[C::rows * C::pitch], q[C::rows * C::pitch], k[C::rows * C::pitch], p[C::rows * C::narrow];
    bf16 value[C::rows * Sl::pitch], out[C::rows * Sl::pitch];
    float end[C::width];
};

/// A warp's S^T.
template <class C>
struct State {
    static constexpr int pairs = C::width / 16;
    float s[2 * pairs][4];

    /// from, to: [K, V] at the warp's first column.
    __device__ void load(const float* from) {
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int n = 0; n < 2 * pairs; ++n)
#pragma unroll
            for (int e = 0; e < 4; ++e)
                s[n][e] =
                    from == nullptr ? 0.0f : from[(8 * n + lane % 4 * 2 + e % 2) * C::width + lane / 4 + e / 2 * 8];
    }
    __device__ void store(float* to) const {
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int n = 0; n < 2 * pairs; ++n)
#pragma unroll
            for (int e = 0; e < 4; ++e) to[(8 * n + lane % 4 * 2 + e % 2) * C::width + lane / 4 + e / 2 * 8] = s[n][e];
    }
    __device__ void store(bf16* to) const {
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int n = 0; n < 2 * pairs; ++n)
#pragma unroll
            for (int half = 0; half < 2; ++half)
                *reinterpret_cast<std::uint32_t*>(to + (8 * n + lane / 4) * C::width + 8 * half + lane % 4 * 2) =
                    transposed_8x8(pack_bf16(s[n][2 * half], s[n][2 * half + 1]));
    }
    __device__ void pack(Fragment (&a)[pairs]) const {
#pragma unroll
        for (int i = 0; i < pairs; ++i) {
            a[i][0] = pack_bf16(s[2 * i][0], s[2 * i][1]), a[i][1] = pack_bf16(s[2 * i][2], s[2 * i][3]);
            a[i][2] = pack_bf16(s[2 * i + 1][0], s[2 * i + 1][1]);
            a[i][3] = pack_bf16(s[2 * i + 1][2], s[2 * i + 1][3]);
        }
    }
    __device__ void decay(const float* end) {
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int n = 0; n < 2 * pairs; ++n) {
            const float2 d = *reinterpret_cast<const float2*>(end + 8 * n + lane % 4 * 2);
            s[n][0] *= d.x, s[n][1] *= d.y, s[n][2] *= d.x, s[n][3] *= d.y;
        }
    }
    /// s += a b, b(token, channel) = m(token, channel).
    __device__ void add(const Fragment (&a)[C::tiles], const bf16* m) {
#pragma unroll
        for (int t = 0; t < C::tiles; ++t)
#pragma unroll
            for (int i = 0; i < pairs; ++i) {
                Fragment b;
                load_b_turned(b, m, C::pitch, 16 * t, 16 * i);
                multiply_add(s[2 * i], a[t], b[0], b[1]);
                multiply_add(s[2 * i + 1], a[t], b[2], b[3]);
            }
    }
};

/// sum[t] += a b over the channels, b(channel, token) = m(token, channel), for every tile of tokens.
template <class C>
__device__ void read_state(float (&sum)[C::tiles][2][4], const Fragment (&a)[C::width / 16], const bf16* m) {
#pragma unroll
    for (int i = 0; i < C::width / 16; ++i)
#pragma unroll
        for (int t = 0; t < C::tiles; ++t) {
            Fragment b;
            load_b(b, m, C::pitch, 16 * t, 16 * i);
            multiply_tile(sum[t], a[i], b);
        }
}

/// A warp writes its 16 columns of [rows, columns] to rows of a token matrix.
template <class C, class Sl>
__device__ void write_columns(bf16* to, Index stride, int count, const bf16* from) {
    const int lane = threadIdx.x % 32, col = threadIdx.x / 32 * 16 + lane % 2 * 8;
    __syncwarp();
#pragma unroll
    for (int row = lane / 2; row < C::rows; row += 16)
        if (row < count) as_16_bytes(to + row * stride + col) = as_16_bytes(from + row * Sl::pitch + col);
    __syncwarp();
}

struct Scanned {
    Index sequence, head;
    int slice;
    Index first_chunk;  // of the sequence
    int chunks;

    template <class Sl>
    __device__ static Scanned mine(const Index* starts, Index heads) {
        const int slice = static_cast<int>(blockIdx.x % Sl::count);
        const Index head = blockIdx.x / Sl::count % heads, sequence = blockIdx.x / Sl::count / heads;
        return {sequence, head, slice, starts[sequence], static_cast<int>(starts[sequence + 1] - starts[sequence])};
    }
};

template <class C, class Sl>
__global__ void __launch_bounds__(Sl::threads)
    scan_forward_kernel(Prepared from, const Place* places, const Index* starts, DeviceSequences seq, Index heads,
                        MatrixView<const float> initial, MatrixView<bf16> o, MatrixView<float> final,
                        MatrixView<float> states) {
    extern __shared__ __align__(16) char memory[];
    ScanMemory<C, Sl>& m = *reinterpret_cast<ScanMemory<C, Sl>*>(memory);
    const Scanned at = Scanned::mine<Sl>(starts, heads);
    const int first = at.slice * Sl::columns, column = static_cast<int>(threadIdx.x) / 32 * 16;
    const auto unit = [&](int chunk) { return (at.first_chunk + chunk) * heads + at.head; };
    const auto tile = [&](bf16* to, const bf16* all, int chunk) {
        copy_tile<Sl::threads, C::rows, C::width>(to, C::pitch, all + unit(chunk) * C::rows * C::width, C::width);
    };
    const auto load_values = [&](int chunk) {
        if (chunk < at.chunks) {
            tile(m.w, from.w, chunk);
            copy_tile<Sl::threads, C::rows, Sl::columns>(m.value, Sl::pitch,
                                                         from.u + unit(chunk) * C::rows * C::width + first, C::width);
        }
        commit_copies();
    };
    const auto load_outputs = [&](int chunk) {
        if (chunk < at.chunks) {
            tile(m.q, from.q, chunk);
            copy_tile<Sl::threads, C::rows, C::rows>(m.p, C::narrow, from.p + unit(chunk) * C::rows * C::rows, C::rows);
        }
        commit_copies();
    };
    const auto load_update = [&](int chunk) {
        if (chunk < at.chunks) {
            tile(m.k, from.k, chunk);
            if (threadIdx.x < C::width / 4)
                copy_16_bytes(m.end + 4 * threadIdx.x, from.end + unit(chunk) * C::width + 4 * threadIdx.x);
        }
        commit_copies();
    };
    load_values(0), load_outputs(0), load_update(0);
    State<C> state;
    const float* begin = carried_in<float>(seq, at.sequence, initial);
    state.load(begin == nullptr ? nullptr : begin + at.head * C::state + first + column);
    wait_for_copies<2>();
    __syncthreads();
    for (int chunk = 0; chunk < at.chunks; ++chunk) {
        if (states.rows != 0) state.store(states.row(at.first_chunk + chunk) + at.head * C::state + first + column);
        Fragment before[C::width / 16], values[C::tiles];
        state.pack(before);
        {
            float sum[C::tiles][2][4];
#pragma unroll
            for (int t = 0; t < C::tiles; ++t) {
                Fragment u;
                load_a_turned(u, m.value, Sl::pitch, 16 * t, column);
                unpack_tile(sum[t], u);
            }
            read_state<C>(sum, before, m.w);
#pragma unroll
            for (int t = 0; t < C::tiles; ++t) pack_tile(values[t], sum[t]);
        }
        wait_for_copies<1>();
        __syncthreads();
        load_values(chunk + 1);
        {
            float sum[C::tiles][2][4] = {};
            read_state<C>(sum, before, m.q);
#pragma unroll
            for (int t = 0; t < C::tiles; ++t) {
#pragma unroll
                for (int j = 0; j <= t; ++j) {
                    Fragment b;
                    load_b(b, m.p, C::narrow, 16 * t, 16 * j);
                    multiply_tile(sum[t], values[j], b);
                }
                Fragment out;
                pack_tile(out, sum[t]);
                store_turned(out, m.out, Sl::pitch, 16 * t, column);
            }
        }
        const Place place = places[at.first_chunk + chunk];
        write_columns<C, Sl>(o.row(place.first) + at.head * C::width + first, o.stride, place.count, m.out);
        wait_for_copies<1>();
        __syncthreads();
        load_outputs(chunk + 1);
        state.decay(m.end);
        state.add(values, m.k);
        wait_for_copies<1>();
        __syncthreads();
        load_update(chunk + 1);
    }
    wait_for_copies<0>();
    float* last = carried_out<float>(seq, at.sequence, initial, final);
    if (last != nullptr) state.store(last + at.head * C::state + first + column);
}

/// dvalues: dV' [chunks H, rows, V]; dstates: the gradient of the state after each chunk, [chunks H, K V] of bf16.
template <class C, class Sl>
__global__ void __launch_bounds__(Sl::threads)
    scan_backward_kernel(Prepared from, const Place* places, const Index* starts, DeviceSequences seq, Index heads,
                         MatrixView<const bf16> d_o, MatrixView<const float> dfinal, MatrixView<float> dinitial,
                         bf16* dvalues, bf16* dstates) {
    extern __shared__ __align__(16) char memory[];
    ScanMemory<C, Sl>& m = *reinterpret_cast<ScanMemory<C, Sl>*>(memory);
    const Scanned at = Scanned::mine<Sl>(starts, heads);
    const int first = at.slice * Sl::columns, column = static_cast<int>(threadIdx.x) / 32 * 16;
    const auto unit = [&](int chunk) { return (at.first_chunk + chunk) * heads + at.head; };
    const auto tile = [&](bf16* to, const bf16* all, int chunk) {
        copy_tile<Sl::threads, C::rows, C::width>(to, C::pitch, all + unit(chunk) * C::rows * C::width, C::width);
    };
    const auto load_values = [&](int chunk) {
        if (chunk >= 0) {
            const Place place = places[at.first_chunk + chunk];
            tile(m.k, from.k, chunk);
            copy_tile<Sl::threads, C::rows, Sl::columns>(
                m.value, Sl::pitch, d_o.row(place.first) + at.head * C::width + first, d_o.stride, place.count);
            copy_tile<Sl::threads, C::rows, C::rows>(m.p, C::narrow, from.p + unit(chunk) * C::rows * C::rows, C::rows);
        }
        commit_copies();
    };
    const auto load_update = [&](int chunk) {
        if (chunk >= 0) {
            tile(m.q, from.q, chunk), tile(m.w, from.w, chunk);
            if (threadIdx.x < C::width / 4)
                copy_16_bytes(m.end + 4 * threadIdx.x, from.end + unit(chunk) * C::width + 4 * threadIdx.x);
        }
        commit_copies();
    };
    load_values(at.chunks - 1), load_update(at.chunks - 1);
    State<C> gradient;
    gradient.load(dfinal.rows == 0 ? nullptr
                                   : dfinal.row(seq.slots[at.sequence]) + at.head * C::state + first + column);
    wait_for_copies<1>();
    __syncthreads();
    for (int chunk = at.chunks - 1; chunk >= 0; --chunk) {
        gradient.store(dstates + unit(chunk) * C::state + first + column);
        Fragment after[C::width / 16], d_out[C::tiles], values[C::tiles];
        gradient.pack(after);
        {
            float sum[C::tiles][2][4] = {};
            read_state<C>(sum, after, m.k);
#pragma unroll
            for (int i = 0; i < C::tiles; ++i) {
                load_a_turned(d_out[i], m.value, Sl::pitch, 16 * i, column);
#pragma unroll
                for (int t = 0; t <= i; ++t) {
                    Fragment b;
                    load_b_turned(b, m.p, C::narrow, 16 * i, 16 * t);
                    multiply_tile(sum[t], d_out[i], b);
                }
            }
#pragma unroll
            for (int t = 0; t < C::tiles; ++t) {
                pack_tile(values[t], sum[t]);
                store_turned(values[t], m.out, Sl::pitch, 16 * t, column);
            }
        }
        write_columns<C, Sl>(dvalues + unit(chunk) * C::rows * C::width + first, C::width, C::rows, m.out);
        wait_for_copies<0>();
        __syncthreads();
        load_values(chunk - 1);
        gradient.decay(m.end);
        gradient.add(d_out, m.q);
        gradient.add(values, m.w);
        wait_for_copies<0>();
        __syncthreads();
        load_update(chunk - 1);
    }
    wait_for_copies<0>();
    if (dinitial.rows != 0) gradient.store(dinitial.row(seq.slots[at.sequence]) + at.head * C::state + first + column);
}

}  // namespace kimik3::gpu::kda
