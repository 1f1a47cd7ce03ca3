#pragma once
// Attention over cached latents on tensor cores, made for few new tokens: a block takes 16 heads of one token and a part
// of its keys, in tiles of 64. Its four warps share out the keys of a tile for the scores and the latent's columns for
// the sums. Sequences of few new tokens are split into parts, by nothing but their own number of keys; the parts leave
// sums, highest scores and totals in scratch memory, and a second kernel puts them together in order.

#include "kimik3/ops/cuda/tensor_core.cuh"
#include "kimik3/ops/latent_attention.hpp"

namespace kimik3::gpu::latent {

inline constexpr int threads = 128, tile_keys = 64, block_heads = 16, most_parts = 128, few_tokens = 16;
inline constexpr int most_latent = 512, most_width = 640, score_stride = tile_keys + 4;

/// How many keys a part has.
KIMIK3_HOST_DEVICE inline Index part_keys(Index length, Index keys) {
    if (length > few_tokens) return keys;
    const Index least = (keys + most_parts - 1) / most_parts;
    return (least + tile_keys - 1) / tile_keys * tile_keys;
}
KIMIK3_HOST_DEVICE inline Index part_count(Index length, Index keys) {
    const Index size = part_keys(length, keys);
    return (keys + size - 1) / size;
}

struct Operands {
    MlaHeads heads;
    DeviceSequences seq;
    Index latent, parts;  // parts: the most of any token
    bool one_each;        // every sequence has one new token
    float scale2;         // for powers of 2
    MatrixView<const bf16> q_lat, q, cache;
    MatrixView<bf16> o_lat;
    float *sums, *ends;  // [tokens H, parts, c], and the highest score and the total [tokens H, parts, 2]

    __device__ Index width() const { return latent + heads.shared; }
    __device__ Index sequence(Index n) const { return one_each ? n : seq.of(n); }
    __device__ Index keys(Index n, Index s) const { return seq.pasts[s] + n - seq.begin(s) + 1; }
};

/// Shared memory in elements of bf16: queries [16, width + 8], keys [64, width + 8]; then scores [16, 68] float.
inline Index shared_bytes(Index width) {
    return (block_heads + tile_keys) * (width + 8) * 2 + block_heads * score_stride * 4;
}

__device__ __forceinline__ float power_of_2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/// units: of 16 columns of the latent, at most, that a warp sums.
template <int units>
__global__ void __launch_bounds__(threads) attention_kernel(const __grid_constant__ Operands in) {
    extern __shared__ __align__(16) unsigned char latent_memory[];
    const Index groups = (in.heads.count + block_heads - 1) / block_heads, part = blockIdx.x % in.parts,
                group = blockIdx.x / in.parts % groups, n = blockIdx.x / in.parts / groups;
    const Index s = in.sequence(n), keys = in.keys(n, s), length = in.seq.length(s), size = part_keys(length, keys);
    const Index first = part * size, end = first + size < keys ? first + size : keys;
    if (first >= keys) return;
    const int width = static_cast<int>(in.width()), stride = width + 8, pieces = width / 8;
    const int latent = static_cast<int>(in.latent), warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int row = lane / 4, column = lane % 4 * 2, heads = static_cast<int>(in.heads.count - group * block_heads);
    bf16 *queries = reinterpret_cast<bf16*>(latent_memory), *tile = queries + block_heads * stride;
    float* scores = reinterpret_cast<float*>(tile + tile_keys * stride);

    for (int e = threadIdx.x; e < block_heads * pieces; e += threads) {
        const int h = e / pieces, c = e % pieces * 8;
        const bool exists = h < heads;
        const Index head = group * block_heads + (exists ? h : 0);
        copy_16_bytes(queries + h * stride + c,
                      c < latent ? in.q_lat.row(n) + head * latent + c
                                 : in.q.row(n) + head * in.heads.key() + in.heads.nope + c - latent,
                      exists);
    }
    const bf16* cache = in.cache.row(in.seq.slots[s]);
    const bf16* fragment_rows = queries + lane % 16 * stride + lane / 16 * 8;
    float sums[units][2][4] = {}, highest[2] = {-INFINITY, -INFINITY}, total[2] = {0.0f, 0.0f};
    for (Index begin = first; begin < end; begin += tile_keys) {
        const int count = static_cast<int>(end - begin < tile_keys ? end - begin : tile_keys);
        for (int e = threadIdx.x; e < tile_keys * pieces; e += threads) {
            const int j = e / pieces, c = e % pieces * 8;
            copy_16_bytes(tile + j * stride + c, cache + (begin + (j < count ? j : 0)) * width + c, j < count);
        }
        commit_copies();
        wait_for_copies<0>();
        __syncthreads();

        float s16[2][4] = {};
        const bf16* own_keys = tile + (warp * 16 + lane % 8 + lane / 16 * 8) * stride + lane / 8 % 2 * 8;
        for (int c = 0; c < width; c += 16) {
            std::uint32_t a[4], b[4];
            load_matrices(a, fragment_rows + c);
            load_matrices(b, own_keys + c);
            multiply_add(s16[0], a, b[0], b[1]);
            multiply_add(s16[1], a, b[2], b[3]);
        }
#pragma unroll
        for (int half = 0; half < 2; ++half)
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const int j = warp * 16 + half * 8 + column + e % 2;
                scores[(row + e / 2 * 8) * score_stride + j] = j < count ? s16[half][e] * in.scale2 : -INFINITY;
            }
        __syncthreads();

        float p[4][8], fade[2];
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            float now = highest[r];
#pragma unroll
            for (int pair = 0; pair < 8; ++pair) {
                const float2 both = *reinterpret_cast<const float2*>(
                    scores + (row + 8 * r) * score_stride + pair * 8 + column);
                float* to = &p[pair / 2][pair % 2 * 4 + 2 * r];
                to[0] = both.x, to[1] = both.y;
                now = fmaxf(now, fmaxf(both.x, both.y));
            }
            now = fmaxf(now, __shfl_xor_sync(0xffffffffu, now, 1));
            now = fmaxf(now, __shfl_xor_sync(0xffffffffu, now, 2));
            fade[r] = power_of_2(highest[r] - now);
            highest[r] = now;
            float sum = 0.0f;
#pragma unroll
            for (int pair = 0; pair < 8; ++pair)
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    float& weight = p[pair / 2][pair % 2 * 4 + 2 * r + i];
                    weight = power_of_2(weight - now);
                    sum += weight;
                }
            total[r] = total[r] * fade[r] + sum;
        }
#pragma unroll
        for (int u = 0; u < units; ++u)
#pragma unroll
            for (int e = 0; e < 8; ++e) sums[u][e / 4][e % 4] *= fade[e / 2 % 2];
#pragma unroll
        for (int step = 0; step < 4; ++step) {
            std::uint32_t a[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) a[i] = pack_bf16(p[step][2 * i], p[step][2 * i + 1]);
            const bf16* rows = tile + (step * 16 + lane % 16) * stride + lane / 16 * 8;
#pragma unroll
            for (int u = 0; u < units; ++u) {
                const int c = (u * 4 + warp) * 16;
                if (c >= latent) break;
                std::uint32_t b[4];
                load_matrices_transposed(b, rows + c);
                multiply_add(sums[u][0], a, b[0], b[1]);
                multiply_add(sums[u][1], a, b[2], b[3]);
            }
        }
        __syncthreads();
    }

    const bool whole = part_count(length, keys) == 1;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        total[r] += __shfl_xor_sync(0xffffffffu, total[r], 1);
        total[r] += __shfl_xor_sync(0xffffffffu, total[r], 2);
        const int h = row + 8 * r;
        if (h >= heads) continue;
        const Index head = group * block_heads + h, place = (n * in.heads.count + head) * in.parts + part;
#pragma unroll
        for (int u = 0; u < units; ++u)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int c = (u * 4 + warp) * 16 + half * 8 + column;
                if (c >= latent) break;
                const float one = sums[u][half][2 * r], two = sums[u][half][2 * r + 1];
                if (whole)
                    *reinterpret_cast<std::uint32_t*>(in.o_lat.row(n) + head * latent + c) =
                        pack_bf16(one / total[r], two / total[r]);
                else *reinterpret_cast<float2*>(in.sums + place * latent + c) = make_float2(one, two);
            }
        if (!whole && warp == 0 && lane % 4 == 0)
            *reinterpret_cast<float2*>(in.ends + place * 2) = make_float2(highest[r], total[r]);
    }
}

/// A block a token and head: groups of latent / 4 threads sum every so many parts, and then the groups are added up.
__global__ void __launch_bounds__(256) join_kernel(const __grid_constant__ Operands in) {
    __shared__ float weights[most_parts], sum_of_weights;
    __shared__ float4 joined[256];
    const Index n = blockIdx.x / in.heads.count, h = blockIdx.x % in.heads.count;
    const Index s = in.sequence(n);
    const int parts = static_cast<int>(part_count(in.seq.length(s), in.keys(n, s))), latent = static_cast<int>(in.latent);
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
            const float weight = power_of_2(ends[i].x - now);
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

inline bool suits(const MlaHeads& heads, Index latent, std::initializer_list<MatrixView<const bf16>> matrices) {
    return latent > 0 && latent % 16 == 0 && heads.shared % 16 == 0 && heads.nope % 8 == 0 && latent <= most_latent &&
           latent + heads.shared <= most_width && std::ranges::all_of(matrices, [](MatrixView<const bf16> m) {
               return reinterpret_cast<std::uintptr_t>(m.data) % 16 == 0 && m.stride % 8 == 0;
           });
}

inline void launch(const Context<Cuda>& ctx, const Sequences& seq, const MlaHeads& heads, MatrixView<const bf16> q_lat,
                   MatrixView<const bf16> q, MatrixView<const bf16> cache, MatrixView<bf16> o_lat) {
    const Index tokens = seq.tokens(), latent = o_lat.cols / heads.count, groups = ceil_div(heads.count, block_heads);
    if (tokens == 0) return;
    Index parts = 1;
    for (Index s = 0; s < seq.count(); ++s)
        for (Index t = 0; t < seq.length(s) && seq.length(s) <= few_tokens; ++t)
            parts = (std::max)(parts, part_count(seq.length(s), seq.past(s) + t + 1));
    const Index places = parts > 1 ? tokens * heads.count * parts : 0;
    float* memory = ctx.workspace<float>(Scratch::operation, places * (latent + 2));
    const Operands in{heads, DeviceSequences(ctx, seq), latent, parts,
                      tokens == seq.count() && seq.longest() == 1, static_cast<float>(heads.scale() * 1.4426950408889634),
                      q_lat, q, cache, o_lat, memory, memory + places * latent};
    const auto kernel = latent <= 128 ? attention_kernel<2> : attention_kernel<8>;
    const int bytes = static_cast<int>(shared_bytes(in.latent + heads.shared));
    KIMIK3_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
    kernel<<<exact_grid(tokens * groups * parts), threads, to_size(bytes), ctx.stream()>>>(in);
    check_launch();
    if (parts == 1) return;
    join_kernel<<<exact_grid(tokens * heads.count), 256, 0, ctx.stream()>>>(in);
    check_launch();
}

}  // namespace kimik3::gpu::latent
