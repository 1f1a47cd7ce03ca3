#pragma once
// Attention over cached latents on tensor cores, made for few new tokens: a block of four warps takes 16 heads of one
// token and a part of its keys. Sequences of few new tokens are split into parts, by nothing but their own number of
// keys; the parts leave sums, highest scores and totals in scratch memory, and a second kernel puts them together.

#include "kimik3/ops/cuda/latent_attention_parts.cuh"

namespace kimik3::gpu::latent {

/// For latents of up to 128 columns: every warp for itself takes each fourth tile of 16 keys, in two stages; at the end
/// the warps' sums are put together. Shared memory: queries [16], and for each warp two stages of 16 keys.
struct Narrow {
    static constexpr int keys = 16, warps = threads / 32, units = 8, most_latent = 16 * units;
    static int bytes(Index width) { return static_cast<int>((block_heads + warps * 2 * keys) * (width + 8) * 2); }
};

__global__ void __launch_bounds__(threads) narrow_kernel(const __grid_constant__ Operands in) {
    extern __shared__ __align__(16) unsigned char latent_memory[];
    __shared__ float ends[Narrow::warps][block_heads][2];
    const Work work(in);
    start_dependents();
    if (work.first >= work.keys) return;
    const int latent = static_cast<int>(in.latent), stride = in.stride(), warp = threadIdx.x / 32,
              lane = threadIdx.x % 32, row = lane / 4, column = lane % 4 * 2;
    bf16 *queries = reinterpret_cast<bf16*>(latent_memory), *tiles = queries + block_heads * stride,
         *stages = tiles + warp * 2 * Narrow::keys * stride;
    const int keys = static_cast<int>(work.end - work.first);
    const bf16* cache = in.cache.row(in.seq.slots[work.s]) + work.first * in.width();
    const auto copy_tile = [&](int tile, int stage) {
        const int begin = tile * Narrow::keys;
        if (begin < keys)
            copy_keys(in, cache + begin * in.width(), Narrow::keys, min(keys - begin, Narrow::keys),
                      stages + stage * Narrow::keys * stride, lane, 32);
        commit_copies();
    };
    copy_queries(in, work, queries);
    copy_tile(warp, 0);
    copy_tile(warp + Narrow::warps, 1);
    wait_for_copies<1>();
    __syncthreads();

    float sums[Narrow::units][2][4] = {}, highest[2] = {-INFINITY, -INFINITY}, total[2] = {0.0f, 0.0f};
    for (int tile = warp, stage = 0; tile * Narrow::keys < keys; tile += Narrow::warps, stage ^= 1) {
        wait_for_copies<1>();
        __syncwarp();
        const bf16* rows = stages + stage * Narrow::keys * stride;
        float s[2][4] = {}, fade[2];
        score(in, queries, rows, s);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            float now = highest[r], sum = 0.0f;
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                float& one = s[e / 2][2 * r + e % 2];
                one = tile * Narrow::keys + e / 2 * 8 + column + e % 2 < keys ? one * in.scale2 : -INFINITY;
                now = fmaxf(now, one);
            }
            now = fmaxf(now, __shfl_xor_sync(0xffffffffu, now, 1));
            now = fmaxf(now, __shfl_xor_sync(0xffffffffu, now, 2));
            fade[r] = power_of_2(highest[r] - now);
            highest[r] = now;
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                float& one = s[e / 2][2 * r + e % 2];
                one = power_of_2(one - now);
                sum += one;
            }
            total[r] = total[r] * fade[r] + sum;
        }
        const std::uint32_t a[4] = {pack_bf16(s[0][0], s[0][1]), pack_bf16(s[0][2], s[0][3]),
                                    pack_bf16(s[1][0], s[1][1]), pack_bf16(s[1][2], s[1][3])};
#pragma unroll
        for (int u = 0; u < Narrow::units; ++u) {
            if (u * 16 >= latent) break;
#pragma unroll
            for (int e = 0; e < 8; ++e) sums[u][e / 4][e % 4] *= fade[e / 2 % 2];
            add_latents(sums[u], a, rows + lane % 16 * stride + lane / 16 * 8 + u * 16);
        }
        __syncwarp();
        copy_tile(tile + 2 * Narrow::warps, stage);
    }
    wait_for_copies<0>();
    __syncthreads();

    float* left = reinterpret_cast<float*>(tiles);  // [warps, 16, latent]
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        total[r] += __shfl_xor_sync(0xffffffffu, total[r], 1);
        total[r] += __shfl_xor_sync(0xffffffffu, total[r], 2);
        const int h = row + 8 * r;
        if (h >= work.heads) continue;
        if (lane % 4 == 0) ends[warp][h][0] = highest[r], ends[warp][h][1] = total[r];
#pragma unroll
        for (int u = 0; u < Narrow::units; ++u)
#pragma unroll
            for (int half = 0; half < 2; ++half)
                if (u * 16 < latent)
                    *reinterpret_cast<float2*>(left + (warp * block_heads + h) * latent + u * 16 + half * 8 + column) =
                        make_float2(sums[u][half][2 * r], sums[u][half][2 * r + 1]);
    }
    __syncthreads();
    const int pairs = latent / 2;
    const Divisor head(pairs);
    for (int e = threadIdx.x; e < work.heads * pairs; e += threads) {
        const int h = head.of(e), c = (e - h * pairs) * 2;
        float now = ends[0][h][0], all = 0.0f, one = 0.0f, two = 0.0f;
#pragma unroll
        for (int w = 1; w < Narrow::warps; ++w) now = fmaxf(now, ends[w][h][0]);
#pragma unroll
        for (int w = 0; w < Narrow::warps; ++w) {
            const float weight = power_of_2(ends[w][h][0] - now);
            const float2 sum = *reinterpret_cast<const float2*>(left + (w * block_heads + h) * latent + c);
            one += weight * sum.x, two += weight * sum.y, all += weight * ends[w][h][1];
        }
        work.store(in, h, c, one, two, all);
        if (c == 0) work.store_end(in, h, now, all);
    }
}

/// For wider latents: the warps share out the keys of a tile of 64 for the scores, and the latent's columns for the
/// sums. Shared memory: queries [16], keys [64], and scores [16, 68] float.
struct Wide {
    static constexpr int keys = 64, score_stride = keys + 4, units = 8, most_latent = 64 * units;
    static int bytes(Index width) {
        return static_cast<int>((block_heads + keys) * (width + 8) * 2 + block_heads * score_stride * 4);
    }
};

__global__ void __launch_bounds__(threads) wide_kernel(const __grid_constant__ Operands in) {
    extern __shared__ __align__(16) unsigned char latent_memory[];
    const Work work(in);
    start_dependents();
    if (work.first >= work.keys) return;
    const int latent = static_cast<int>(in.latent), stride = in.stride(), warp = threadIdx.x / 32,
              lane = threadIdx.x % 32, row = lane / 4, column = lane % 4 * 2;
    bf16 *queries = reinterpret_cast<bf16*>(latent_memory), *tile = queries + block_heads * stride;
    float* scores = reinterpret_cast<float*>(tile + Wide::keys * stride);
    const bf16* cache = in.cache.row(in.seq.slots[work.s]);
    copy_queries(in, work, queries);
    float sums[Wide::units][2][4] = {}, highest[2] = {-INFINITY, -INFINITY}, total[2] = {0.0f, 0.0f};
    for (Index begin = work.first; begin < work.end; begin += Wide::keys) {
        const int count = static_cast<int>(work.end - begin < Wide::keys ? work.end - begin : Wide::keys);
        copy_keys(in, cache + begin * in.width(), Wide::keys, count, tile, threadIdx.x, threads);
        commit_copies();
        wait_for_copies<0>();
        __syncthreads();
        float s[2][4] = {};
        score(in, queries, tile + warp * 16 * stride, s);
#pragma unroll
        for (int e = 0; e < 8; ++e) {
            const int j = warp * 16 + e / 4 * 8 + column + e % 2;
            scores[(row + e / 2 % 2 * 8) * Wide::score_stride + j] =
                j < count ? s[e / 4][e % 4] * in.scale2 : -INFINITY;
        }
        __syncthreads();

        float p[4][8], fade[2];
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            float now = highest[r], sum = 0.0f;
#pragma unroll
            for (int pair = 0; pair < 8; ++pair) {
                const float2 both = *reinterpret_cast<const float2*>(scores + (row + 8 * r) * Wide::score_stride +
                                                                     pair * 8 + column);
                float* to = &p[pair / 2][pair % 2 * 4 + 2 * r];
                to[0] = both.x, to[1] = both.y;
                now = fmaxf(now, fmaxf(both.x, both.y));
            }
            now = fmaxf(now, __shfl_xor_sync(0xffffffffu, now, 1));
            now = fmaxf(now, __shfl_xor_sync(0xffffffffu, now, 2));
            fade[r] = power_of_2(highest[r] - now);
            highest[r] = now;
#pragma unroll
            for (int e = 0; e < 16; ++e) {
                float& weight = p[e / 4][e / 2 % 2 * 4 + 2 * r + e % 2];
                weight = power_of_2(weight - now);
                sum += weight;
            }
            total[r] = total[r] * fade[r] + sum;
        }
#pragma unroll
        for (int u = 0; u < Wide::units; ++u)
#pragma unroll
            for (int e = 0; e < 8; ++e) sums[u][e / 4][e % 4] *= fade[e / 2 % 2];
#pragma unroll
        for (int step = 0; step < 4; ++step) {
            std::uint32_t a[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) a[i] = pack_bf16(p[step][2 * i], p[step][2 * i + 1]);
            const bf16* rows = tile + (step * 16 + lane % 16) * stride + lane / 16 * 8 + warp * 16;
#pragma unroll
            for (int u = 0; u < Wide::units; ++u) {
                if ((u * 4 + warp) * 16 >= latent) break;
                add_latents(sums[u], a, rows + u * 64);
            }
        }
        __syncthreads();
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        total[r] += __shfl_xor_sync(0xffffffffu, total[r], 1);
        total[r] += __shfl_xor_sync(0xffffffffu, total[r], 2);
        const int h = row + 8 * r;
        if (h >= work.heads) continue;
#pragma unroll
        for (int u = 0; u < Wide::units; ++u)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int c = (u * 4 + warp) * 16 + half * 8 + column;
                if (c < latent) work.store(in, h, c, sums[u][half][2 * r], sums[u][half][2 * r + 1], total[r]);
            }
        if (warp == 0 && lane % 4 == 0) work.store_end(in, h, highest[r], total[r]);
    }
}

inline bool suits(const MlaHeads& heads, Index latent, std::initializer_list<MatrixView<const bf16>> matrices) {
    const auto in_pieces = [](MatrixView<const bf16> m) {
        return reinterpret_cast<std::uintptr_t>(m.data) % 16 == 0 && m.stride % 8 == 0;
    };
    return latent > 0 && latent % 16 == 0 && heads.shared % 16 == 0 && heads.nope % 8 == 0 &&
           latent <= Wide::most_latent && latent + heads.shared <= most_width &&
           std::ranges::all_of(matrices, in_pieces);
}

inline void launch(const Context<Cuda>& ctx, const Sequences& seq, const MlaHeads& heads, MatrixView<const bf16> q_lat,
                   MatrixView<const bf16> q, MatrixView<const bf16> cache, MatrixView<bf16> o_lat) {
    const Index tokens = seq.tokens(), latent = o_lat.cols / heads.count, groups = ceil_div(heads.count, block_heads);
    if (tokens == 0) return;
    const Split split(heads, latent);
    Index parts = 1;
    for (Index s = 0; s < seq.count(); ++s)
        for (Index t = 0; t < seq.length(s) && seq.length(s) <= few_tokens; ++t)
            parts = (std::max)(parts, split.parts(seq.length(s), seq.past(s) + t + 1));
    const Index places = parts > 1 ? tokens * heads.count * parts : 0;
    float* memory = ctx.workspace<float>(Scratch::operation, places * (latent + 2));
    const bool one_each = tokens == seq.count() && seq.longest() == 1;
    const float scale2 = static_cast<float>(heads.scale() * 1.4426950408889634);
    const Operands in{heads, DeviceSequences(ctx, seq), split, latent, parts, one_each, scale2, q_lat, q, cache, o_lat,
                      memory, memory + places * latent};
    const bool narrow = latent <= Narrow::most_latent;
    const auto kernel = narrow ? narrow_kernel : wide_kernel;
    const int bytes = narrow ? Narrow::bytes(latent + heads.shared) : Wide::bytes(latent + heads.shared);
    KIMIK3_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
    kernel<<<exact_grid(tokens * groups * parts), threads, to_size(bytes), ctx.stream()>>>(in);
    check_launch();
    if (parts == 1) return;
    cudaLaunchAttribute early{};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = exact_grid(tokens * heads.count), config.blockDim = 256, config.stream = ctx.stream();
    config.attrs = &early, config.numAttrs = 1;
    KIMIK3_CUDA(cudaLaunchKernelEx(&config, join_kernel, in));
}

}  // namespace kimik3::gpu::latent
