#pragma once
// A decoding step of Gated MLA on the GPU, in two launches: blocks with a head of a sequence and pieces of 64 keys,
// which multiply the query by W_UK for themselves; then a block a head of a sequence, which adds the pieces up in their
// order and multiplies by W_UV. What is cached and the weights are there before the inputs are.

#include "kimik3/ops/cuda/few_rows.cuh"
#include "kimik3/ops/formulas.hpp"
#include "kimik3/ops/latent_attention.hpp"
#include "kimik3/ops/step_latent.hpp"

namespace kimik3 {
namespace gpu {

inline constexpr int step_keys = 64;

template <class T>
struct StepLatentWork {
    DeviceSequences seq;
    MlaHeads heads;
    int latent, pieces, shares;  // shares: blocks that share the pieces of a head of a sequence
    float scale, eps;
    MatrixView<const T> q, kv_low, kv_b, gate;
    const float* norm;
    MatrixView<T> cache;
    float *sums, *marks;  // of the pieces: [N, H, pieces, c], and [N, H, pieces, 2] their highest score and their total
    MatrixView<T> y;
    bool wide_cache;

    KIMIK3_HOST_DEVICE int width() const { return latent + static_cast<int>(heads.shared); }
    /// Elements from one cached key in shared memory to the next, and to the next float of the query.
    KIMIK3_HOST_DEVICE int key_stride() const { return round_up(width(), 64) + 32; }
    Index shared_bytes() const {
        return step_keys * key_stride() * static_cast<Index>(sizeof(T)) +
               (round_up(width(), 4) + 16 * latent + 512 + heads.nope) * 4;
    }
};

/// The highest and the sum of a block of 256 threads.
__device__ inline float block_max(float value, float* parts) {
    value = warp_max(value);
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
    __syncthreads();
    value = parts[0];
    for (int w = 1; w < 8; ++w) value = fmaxf(value, parts[w]);
    __syncthreads();
    return value;
}
__device__ inline float block_sum(float value, float* parts) {
    value = warp_sum(value);
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
    __syncthreads();
    value = 0;
    for (int w = 0; w < 8; ++w) value += parts[w];
    __syncthreads();
    return value;
}

/// A block of 256 threads with a head of a sequence and every shares-th piece of its keys.
template <class T>
struct StepScores {
    const StepLatentWork<T>& work;
    T* keys;                                     // [64, stride]
    float *query, *parts, *small, *head_query;   // [c + r], [16, c], [512], [n]
    int thread, n, h;

    __device__ StepScores(const StepLatentWork<T>& of, unsigned char* memory)
        : work(of),
          keys(reinterpret_cast<T*>(memory)),
          query(reinterpret_cast<float*>(keys + step_keys * of.key_stride())),
          parts(query + round_up(of.width(), 4)),
          small(parts + 16 * of.latent),
          head_query(small + 512),
          thread(static_cast<int>(threadIdx.x)),
          n(static_cast<int>(blockIdx.x) / of.shares / static_cast<int>(of.heads.count)),
          h(static_cast<int>(blockIdx.x) / of.shares % static_cast<int>(of.heads.count)) {}

    __device__ int count(Index first) const {
        const Index left = work.seq.pasts[n] + 1 - first;
        return left < step_keys ? static_cast<int>(left) : step_keys;
    }
    /// The new token's place among the keys from first on, or -1.
    __device__ int fresh(Index first) const {
        const Index at = work.seq.pasts[n] - first;
        return at >= 0 && at < step_keys ? static_cast<int>(at) : -1;
    }
    __device__ T* cached(Index first) const { return work.cache.row(work.seq.slots[n]) + first * work.width(); }

    __device__ void fetch_keys(Index first) const {
        const int width = work.width(), octets = width / 8, stride = work.key_stride(), all = count(first);
        const T* from = cached(first);
#pragma unroll 1
        for (int i = thread; i < all * octets; i += 256) {
            const int j = i / octets, k = i % octets * 8;
            if (j == fresh(first)) continue;
            if (work.wide_cache && sizeof(T) == 2) {
                copy_16_bytes(keys + j * stride + k, from + j * width + k);
            } else {
                for (int e = 0; e < 8; ++e) keys[j * stride + k + e] = from[j * width + k + e];
            }
        }
        commit_copies();
    }
    /// The new token's key, normed, into place and, by one head, into the cache.
    __device__ void add_key(Index first) const {
        const int latent = work.latent, shared = static_cast<int>(work.heads.shared), at = fresh(first);
        T* key = keys + at * work.key_stride();
        const T* low = work.kv_low.row(n);
        const float mine = thread < latent ? static_cast<float>(low[thread]) : 0.0f;
        const float total = block_sum(mine * mine, small);
        if (thread < latent)
            key[thread] = static_cast<T>(mine * (1.0f / sqrtf(total / static_cast<float>(latent) + work.eps)) *
                                         work.norm[thread]);
        if (thread < shared) key[latent + thread] = low[latent + thread];
        __syncthreads();
        if (h == 0)
#pragma unroll 1
            for (int c = thread; c < work.width(); c += 256) cached(first)[at * work.width() + c] = key[c];
    }
    /// The query times W_UK, of which a thread holds eight columns of every sixteenth row.
    __device__ void make_query(const Octet<T> (&weights)[8]) const {
        const int latent = work.latent, nope = static_cast<int>(work.heads.nope), rank = thread / 16,
                  columns = thread % 16 * 8;
        const T* q = work.q.row(n) + h * work.heads.key();
#pragma unroll 1
        for (int c = thread; c < nope; c += 256) head_query[c] = q[c];
#pragma unroll 1
        for (int c = thread; c < work.heads.shared; c += 256) query[latent + c] = q[nope + c];
        __syncthreads();
        float sum[8] = {};
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const float value = rank + 16 * i < nope ? head_query[rank + 16 * i] : 0.0f;
            for (int e = 0; e < 8; ++e) sum[e] += value * weights[i][e];
        }
        if (columns < latent)
            for (int e = 0; e < 8; ++e) parts[rank * latent + columns + e] = sum[e];
        __syncthreads();
        if (thread < latent) {
            float total = 0;
            for (int r = 0; r < 16; ++r) total += parts[r * latent + thread];
            query[thread] = total;
        }
    }
    /// Softmax over the keys that are there and the sum of their latents.
    __device__ void attend(Index first, Index piece) const {
        const int latent = work.latent, octets = work.width() / 8, stride = work.key_stride(), all = count(first),
                  j = thread / 4, quarter = thread % 4;
        float score = 0;
        for (int o = quarter; o < octets && j < all; o += 4) {
            const Octet<T> key = load_octet<true, T>(keys + j * stride, 8 * o, work.width());
            for (int e = 0; e < 8; ++e) score += query[8 * o + e] * key[e];
        }
        score = TileLane{}.quad_sum(score) * work.scale;
        const float highest = block_max(j < all ? score : -INFINITY, small + 64);
        const float weight = j < all ? expf(score - highest) : 0.0f;
        if (quarter == 0) small[128 + j] = weight;
        const float total = block_sum(quarter == 0 ? weight : 0.0f, small + 64);
        const int groups = 256 / latent, column = thread % latent, group = thread / latent;
        float mix = 0;
        for (int key = group; key < all && group < groups; key += groups)
            mix += small[128 + key] * static_cast<float>(keys[key * stride + column]);
        if (group < groups) parts[group * latent + column] = mix;
        __syncthreads();
        if (thread < latent) {
            mix = 0;
            for (int g = 0; g < groups; ++g) mix += parts[g * latent + thread];
            work.sums[piece * latent + thread] = mix;
        }
        if (thread == 0) work.marks[piece * 2] = highest, work.marks[piece * 2 + 1] = total;
    }
};

template <class T, bool wide>
__global__ void __launch_bounds__(256) step_scores_kernel(const __grid_constant__ StepLatentWork<T> work) {
    extern __shared__ __align__(16) unsigned char memory[];
    let_next_begin();
    const StepScores<T> scores(work, memory);
    const Index past = work.seq.pasts[scores.n], piece = blockIdx.x % static_cast<unsigned>(work.shares);
    if (piece * step_keys > past) return await_predecessor();
    scores.fetch_keys(piece * step_keys);
    const int row = scores.thread / 16, columns = scores.thread % 16 * 8, nope = static_cast<int>(work.heads.nope);
    const T* up_key = work.kv_b.row(scores.h * (nope + work.heads.value));
    Octet<T> weights[8];
#pragma unroll
    for (int i = 0; i < 8; ++i)
        weights[i] = load_octet<wide>(row + 16 * i < nope ? up_key + Index{row + 16 * i} * work.latent : nullptr,
                                      columns, work.latent);
    await_predecessor();
    scores.make_query(weights);
#pragma unroll 1
    for (Index p = piece; p * step_keys <= past; p += work.shares) {
        const Index first = p * step_keys;
        if (p != piece) {
            __syncthreads();
            scores.fetch_keys(first);
        }
        if (scores.fresh(first) >= 0) scores.add_key(first);
        wait_for_copies<0>();
        __syncthreads();
        scores.attend(first, Index{blockIdx.x / static_cast<unsigned>(work.shares)} * work.pieces + p);
    }
}

template <class T, bool wide>
__global__ void __launch_bounds__(256) step_values_kernel(const __grid_constant__ StepLatentWork<T> work) {
    __shared__ float mixed[128];
    let_next_begin();
    const int thread = static_cast<int>(threadIdx.x), latent = work.latent, heads = static_cast<int>(work.heads.count),
              h = static_cast<int>(blockIdx.x) % heads, n = static_cast<int>(blockIdx.x) / heads,
              value = static_cast<int>(work.heads.value), row = thread / 2, half = thread % 2;
    const T* up_value = work.kv_b.row(h * (work.heads.nope + value) + work.heads.nope);
    Octet<T> weights[8];
#pragma unroll
    for (int i = 0; i < 8; ++i)
        weights[i] =
            load_octet<wide>(row < value ? up_value + Index{row} * latent : nullptr, 16 * i + 8 * half, latent);
    const int pieces = static_cast<int>(work.seq.pasts[n] / step_keys) + 1;
    const Index first = Index{blockIdx.x} * work.pieces;

    await_predecessor();
    const float gate =
        work.gate.cols == 0 || row >= value ? 1.0f : sigmoid(static_cast<float>(work.gate(n, Index{h} * value + row)));
    float highest = -INFINITY, total = 0, sum = 0;
    for (int p = 0; p < pieces; ++p) highest = fmaxf(highest, work.marks[(first + p) * 2]);
    for (int p = 0; p < pieces; ++p) {
        const float fade = expf(work.marks[(first + p) * 2] - highest);
        total += fade * work.marks[(first + p) * 2 + 1];
        if (thread < latent) sum += fade * work.sums[(first + p) * latent + thread];
    }
    if (thread < latent) mixed[thread] = sum / total;
    __syncthreads();
    float o = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const int k = 16 * i + 8 * half;
        if (k >= latent) continue;
        for (int e = 0; e < 8; ++e) o += weights[i][e] * mixed[k + e];
    }
    o += __shfl_xor_sync(0xffffffffu, o, 1);
    if (half == 0 && row < value) work.y(n, Index{h} * value + row) = static_cast<T>(o * gate);
}

}  // namespace gpu

template <class T>
void step_latent(const Context<Cuda>& ctx, const Sequences& seq, const MlaHeads& heads, const StepLatent<T>& in,
                 std::type_identity_t<Out<T>> y) {
    const Index latent = in.kv_b.cols, width = latent + heads.shared;
    require(StepLatent<T>::fits(heads, latent), "step_latent: no step for latents of {} and heads of {}, {}, {}",
            latent, heads.nope, heads.shared, heads.value);
    require_shape("step_latent: y", y, seq.count(), heads.count * heads.value);
    require_shape("step_latent: q", in.q, y.rows, heads.count * heads.key());
    require_shape("step_latent: kv_low", in.kv_low, y.rows, width);
    require_size("step_latent: norm", in.norm, latent);
    require_shape("step_latent: kv_b", in.kv_b, heads.count * (heads.nope + heads.value), latent);
    if (in.gate.cols > 0) require_shape("step_latent: gate", in.gate, y.rows, y.cols);
    check_room(seq, in.cache.rows, in.cache.cols / width);
    Index longest = 0;
    for (Index s = 0; s < seq.count(); ++s) longest = (std::max)(longest, seq.past(s));
    const Index pieces = longest / gpu::step_keys + 1, blocks = y.rows * heads.count;
    const Index shares = std::clamp(4 * gpu::multiprocessors() / (std::max)(blocks, Index{1}), Index{1}, pieces);
    float* scratch = ctx.workspace<float>(Scratch::operation, blocks * pieces * (latent + 2));
    const gpu::StepLatentWork<T> work{DeviceSequences(ctx, seq),
                                      heads,
                                      static_cast<int>(latent),
                                      static_cast<int>(pieces),
                                      static_cast<int>(shares),
                                      static_cast<float>(heads.scale()),
                                      static_cast<float>(in.eps),
                                      in.q,
                                      in.kv_low,
                                      in.kv_b,
                                      in.gate,
                                      in.norm.data,
                                      in.cache,
                                      scratch,
                                      scratch + blocks * pieces * latent,
                                      y,
                                      gpu::is_wide(in.cache.data, in.cache.stride, width)};
    const auto launch = [&](auto wide) {
        gpu::launch_early(ctx, blocks * shares, 256, work.shared_bytes(), gpu::step_scores_kernel<T, wide>, work);
        gpu::launch_early(ctx, blocks, 256, 0, gpu::step_values_kernel<T, wide>, work);
    };
    if (gpu::is_wide(in.kv_b)) launch(std::true_type{});
    else launch(std::false_type{});
}

}  // namespace kimik3
