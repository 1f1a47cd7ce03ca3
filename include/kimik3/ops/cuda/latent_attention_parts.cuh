#pragma once
// What attention over cached latents on tensor cores is made of: how the keys of a token are split, the steps of a
// tile, and the kernel that puts parts together (latent_attention_bf16.cuh).

#include "kimik3/ops/cuda/quick_formulas.cuh"
#include "kimik3/ops/cuda/tensor_core.cuh"
#include "kimik3/ops/latent_attention.hpp"

namespace kimik3::gpu::latent {

inline constexpr int threads = 128, block_heads = 16, most_parts = 128, few_tokens = 16;
inline constexpr int most_width = 640;

/// How the keys of a token are split, by the model's shape, the sequence's new tokens and the keys themselves.
struct Split {
    Index unit;  // parts are a multiple of so many keys
    std::uint32_t most_parts;

    Split(const MlaHeads& heads, Index latent)
        : unit(latent <= 128 ? 64 : 128),
          most_parts(static_cast<std::uint32_t>(
              (std::max)(Index{16}, latent::most_parts / ceil_div(heads.count, block_heads)))) {}

    KIMIK3_HOST_DEVICE Index part_keys(Index length, Index keys) const {
        if (length > few_tokens) return keys;
        const Index least = (static_cast<std::uint32_t>(keys) + most_parts - 1) / most_parts;
        return (least + unit - 1) & -unit;
    }
    KIMIK3_HOST_DEVICE Index parts(Index length, Index keys) const {
        return (static_cast<std::uint32_t>(keys) - 1) / static_cast<std::uint32_t>(part_keys(length, keys)) + 1;
    }
};

struct Operands {
    MlaHeads heads;
    DeviceSequences seq;
    Split split;
    Index latent, parts;  // parts: the most of any token
    Index blocks, run;    // blocks of a token and 16 heads, and how many parts each takes
    bool one_each;        // every sequence has one new token
    float scale2;         // for powers of 2
    MatrixView<const bf16> q_lat, q, cache;
    MatrixView<bf16> o_lat;
    float *sums, *ends;  // [tokens H, parts, c], and the highest score and the total [tokens H, parts, 2]

    __device__ Index width() const { return latent + heads.shared; }
    __device__ Index groups() const { return (heads.count + block_heads - 1) / block_heads; }
    __device__ Index sequence(Index n) const { return one_each ? n : seq.of(n); }
    __device__ Index length(Index s) const { return one_each ? 1 : seq.length(s); }
    __device__ Index keys(Index n, Index s) const { return seq.pasts[s] + (one_each ? 1 : n - seq.begin(s) + 1); }
};

/// What a block works on: up to 16 heads of token n, keys [first, end) of its own: `run` parts from the given one on.
struct Work {
    Index n, s, slot, head, keys, size, part, first, end;
    int heads;
    bool whole;

    __device__ explicit Work(const Operands& in) {
        const unsigned blocks = static_cast<unsigned>(in.blocks), groups = static_cast<unsigned>(in.groups());
        part = blockIdx.x % blocks * in.run, head = blockIdx.x / blocks % groups * block_heads;
        n = blockIdx.x / blocks / groups, s = in.sequence(n), slot = in.seq.slots[s], keys = in.keys(n, s);
        size = in.split.part_keys(in.length(s), keys);
        whole = size >= keys;
        first = part * size, end = first + in.run * size < keys ? first + in.run * size : keys;
        heads = static_cast<int>(in.heads.count - head < block_heads ? in.heads.count - head : block_heads);
    }
    __device__ Index place(const Operands& in, int h) const {
        return (n * in.heads.count + head + h) * in.parts + part;
    }
    /// Two columns of head h, of the result or of the part's sums.
    __device__ void store(const Operands& in, int h, int c, float one, float two, float total) const {
        if (whole)
            *reinterpret_cast<std::uint32_t*>(in.o_lat.row(n) + (head + h) * in.latent + c) =
                pack_bf16(one / total, two / total);
        else *reinterpret_cast<float2*>(in.sums + place(in, h) * in.latent + c) = make_float2(one, two);
    }
    __device__ void store_end(const Operands& in, int h, float highest, float total) const {
        if (!whole) *reinterpret_cast<float2*>(in.ends + place(in, h) * 2) = make_float2(highest, total);
    }
};

/// The sizes of a token's row in the cache; those of a latent of 128 and a shared key of 64 are known when compiled.
template <bool usual>
struct Sizes {
    const Operands& in;

    __device__ __forceinline__ int latent() const { return usual ? 128 : static_cast<int>(in.latent); }
    __device__ __forceinline__ int width() const { return usual ? 192 : static_cast<int>(in.width()); }
    __device__ __forceinline__ int stride() const { return width() + 8; }  // of rows in shared memory
    __device__ __forceinline__ int pieces() const { return width() / 8; }  // of 16 bytes
};

/// e / divisor for e below 8,192 by a multiplication with 2^20 / divisor, rounded up.
struct Divisor {
    std::uint32_t by, factor;

    __device__ __forceinline__ explicit Divisor(int divisor) : by(divisor), factor(((1u << 20) + by - 1) / by) {}
    __device__ __forceinline__ int of(int e) const {
        return static_cast<int>(static_cast<std::uint32_t>(e) * factor >> 20);
    }
};

/// The queries of the block's heads on their way to [16, width + 8] in shared memory.
template <bool usual>
__device__ __forceinline__ void copy_queries(const Operands& in, const Work& work, bf16* to) {
    const Sizes<usual> sizes{in};
    const int latent = sizes.latent(), pieces = sizes.pieces();
    const Divisor row(pieces);
#pragma unroll 3
    for (int e = threadIdx.x; e < block_heads * pieces; e += threads) {
        const int h = row.of(e), c = (e - h * pieces) * 8;
        const Index head = work.head + (h < work.heads ? h : 0);
        copy_16_bytes(to + h * sizes.stride() + c,
                      c < latent ? in.q_lat.row(work.n) + head * latent + c
                                 : in.q.row(work.n) + head * in.heads.key() + in.heads.nope + c - latent,
                      h < work.heads);
    }
}

/// keys of the cache from the given row on, of which count exist, on their way to [keys, width + 8], by `size` threads;
/// rank: which of them this one is. The rows stand one after another.
template <bool usual, int keys, int size>
__device__ __forceinline__ void copy_keys(const Operands& in, const bf16* from, int count, bf16* to, int rank) {
    const int pieces = Sizes<usual>{in}.pieces(), end = count * pieces;
    const Divisor row(pieces);
#pragma unroll 12
    for (int e = rank; e < keys * pieces; e += size)
        copy_16_bytes(to + (e + row.of(e)) * 8, from + (e < end ? e * 8 : 0), e < end);
}

/// Scores of 16 heads and 16 keys, laid out as the result of two products.
template <bool usual>
__device__ __forceinline__ void score(const Operands& in, const bf16* queries, const bf16* keys, float (&s)[2][4]) {
    const int lane = threadIdx.x % 32, width = Sizes<usual>{in}.width(), stride = width + 8;
    queries += lane % 16 * stride + lane / 16 * 8, keys += (lane % 8 + lane / 16 * 8) * stride + lane / 8 % 2 * 8;
    float parts[2][2][4] = {};  // of even and of odd steps, so that products wait less for one another
#pragma unroll 12
    for (int c = 0; c < width; c += 16) {
        std::uint32_t a[4], b[4];
        load_matrices(a, queries + c);
        load_matrices(b, keys + c);
        float(&to)[2][4] = parts[usual ? c / 16 % 2 : 0];
        multiply_add(to[0], a, b[0], b[1]);
        multiply_add(to[1], a, b[2], b[3]);
    }
#pragma unroll
    for (int e = 0; e < 8; ++e) s[e / 4][e % 4] = parts[0][e / 4][e % 4] + parts[1][e / 4][e % 4];
}

/// A warp sums 16 columns of the latents of 16 keys, from row rows + lane % 16 on: sum += a rows.
__device__ __forceinline__ void add_latents(float (&sum)[2][4], const std::uint32_t (&a)[4], const bf16* rows) {
    std::uint32_t b[4];
    load_matrices_transposed(b, rows);
    multiply_add(sum[0], a, b[0], b[1]);
    multiply_add(sum[1], a, b[2], b[3]);
}

/// A block a token and head: groups of latent / 4 threads sum every so many parts, and then the groups are added up.
template <class T>
__global__ void __launch_bounds__(256) join_kernel(const __grid_constant__ Operands in) {
    __shared__ float weights[most_parts], sum_of_weights;
    __shared__ float4 joined[256];
    const Index n = blockIdx.x / in.heads.count, h = blockIdx.x % in.heads.count;
    const Index s = in.sequence(n);
    const int parts = static_cast<int>(in.split.parts(in.length(s), in.keys(n, s))),
              latent = static_cast<int>(in.latent);
    await_predecessor();  // every block, so that whoever waits for this kernel waits for the one before
    if (parts == 1) return;
    const Index place = blockIdx.x * in.parts;
    if (threadIdx.x < 32) {
        float2 ends[most_parts / 32];
        float now = -INFINITY, total = 0.0f;
#pragma unroll
        for (int i = 0; i < most_parts / 32; ++i) {
            const int p = i * 32 + threadIdx.x;
            ends[i] = p < parts ? *reinterpret_cast<const float2*>(in.ends + (place + p) * 2)
                                : make_float2(-INFINITY, 0.0f);
            now = fmaxf(now, ends[i].x);
        }
        now = warp_max(now);
#pragma unroll
        for (int i = 0; i < most_parts / 32; ++i) {
            const float weight = quick_exp2(ends[i].x - now);
            weights[i * 32 + threadIdx.x] = weight;
            total += weight * ends[i].y;
        }
        total = warp_sum(total);
        if (threadIdx.x == 0) sum_of_weights = total;
    }
    __syncthreads();
    const int lanes = latent / 4, groups = 256 / lanes, group = threadIdx.x / lanes, c = threadIdx.x % lanes * 4;
    float4 sum = {0.0f, 0.0f, 0.0f, 0.0f};
    if (group < groups)
#pragma unroll 8
        for (int p = group; p < parts; p += groups) {
            const float4 more = *reinterpret_cast<const float4*>(in.sums + (place + p) * latent + c);
            const float w = weights[p];
            sum.x += w * more.x, sum.y += w * more.y, sum.z += w * more.z, sum.w += w * more.w;
        }
    joined[threadIdx.x] = sum;
    __syncthreads();
    if (group != 0) return;
    for (int g = 1; g < groups; ++g) {
        const float4 more = joined[g * lanes + threadIdx.x];
        sum.x += more.x, sum.y += more.y, sum.z += more.z, sum.w += more.w;
    }
    const float share = 1.0f / sum_of_weights;
    *reinterpret_cast<uint2*>(in.o_lat.row(n) + h * latent + c) = {pack_bf16(sum.x * share, sum.y * share),
                                                                   pack_bf16(sum.z * share, sum.w * share)};
}

}  // namespace kimik3::gpu::latent
