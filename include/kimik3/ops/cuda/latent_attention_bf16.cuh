#pragma once
// Attention over cached latents on tensor cores, made for few new tokens: a block of four warps takes 16 heads of one
// token and a part of its keys. Sequences of few new tokens are split into parts, by nothing but their own number of
// keys; the parts leave sums, highest scores and totals in scratch memory, and a second kernel puts them together.

#include "kimik3/ops/cuda/latent_attention_parts.cuh"

namespace kimik3::gpu::latent {

/// For latents of up to 128 columns: every warp for itself takes each fourth tile of 16 keys, in two stages; at the end
/// of a part the warps' sums are put together. Shared memory: queries [16], for each warp two stages of 16 keys, and
/// the warps' sums [4, heads, latent] float.
struct Narrow {
    static constexpr int keys = 16, warps = threads / 32, units = 8, most_latent = 16 * units, resident = 3;
    static int bytes(const MlaHeads& heads, Index latent) {
        const Index rows = (block_heads + warps * 2 * keys) * (latent + heads.shared + 8) * 2;
        return static_cast<int>(rows + warps * (std::min)(heads.count, Index{block_heads}) * latent * 4);
    }
};

/// A warp's running softmax and sums for 16 heads.
template <bool usual>
struct NarrowSums {
    float sums[Narrow::units][2][4], highest[2], total[2];

    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int e = 0; e < 8 * Narrow::units; ++e) sums[e / 8][e / 4 % 2][e % 4] = 0.0f;
#pragma unroll
        for (int r = 0; r < 2; ++r) highest[r] = -INFINITY, total[r] = 0.0f;
    }
    /// Takes 16 keys, of which count exist.
    __device__ __forceinline__ void add(const Operands& in, const bf16* queries, const bf16* rows, int count) {
        const Sizes<usual> sizes{in};
        const int lane = threadIdx.x % 32, column = lane % 4 * 2;
        float s[2][4], fade[2];
        score<usual>(in, queries, rows, s);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            float now = highest[r], sum = 0.0f;
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                float& one = s[e / 2][2 * r + e % 2];
                one = e / 2 * 8 + column + e % 2 < count ? one * in.scale2 : -INFINITY;
                now = fmaxf(now, one);
            }
            now = fmaxf(now, __shfl_xor_sync(0xffffffffu, now, 1));
            now = fmaxf(now, __shfl_xor_sync(0xffffffffu, now, 2));
            fade[r] = quick_exp2(highest[r] - now);
            highest[r] = now;
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                float& one = s[e / 2][2 * r + e % 2];
                one = quick_exp2(one - now);
                sum += one;
            }
            total[r] = total[r] * fade[r] + sum;
        }
        const std::uint32_t a[4] = {pack_bf16(s[0][0], s[0][1]), pack_bf16(s[0][2], s[0][3]),
                                    pack_bf16(s[1][0], s[1][1]), pack_bf16(s[1][2], s[1][3])};
        rows += lane % 16 * sizes.stride() + lane / 16 * 8;
#pragma unroll
        for (int u = 0; u < Narrow::units; ++u) {
            if (u * 16 >= sizes.latent()) break;
#pragma unroll
            for (int e = 0; e < 8; ++e) sums[u][e / 4][e % 4] *= fade[e / 2 % 2];
            add_latents(sums[u], a, rows + u * 16);
        }
    }
    /// Leaves the sums of the existing heads in shared memory.
    __device__ __forceinline__ void leave(const Operands& in, int heads, float* left, float (*ends)[2]) {
        const int lane = threadIdx.x % 32, latent = Sizes<usual>{in}.latent();
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            total[r] += __shfl_xor_sync(0xffffffffu, total[r], 1);
            total[r] += __shfl_xor_sync(0xffffffffu, total[r], 2);
            const int h = lane / 4 + 8 * r;
            if (h >= heads) continue;
            if (lane % 4 == 0) ends[h][0] = highest[r], ends[h][1] = total[r];
#pragma unroll
            for (int e = 0; e < 2 * Narrow::units; ++e)
                if (e / 2 * 16 < latent)
                    *reinterpret_cast<float2*>(left + h * latent + e * 8 + lane % 4 * 2) =
                        make_float2(sums[e / 2][e % 2][2 * r], sums[e / 2][e % 2][2 * r + 1]);
        }
    }
};

/// Puts the warps' sums of a part together.
template <bool usual>
__device__ __forceinline__ void store_part(const Operands& in, const Work& work, const float* left,
                                           const float (*ends)[block_heads][2]) {
    const int latent = Sizes<usual>{in}.latent(), pairs = latent / 2;
    const Divisor head(pairs);
    for (int e = threadIdx.x; e < work.heads * pairs; e += threads) {
        const int h = head.of(e), c = (e - h * pairs) * 2;
        float now = ends[0][h][0], all = 0.0f, one = 0.0f, two = 0.0f;
#pragma unroll
        for (int w = 1; w < Narrow::warps; ++w) now = fmaxf(now, ends[w][h][0]);
#pragma unroll
        for (int w = 0; w < Narrow::warps; ++w) {
            const float weight = quick_exp2(ends[w][h][0] - now);
            const float2 sum = *reinterpret_cast<const float2*>(left + (w * work.heads + h) * latent + c);
            one += weight * sum.x, two += weight * sum.y, all += weight * ends[w][h][1];
        }
        work.store(in, h, c, one, two, all);
        if (c == 0) work.store_end(in, h, now, all);
    }
}

template <bool usual>
__global__ void __launch_bounds__(threads) narrow_kernel(const __grid_constant__ Operands in) {
    extern __shared__ __align__(16) unsigned char latent_memory[];
    __shared__ float ends[Narrow::warps][block_heads][2];
    Work work(in);
    let_next_begin();
    if (work.first >= work.keys) return;
    const Sizes<usual> sizes{in};
    const int stride = sizes.stride(), width = sizes.width(), warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    bf16 *queries = reinterpret_cast<bf16*>(latent_memory), *tiles = queries + block_heads * stride,
         *stages = tiles + warp * 2 * Narrow::keys * stride;
    float *left = reinterpret_cast<float*>(tiles + Narrow::warps * 2 * Narrow::keys * stride),
          *own_left = left + warp * work.heads * sizes.latent();
    const int keys = static_cast<int>(work.end - work.first),
              tiles_of_part = static_cast<int>(work.size) / Narrow::keys;
    const bf16* cache = in.cache.row(work.slot) + work.first * width;
    const auto copy_tile = [&](int tile, int stage) {
        const int begin = tile * Narrow::keys;
        if (begin < keys)
            copy_keys<usual, Narrow::keys, 32>(in, cache + Index{begin} * width, min(keys - begin, Narrow::keys),
                                               stages + stage * Narrow::keys * stride, lane);
        commit_copies();
    };
    copy_queries<usual>(in, work, queries);
    copy_tile(warp, 0);
    copy_tile(warp + Narrow::warps, 1);
    wait_for_copies<1>();
    __syncthreads();

    NarrowSums<usual> sums;
    sums.clear();
    int part_end = work.whole ? INT_MAX : tiles_of_part;
    for (int tile = warp, stage = 0; tile - warp < (keys + Narrow::keys - 1) / Narrow::keys;
         tile += Narrow::warps, stage ^= 1) {
        if (tile - warp == part_end) {
            sums.leave(in, work.heads, own_left, ends[warp]);
            __syncthreads();
            store_part<usual>(in, work, left, ends);
            ++work.part, part_end += tiles_of_part;
            sums.clear();
            __syncthreads();
        }
        wait_for_copies<1>();
        __syncwarp();
        if (tile * Narrow::keys < keys)
            sums.add(in, queries, stages + stage * Narrow::keys * stride, keys - tile * Narrow::keys);
        __syncwarp();
        copy_tile(tile + 2 * Narrow::warps, stage);
    }
    wait_for_copies<0>();
    sums.leave(in, work.heads, own_left, ends[warp]);
    __syncthreads();
    store_part<usual>(in, work, left, ends);
}

/// For wider latents: the warps share out the keys of a tile of 64 for the scores, and the latent's columns for the
/// sums. Shared memory: queries [16], keys [64], and scores [16, 68] float.
struct Wide {
    static constexpr int keys = 64, score_stride = keys + 4, units = 8, most_latent = 64 * units;
    static int bytes(Index width) {
        return static_cast<int>((block_heads + keys) * (width + 8) * 2 + block_heads * score_stride * 4);
    }
};

template <class T>
__global__ void __launch_bounds__(threads) wide_kernel(const __grid_constant__ Operands in) {
    extern __shared__ __align__(16) unsigned char latent_memory[];
    const Work work(in);  // of one part
    let_next_begin();
    if (work.first >= work.keys) return;
    const int latent = static_cast<int>(in.latent), stride = Sizes<false>{in}.stride(), warp = threadIdx.x / 32,
              lane = threadIdx.x % 32, row = lane / 4, column = lane % 4 * 2;
    bf16 *queries = reinterpret_cast<bf16*>(latent_memory), *tile = queries + block_heads * stride;
    float* scores = reinterpret_cast<float*>(tile + Wide::keys * stride);
    const bf16* cache = in.cache.row(work.slot);
    copy_queries<false>(in, work, queries);
    float sums[Wide::units][2][4] = {}, highest[2] = {-INFINITY, -INFINITY}, total[2] = {0.0f, 0.0f};
    for (Index begin = work.first; begin < work.end; begin += Wide::keys) {
        const int count = static_cast<int>(work.end - begin < Wide::keys ? work.end - begin : Wide::keys);
        copy_keys<false, Wide::keys, threads>(in, cache + begin * in.width(), count, tile, threadIdx.x);
        commit_copies();
        wait_for_copies<0>();
        __syncthreads();
        float s[2][4];
        score<false>(in, queries, tile + warp * 16 * stride, s);
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
            fade[r] = quick_exp2(highest[r] - now);
            highest[r] = now;
#pragma unroll
            for (int e = 0; e < 16; ++e) {
                float& weight = p[e / 4][e / 2 % 2 * 4 + 2 * r + e % 2];
                weight = quick_exp2(weight - now);
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

/// Shared memory of a block.
inline int shared_bytes(const MlaHeads& heads, Index latent) {
    return latent <= Narrow::most_latent ? Narrow::bytes(heads, latent) : Wide::bytes(latent + heads.shared);
}

inline bool suits(const MlaHeads& heads, Index latent, std::initializer_list<MatrixView<const bf16>> matrices) {
    const auto in_pieces = [](MatrixView<const bf16> m) {
        return reinterpret_cast<std::uintptr_t>(m.data) % 16 == 0 && m.stride % 8 == 0;
    };
    return latent > 0 && latent % 16 == 0 && heads.shared % 16 == 0 && heads.nope % 8 == 0 &&
           latent <= Wide::most_latent && latent + heads.shared <= most_width &&
           shared_bytes(heads, latent) <= most_shared_bytes() && std::ranges::all_of(matrices, in_pieces);
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
    const bool narrow = latent <= Narrow::most_latent;
    const Index most_blocks = (std::max)(Index{1}, multiprocessors() * Narrow::resident / (tokens * groups)),
                run = narrow ? ceil_div(parts, most_blocks) : 1, blocks = ceil_div(parts, run);
    float* memory = ctx.workspace<float>(Scratch::operation, places * (latent + 2));
    const bool one_each = tokens == seq.count() && seq.longest() == 1;
    const float scale2 = static_cast<float>(heads.scale() * 1.4426950408889634);
    const Operands in{heads, DeviceSequences(ctx, seq), split, latent, parts, blocks, run, one_each, scale2, q_lat, q,
                      cache, o_lat, memory, memory + places * latent};
    const bool usual = latent == 128 && heads.shared == 64;
    const auto kernel = usual ? narrow_kernel<true> : narrow ? narrow_kernel<false> : wide_kernel<bf16>;
    const int bytes = shared_bytes(heads, latent);
    KIMIK3_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
    KIMIK3_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                     cudaSharedmemCarveoutMaxShared));
    kernel<<<exact_grid(tokens * groups * blocks), threads, to_size(bytes), ctx.stream()>>>(in);
    check_launch();
    if (parts == 1) return;
    cudaLaunchAttribute early{};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = exact_grid(tokens * heads.count), config.blockDim = 256, config.stream = ctx.stream();
    config.attrs = &early, config.numAttrs = starts_early() ? 1 : 0;
    KIMIK3_CUDA(cudaLaunchKernelEx(&config, join_kernel<bf16>, in));
}

}  // namespace kimik3::gpu::latent
