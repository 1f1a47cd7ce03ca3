#pragma once
// The routed experts of a decoding step on the GPU: a launch for gate, up and SiTU, one for the product down. A block
// makes a tile of an expert's output for all of its tokens. Up to eight tokens, every block chooses the experts for
// itself; more are chosen for by a launch of their own.

#include "kimik3/ops/cuda/few_rows.cuh"
#include "kimik3/ops/cuda/situ.cuh"
#include "kimik3/ops/step_experts.hpp"
#include "kimik3/ops/step_products.hpp"

namespace kimik3 {
namespace gpu {

template <class T>
struct StepExpertsWork {
    MatrixView<const float> scores;
    const float* bias;
    float factor;
    bool renormalize;
    MatrixView<const T> z;
    const T *w1, *w3, *w2;
    MatrixView<std::int32_t> experts;
    MatrixView<float> weights;
    MatrixView<T> hidden, out;
    int all;          // experts
    bool by_pair;     // blocks go over the pairs, and one that is not the first of its expert rests; else over experts
    SituNumbers<T> form;

    __device__ int tokens() const { return static_cast<int>(z.rows); }
    __device__ int chosen() const { return static_cast<int>(experts.cols); }
};

/// A number whose order is that of value, NaN below everything, and never 0.
__device__ inline unsigned ordered(float value) {
    if (!(value == value)) value = -INFINITY;
    const unsigned bits = __float_as_uint(value + 0.0f);
    return bits ^ (static_cast<unsigned>(static_cast<int>(bits) >> 31) | 0x80000000u);
}

/// A warp chooses the experts of token n, of 32 most at most.
template <int most, class T>
__device__ void choose_of(const StepExpertsWork<T>& work, int n, std::int32_t* experts, float* weights) {
    const int lane = static_cast<int>(threadIdx.x) % 32, count = work.chosen();
    const float* score = work.scores.row(n);
    unsigned key[most];
    float own[most];
    bool broken = false;
#pragma unroll
    for (int i = 0; i < most; ++i) {
        const int e = lane + 32 * i;
        own[i] = 0, key[i] = 0;
        if (e >= work.all) continue;
        own[i] = __ldcg(score + e);  // by L2: the product down reads before it waits
        const float biased = own[i] + work.bias[e];
        broken |= !(biased == biased);
        key[i] = ordered(biased);
    }
    broken = __any_sync(0xffffffffu, broken);
    float sum = 0, mine = 0;  // lane j keeps the score of slot j
#pragma unroll 1
    for (int j = 0; j < count; ++j) {
        unsigned best = 0;
        int at = 0;
#pragma unroll
        for (int i = 0; i < most; ++i)
            if (key[i] > best) best = key[i], at = i;
        const unsigned highest = __reduce_max_sync(0xffffffffu, best);
        const unsigned expert =
            __reduce_min_sync(0xffffffffu, best == highest ? static_cast<unsigned>(lane + 32 * at) : 0xffffffffu);
        float chosen = 0;
#pragma unroll
        for (int i = 0; i < most; ++i) {
            if (static_cast<unsigned>(lane + 32 * i) != expert) continue;
            key[i] = 0;
            chosen = own[i];
        }
        chosen = __shfl_sync(0xffffffffu, chosen, static_cast<int>(expert % 32));
        sum += chosen;
        if (lane == j) mine = chosen;
        if (lane == 0) experts[j] = static_cast<std::int32_t>(expert);
    }
    const float factor = broken ? NAN : work.factor;
    if (lane < count) weights[lane] = mine * (work.renormalize ? factor / (sum + 1e-20f) : factor);
}

template <class T>
__device__ void choose_experts(const StepExpertsWork<T>& work, int n, std::int32_t* experts, float* weights) {
    if (work.all <= 64) choose_of<2>(work, n, experts, weights);
    else choose_of<8>(work, n, experts, weights);
}

template <class T>
__global__ void __launch_bounds__(128) choose_experts_kernel(const __grid_constant__ StepExpertsWork<T> work) {
    await_predecessor();
    let_next_begin();
    const int n = static_cast<int>(blockIdx.x) * 4 + static_cast<int>(threadIdx.x) / 32;
    if (n < work.tokens()) choose_experts(work, n, work.experts.row(n), work.weights.row(n));
}

/// The block's expert and how many pairs it has: none where another block has them, or one that is known alone.
struct ExpertShare {
    int expert, count, alone = -1;
};

/// Finds the block's pairs, in rising order. at: the block's pair or expert. A single token's pair is at itself: every
/// warp chooses, and none waits for another.
template <class T>
__device__ ExpertShare find_pairs(const StepExpertsWork<T>& work, int at, bool chosen_before,
                                  int (&pairs)[most_step_rows]) {
    constexpr int most = 8 * 16;
    __shared__ std::int32_t chosen[most];
    __shared__ float weights[most];
    __shared__ int expert_of_block, count_of_block;
    const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, k = work.chosen(), all = work.tokens() * k;
    const bool here = work.tokens() <= 8, single = work.tokens() == 1 && work.by_pair;
    if (here) {
#pragma unroll 1
        for (int n = single ? 0 : thread / 32; n < work.tokens(); n += 4) {
            const int place = single ? 16 * (thread / 32) : n * k;
            choose_experts(work, n, chosen + place, weights + place);
        }
        if (single) __syncwarp();
        else __syncthreads();
        if (blockIdx.x == 0 && !chosen_before)
#pragma unroll 1
            for (int i = thread; i < all; i += 128)
                work.experts(i / k, i % k) = chosen[i], work.weights(i / k, i % k) = weights[i];
        if (single) return {chosen[16 * (thread / 32) + at], 1, at};
    }
    if (thread < 32) {
        const auto expert_of = [&](int i) { return here ? chosen[i] : __ldcg(&work.experts(i / k, i % k)); };
        const int expert = work.by_pair ? expert_of(at) : at;
        int count = 0;
#pragma unroll 1
        for (int first = 0; first < all; first += 256) {
            int found[8];
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                const int pair = first + 32 * i + lane;
                found[i] = pair < all ? expert_of(pair) : -1;
            }
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                const unsigned votes = __ballot_sync(0xffffffffu, found[i] == expert);
                if (found[i] == expert) pairs[count + __popc(votes & ((1u << lane) - 1u))] = first + 32 * i + lane;
                count += __popc(votes);
            }
        }
        __syncwarp();
        if (lane == 0) expert_of_block = expert, count_of_block = work.by_pair && pairs[0] != at ? 0 : count;
    }
    __syncthreads();
    return {expert_of_block, count_of_block};
}

/// down: out = w2 hidden; else hidden = SiTU(w1 z, w3 z).
template <class T, bool down, bool wide>
__global__ void __launch_bounds__(128) step_experts_kernel(const __grid_constant__ StepExpertsWork<T> work) {
    constexpr int warps = 4, stage = 4, per_tile = down ? 16 : 8;
    __shared__ __align__(16) float parts[warps][16][8];
    __shared__ int pairs[most_step_rows];
    const TileLane lane;
    const int inner = static_cast<int>(down ? work.hidden.cols : work.z.cols),
              rows = static_cast<int>(down ? work.out.cols : work.hidden.cols), tiles = ceil_div(rows, per_tile),
              tile = static_cast<int>(blockIdx.x) % tiles, chunks = ceil_div(inner, 32);
    Octet<T> w[stage][2];
    const auto load = [&](int expert, int base) {
        const Index offset = Index{expert} * rows * inner;
        const TileRows<T> weights = down ? TileRows<T>::of(work.w2 + offset, rows, inner, tile)
                                         : TileRows<T>::pair(work.w1 + offset, work.w3 + offset, rows, inner, tile);
#pragma unroll
        for (int i = 0; i < stage; ++i)
            weights.template load<wide>(w[i], lane, 32 * (base + warps * i + lane.warp) + 8 * lane.c, inner);
    };
    const int at = static_cast<int>(blockIdx.x) / tiles;
    if (!work.by_pair) load(at, 0);  // most experts have tokens where there are as many pairs as experts
    if constexpr (down) {
        let_next_begin();
    } else {
        await_predecessor();
        let_next_begin();  // not before: the next kernel reads what it chooses from without waiting
    }
    const ExpertShare share = find_pairs(work, at, down, pairs);
    const auto pair_of = [&](int i) { return share.alone >= 0 ? share.alone : pairs[i]; };
    if (work.by_pair && share.count > 0) load(share.expert, 0);
    if constexpr (down) await_predecessor();
#pragma unroll 1
    for (int first = 0; first < share.count; first += 8) {
        const int left = share.count - first, pair = lane.r < left ? pair_of(first + lane.r) : 0;
        const T* x = lane.r >= left ? nullptr : down ? work.hidden.row(pair) : work.z.row(pair / work.chosen());
        TileSums<T> sums;
#pragma unroll 1
        for (int base = 0; base < chunks; base += warps * stage) {
            if (chunks > warps * stage && (base > 0 || first > 0)) load(share.expert, base);
#pragma unroll
            for (int i = 0; i < stage; ++i) {
                const int k = 32 * (base + warps * i + lane.warp) + 8 * lane.c;
                sums.add(w[i], load_octet<wide>(x, k, inner), lane, left);
            }
        }
        sums.store(parts[lane.warp], lane, left);
        __syncthreads();
#pragma unroll 1
        for (int i = static_cast<int>(threadIdx.x); i < per_tile * 8; i += 128) {
            const int row = i % per_tile, t = i / per_tile, to = per_tile * tile + row;
            if (t >= left || to >= rows) continue;
            const float value = over_warps<warps>(parts, row, t);
            if constexpr (down) work.out(pair_of(first + t), to) = static_cast<T>(value);
            else
                work.hidden(pair_of(first + t), to) =
                    static_cast<T>(work.form.value(value, over_warps<warps>(parts, row + 8, t)));
        }
        __syncthreads();
    }
}

}  // namespace gpu

template <class T>
void step_experts(const Context<Cuda>& ctx, const StepExperts<T>& in) {
    const Index tokens = in.z.rows, chosen = in.experts.cols, all = in.scores.cols, pairs = tokens * chosen,
                latent = in.z.cols, inner = in.hidden.cols;
    require(StepExperts<T>::fits(all, chosen) && chosen <= all && tokens <= most_step_rows,
            "step_experts: no step for {} tokens, {} of {} experts", tokens, chosen, all);
    require_shape("step_experts: scores", in.scores, tokens, all);
    require_size("step_experts: bias", in.bias, all);
    require_shape("step_experts: experts", in.experts, tokens, chosen);
    require_shape("step_experts: weights", in.weights, tokens, chosen);
    require_shape("step_experts: hidden", in.hidden, pairs, inner);
    require_shape("step_experts: out", in.out, pairs, latent);
    if (tokens == 0) return;
    const bool by_pair = pairs < all;
    const gpu::StepExpertsWork<T> work{in.scores,
                                       in.bias.data,
                                       static_cast<float>(in.rule.factor),
                                       in.rule.renormalize,
                                       in.z,
                                       gpu::dense("step_experts: w1", in.w1, all * inner, latent),
                                       gpu::dense("step_experts: w3", in.w3, all * inner, latent),
                                       gpu::dense("step_experts: w2", in.w2, all * latent, inner),
                                       in.experts,
                                       in.weights,
                                       in.hidden,
                                       in.out,
                                       static_cast<int>(all),
                                       by_pair,
                                       gpu::SituNumbers<T>(in.betas)};
    const Index groups = by_pair ? pairs : all;
    if (tokens > 8) gpu::launch_early(ctx, ceil_div(tokens, 4), 128, 0, gpu::choose_experts_kernel<T>, work);
    const auto launch = [&](auto wide) {
        const Index ups = groups * ceil_div(in.hidden.cols, 8), downs = groups * ceil_div(in.out.cols, 16);
        gpu::launch_early(ctx, ups, 128, 0, gpu::step_experts_kernel<T, false, wide>, work);
        gpu::launch_early(ctx, downs, 128, 0, gpu::step_experts_kernel<T, true, wide>, work);
    };
    const bool wide = gpu::is_wide(in.w1) && gpu::is_wide(in.w3) && gpu::is_wide(in.w2) && gpu::is_wide(in.z) &&
                      gpu::is_wide<T>(in.hidden);
    if (wide) launch(std::true_type{});
    else launch(std::false_type{});
}

}  // namespace kimik3
