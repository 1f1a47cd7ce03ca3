#pragma once
// Attention over cached latents on the GPU: a block a head of a new token; a warp scores one key at a time, and every
// thread sums its columns of the latents. In bf16, where the sizes suit it, latent_attention_bf16.cuh takes over.

#include "kimik3/ops/cuda/latent_attention_bf16.cuh"
#include "kimik3/ops/cuda/launch.cuh"
#include "kimik3/ops/latent_attention.hpp"

namespace kimik3 {
namespace gpu {

inline constexpr int latent_keys = 128;

/// Shared memory: the query [c + r], the scores of a tile of keys and the sums [c].
template <class T>
__global__ void latent_attention_kernel(MlaHeads heads, DeviceSequences seq, accumulator_t<T> scale,
                                        MatrixView<const T> q_lat, MatrixView<const T> q, MatrixView<const T> cache,
                                        MatrixView<T> o_lat) {
    using A = accumulator_t<T>;
    extern __shared__ __align__(16) unsigned char memory[];
    const Index n = blockIdx.x / heads.count, h = blockIdx.x % heads.count, latent = o_lat.cols / heads.count,
                width = latent + heads.shared;
    A *query = reinterpret_cast<A*>(memory), *scores = query + width, *sums = scores + latent_keys;
    const Index s = seq.of(n), keys = seq.pasts[s] + n - seq.begin(s) + 1;
    const T* rows = cache.row(seq.slots[s]);
    const Team team{static_cast<int>(threadIdx.x), block_threads};
    for (Index c = threadIdx.x; c < width; c += blockDim.x)
        query[c] = A(c < latent ? q_lat(n, h * latent + c) : q(n, h * heads.key() + heads.nope + c - latent));
    for (Index c = threadIdx.x; c < latent; c += blockDim.x) sums[c] = A(0);
    __syncthreads();
    A highest = -INFINITY, total = A(0);
    for (Index first = 0; first < keys; first += latent_keys) {
        const Index count = keys - first < latent_keys ? keys - first : latent_keys;
        for (Index j = threadIdx.x / 32; j < count; j += block_threads / 32) {
            A score = A(0);
            for (Index c = threadIdx.x % 32; c < width; c += 32) score += query[c] * A(rows[(first + j) * width + c]);
            score = warp_sum(score);
            if (threadIdx.x % 32 == 0) scores[j] = score * scale;
        }
        __syncthreads();
        const A score = threadIdx.x < count ? scores[threadIdx.x] : -INFINITY;
        A now = team.max(score);
        now = highest > now ? highest : now;
        const A weight = threadIdx.x < count ? exp(score - now) : A(0), fade = exp(highest - now);
        total = total * fade + team.sum(weight);
        highest = now;
        if (threadIdx.x < count) scores[threadIdx.x] = weight;
        __syncthreads();
        for (Index c = threadIdx.x; c < latent; c += blockDim.x) {
            A sum = sums[c] * fade;
            for (Index j = 0; j < count; ++j) sum += scores[j] * A(rows[(first + j) * width + c]);
            sums[c] = sum;
        }
        __syncthreads();
    }
    for (Index c = threadIdx.x; c < latent; c += blockDim.x) o_lat(n, h * latent + c) = static_cast<T>(sums[c] / total);
}

}  // namespace gpu

template <class T>
void latent_append(const Context<Cuda>& ctx, const Sequences& seq, In<T> latent, In<T> shared, Out<T> cache) {
    const Index width = latent.cols + shared.cols;
    require(seq.tokens() <= latent.rows, "the sequences have {} tokens, the matrices only {} rows", seq.tokens(),
            latent.rows);
    require_shape("latent_append: shared", shared, latent.rows, shared.cols);
    check_room(seq, cache.rows, cache.cols / width);
    const DeviceSequences places(ctx, seq);
    gpu::for_rows(ctx, seq.tokens(), width, [=] __device__(Index n, gpu::Team team) {
        const Index s = places.of(n);
        T* to = cache.row(places.slots[s]) + (places.pasts[s] + n - places.begin(s)) * width;
        for (Index c = team.rank; c < width; c += team.size)
            to[c] = c < latent.cols ? latent(n, c) : shared(n, c - latent.cols);
    });
}

template <class T>
void latent_attention(const Context<Cuda>& ctx, const Sequences& seq, const MlaHeads& heads, In<T> q_lat, In<T> q,
                      In<T> cache, Out<T> o_lat) {
    const Index latent = o_lat.cols / heads.count, blocks = seq.tokens() * heads.count;
    require(seq.tokens() <= o_lat.rows, "the sequences have {} tokens, the matrices only {} rows", seq.tokens(),
            o_lat.rows);
    require_shape("latent_attention: q_lat", q_lat, o_lat.rows, heads.count * latent);
    require_shape("latent_attention: q", q, o_lat.rows, heads.count * heads.key());
    check_room(seq, cache.rows, cache.cols / (latent + heads.shared));
    ctx.make_current();
    gpu::clear_rows_from(ctx, seq.tokens(), o_lat);
    if constexpr (std::is_same_v<T, bf16>)
        if (gpu::latent::suits(heads, latent, {q_lat, q, cache, o_lat}))
            return gpu::latent::launch(ctx, seq, heads, q_lat, q, cache, o_lat);
    if (blocks > 0) {
        const std::size_t bytes = to_size(2 * latent + heads.shared + gpu::latent_keys) * sizeof(accumulator_t<T>);
        KIMIK3_CUDA(cudaFuncSetAttribute(gpu::latent_attention_kernel<T>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                         static_cast<int>(bytes)));
        gpu::latent_attention_kernel<T><<<gpu::exact_grid(blocks), gpu::block_threads, bytes, ctx.stream()>>>(
            heads, DeviceSequences(ctx, seq), static_cast<accumulator_t<T>>(heads.scale()), q_lat, q, cache, o_lat);
        check_launch();
    }
}

}  // namespace kimik3
