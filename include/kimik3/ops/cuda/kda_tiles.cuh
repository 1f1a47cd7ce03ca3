#pragma once
// What the tensor-core kernels of KDA share: the shape of a chunk, warp-wide tiles of bf16 in shared memory, and a
// chunk's decay. A chunk of a head has 16 tiles_ tokens and width_ key and value channels. Warp w owns its tokens
// [8 w, 8 w + 8); a thread owns 8 channels of some of them. Decays are kept in powers of two, c_i the sum from the
// chunk's start to token i, and m_I = c at the middle of tile I (its row 7): with |c_i - m_I| <= 8 * 5 log2(e), both
// 2^(c_i - m_I) and its inverse are in range (spec 2.6). Decays between tiles are factors a channel, 2^(m_I - m_J).

#include "kimik3/ops/cuda/quick_formulas.cuh"
#include "kimik3/ops/cuda/tensor_core.cuh"
#include "kimik3/ops/kda_fused.hpp"
#include "kimik3/ops/l2_norm.hpp"

namespace kimik3::gpu::kda {

template <int tiles_, int width_>
struct Chunk {
    static constexpr int tiles = tiles_, width = width_, rows = 16 * tiles, warps = 2 * tiles, threads = 32 * warps,
                         octets = width / 8;
    static constexpr int pitch = width + 8, narrow = rows + 8;  // of [., width] and [., rows] in shared memory
    static constexpr int state = width * width;
};

/// A chunk of a sequence: its first row, its tokens.
struct Place {
    Index first;
    std::int32_t count, sequence;
};

/// bf16 matrices [rows, width] of a head of a chunk in scratch memory, in blocks of 64 columns, one after another for
/// all chunks and heads.
struct Prepared {
    bf16 *w, *u, *q, *k;  // -W, U, Q+, K-bar
    bf16* p;              // [rows, rows] in one block
    bf16 *lower, *inner;  // -L [rows, rows] and the inverses of I + L in tiles of the diagonal; for backward only
    float* end;           // [width] decay of the whole chunk
};

/// Where a block of 64 columns has (row, col): the 16-byte pieces of row r are exchanged by r % 8.
__device__ inline int swizzled(int row, int col) { return row * 64 + ((col / 8 % 8) ^ (row % 8)) * 8 + col % 8; }
template <int rows>
__device__ int in_blocks(int row, int col) {
    return col / 64 * rows * 64 + swizzled(row, col);
}

__device__ inline float fast_sigmoid(float x) {
    return __fdividef(1.0f, 1.0f + quick_exp2(-1.4426950408889634f * x));
}

/// Fragments of 16 x 16 from row-major m at (row, col): a(i, k) and b(k, n), b as two tiles of 8 columns.
__device__ inline int straight(int pitch, int row, int col) {
    const int lane = threadIdx.x % 32;
    return (row + lane % 16) * pitch + col + lane / 16 * 8;
}
__device__ inline int crossed(int pitch, int row, int col) {
    const int lane = threadIdx.x % 32;
    return (row + lane % 8 + lane / 16 * 8) * pitch + col + lane / 8 % 2 * 8;
}
using Fragment = std::uint32_t[4];
__device__ inline void load_a(Fragment& a, const bf16* m, int pitch, int row, int col) {
    load_matrices(a, m + straight(pitch, row, col));  // m(row + i, col + k)
}
__device__ inline void load_a_turned(Fragment& a, const bf16* m, int pitch, int row, int col) {
    load_matrices_transposed(a, m + crossed(pitch, row, col));  // m(row + k, col + i)
}
__device__ inline void load_b(Fragment& b, const bf16* m, int pitch, int row, int col) {
    load_matrices(b, m + crossed(pitch, row, col));  // m(row + n, col + k)
}
__device__ inline void load_b_turned(Fragment& b, const bf16* m, int pitch, int row, int col) {
    load_matrices_transposed(b, m + straight(pitch, row, col));  // m(row + k, col + n)
}
__device__ inline void multiply_tile(float (&c)[2][4], const Fragment& a, const Fragment& b) {
    multiply_add(c[0], a, b[0], b[1]);
    multiply_add(c[1], a, b[2], b[3]);
}

/// A tile of sums [16, 16] as an operand a, and back.
__device__ inline void pack_tile(Fragment& a, const float (&c)[2][4]) {
    a[0] = pack_bf16(c[0][0], c[0][1]), a[1] = pack_bf16(c[0][2], c[0][3]);
    a[2] = pack_bf16(c[1][0], c[1][1]), a[3] = pack_bf16(c[1][2], c[1][3]);
}
__device__ inline void unpack_tile(float (&c)[2][4], const Fragment& a) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const float2 both = unpack_bf16(a[i]);
        c[i / 2][i % 2 * 2] = both.x, c[i / 2][i % 2 * 2 + 1] = both.y;
    }
}
__device__ inline std::uint32_t transposed_8x8(std::uint32_t m) {
    std::uint32_t turned;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(turned) : "r"(m));
    return turned;
}
/// m(row + j, col + i) = a(i, j).
__device__ inline void store_turned(const Fragment& a, bf16* m, int pitch, int row, int col) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        bf16* to = m + (row + i / 2 * 8 + lane / 4) * pitch + col + i % 2 * 8 + lane % 4 * 2;
        *reinterpret_cast<std::uint32_t*>(to) = transposed_8x8(a[i]);
    }
}
__device__ inline std::uint32_t multiply_pairs(std::uint32_t a, std::uint32_t b) {
    std::uint32_t c;
#if KIMIK3_FROM_90
    asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
#else
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(c) : "r"(a), "r"(b), "r"(0x80008000u));  // + -0.0
#endif
    return c;
}

__device__ inline void unpack_8(float (&to)[8], const uint4& from) {
    const std::uint32_t words[4] = {from.x, from.y, from.z, from.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const float2 both = unpack_bf16(words[i]);
        to[2 * i] = both.x, to[2 * i + 1] = both.y;
    }
}
__device__ inline uint4 pack_8(const float (&from)[8]) {
    return {pack_bf16(from[0], from[1]), pack_bf16(from[2], from[3]), pack_bf16(from[4], from[5]),
            pack_bf16(from[6], from[7])};
}
__device__ inline uint4& as_16_bytes(bf16* p) { return *reinterpret_cast<uint4*>(p); }
__device__ inline const uint4& as_16_bytes(const bf16* p) { return *reinterpret_cast<const uint4*>(p); }
__device__ inline void write_8(float* to, const float (&from)[8]) {
#pragma unroll
    for (int i = 0; i < 2; ++i)
        reinterpret_cast<float4*>(to)[i] = {from[4 * i], from[4 * i + 1], from[4 * i + 2], from[4 * i + 3]};
}
__device__ inline void read_8(float (&to)[8], const float* from) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const float4 four = reinterpret_cast<const float4*>(from)[i];
        to[4 * i] = four.x, to[4 * i + 1] = four.y, to[4 * i + 2] = four.z, to[4 * i + 3] = four.w;
    }
}

/// Begins to bring memory into the L2 cache: rows of a head, or an array, a line of 128 bytes a thread.
__device__ inline void expect_line(const bf16* at) { asm volatile("prefetch.global.L2 [%0];" ::"l"(at)); }
template <class C, int threads>
__device__ void expect_rows(const MatrixView<const bf16>& m, const Place& place, Index head) {
    constexpr int lines = C::width / 64;
    for (int i = threadIdx.x; i < place.count * lines; i += threads)
        expect_line(m.row(place.first + i / lines) + head * C::width + i % lines * 64);
}
template <int threads, int count>
__device__ void expect_array(const bf16* from) {
    for (int i = threadIdx.x; i < count / 64; i += threads) expect_line(from + i * 64);
}

/// Copies [rows, cols] with 16 bytes a thread and step; rows from count on are zeros.
template <int threads, int rows, int cols>
__device__ void copy_tile(bf16* to, int pitch, const bf16* from, Index stride, int count = rows) {
    constexpr int pieces = cols / 8;
#pragma unroll
    for (int i = threadIdx.x; i < rows * pieces; i += threads) {
        const int row = i / pieces, col = i % pieces * 8;
        copy_16_bytes(to + row * pitch + col, row < count ? from + row * stride + col : from, row < count);
    }
}

/// A thread's part of a chunk, of which each of the warps has as many tokens: own tokens from row on, 8 channels from
/// channel on.
template <class C, int warps>
struct Part {
    static constexpr int threads = 32 * warps, tokens = C::rows / warps, own = tokens * C::octets / 32;
    int lane, warp, channel, row;
    uint4 q[own], k[own], z[own];  // raw
    float q_r[own], k_r[own];      // 1 / norm
    float c[own][8];               // relative to the middle of the tile

    __device__ Part()
        : lane(threadIdx.x % 32),
          warp(threadIdx.x / 32),
          channel(lane % C::octets * 8),
          row(tokens * warp + lane / C::octets * own) {}

    __device__ int tile() const { return row / 16; }
    /// m_I of a channel: sums at the last warp of the first half of the tile.
    __device__ static int middle(int tile) { return (16 * tile + 8) / tokens - 1; }

    __device__ static uint4 raw(const MatrixView<const bf16>& m, const Place& place, Index head, int at, int col) {
        if (at >= place.count) return uint4{0, 0, 0, 0};
        return as_16_bytes(m.row(place.first + at) + head * C::width + col);
    }
    __device__ static float unit_scale(const uint4& x) {
        float values[8], squares = 0;
        unpack_8(values, x);
#pragma unroll
        for (int e = 0; e < 8; ++e) squares += values[e] * values[e];
#pragma unroll
        for (int apart = 1; apart < C::octets; apart *= 2) squares += __shfl_xor_sync(0xffffffffu, squares, apart);
        return rsqrtf(squares + static_cast<float>(l2_norm_eps));
    }

    __device__ void fetch(const KdaRawInput<bf16>& in, const Place& place, Index head) {
#pragma unroll
        for (int t = 0; t < own; ++t) {
            q[t] = raw(in.q, place, head, row + t, channel);
            k[t] = raw(in.k, place, head, row + t, channel);
            z[t] = raw(in.z, place, head, row + t, channel);
        }
    }
    /// Norms and decays of what was fetched; sums: [warps, width], afterwards c at the last token of every warp.
    __device__ void prepare(const KdaRawInput<bf16>& in, const Place& place, Index head, float bound, float* sums) {
        const float rate = expf(in.A_log[head]);
        const float* bias = in.dt_bias.data + head * C::width + channel;
#pragma unroll
        for (int t = 0; t < own; ++t) {
            q_r[t] = unit_scale(q[t]), k_r[t] = unit_scale(k[t]);
            unpack_8(c[t], z[t]);
#pragma unroll
            for (int e = 0; e < 8; ++e) {
                const float g = bound * 1.4426950408889634f * fast_sigmoid(rate * (c[t][e] + bias[e]));
                c[t][e] = (row + t < place.count ? g : 0.0f) + (t > 0 ? c[t > 0 ? t - 1 : 0][e] : 0.0f);
            }
        }
        float totals[8];
#pragma unroll
        for (int e = 0; e < 8; ++e) {
            float total = c[own - 1][e];
#pragma unroll
            for (int apart = C::octets; apart < 32; apart *= 2) {
                const float before = __shfl_up_sync(0xffffffffu, total, apart);
                if (lane >= apart) total += before;
            }
            const float before = __shfl_up_sync(0xffffffffu, total, C::octets);
            totals[e] = total;
#pragma unroll
            for (int t = 0; t < own; ++t) c[t][e] += lane >= C::octets ? before : 0.0f;
        }
        if (lane >= 32 - C::octets) write_8(sums + warp * C::width + channel, totals);
        __syncthreads();
        for (int a = threadIdx.x; a < C::width; a += threads) {
            float sum = 0, of_warps[warps];
#pragma unroll
            for (int w = 0; w < warps; ++w) of_warps[w] = sums[w * C::width + a];
#pragma unroll
            for (int w = 0; w < warps; ++w) sums[w * C::width + a] = sum += of_warps[w];
        }
        __syncthreads();
        float middle[8], before[8] = {};
        read_8(middle, sums + Part::middle(tile()) * C::width + channel);
        if (warp > 0) read_8(before, sums + (warp - 1) * C::width + channel);
#pragma unroll
        for (int t = 0; t < own; ++t)
#pragma unroll
            for (int e = 0; e < 8; ++e) c[t][e] += before[e] - middle[e];
    }
};

}  // namespace kimik3::gpu::kda
