#pragma once
// Quantile balancing on the GPU. A block counts in shared memory and adds that up; counts are integers, so atomic
// additions give the same sums in any order. A bias that is not finite stays as it is: an update cannot throw here.

#include "kimik3/ops/cuda/launch.cuh"
#include "kimik3/ops/quantile_balance.hpp"

namespace kimik3 {
namespace gpu {

/// Bin i holds [low + i width, low + (i + 1) width). Made by a warp.
template <class T>
struct DeviceBalanceRange {
    T low, width;

    __device__ explicit DeviceBalanceRange(VectorView<const T> bias) {
        T least = bias[0], most = bias[0];
        for (Index e = threadIdx.x % 32; e < bias.size; e += 32) {
            least = bias[e] < least ? bias[e] : least;
            most = bias[e] > most ? bias[e] : most;
        }
        for (int apart = 16; apart > 0; apart /= 2) {
            const T other_least = __shfl_xor_sync(0xffffffffu, least, apart),
                    other_most = __shfl_xor_sync(0xffffffffu, most, apart);
            least = other_least < least ? other_least : least;
            most = other_most > most ? other_most : most;
        }
        low = least - T(1);
        width = (most - least + T(2)) / static_cast<T>(Balance::bins);
    }
    __device__ Index bin(T value) const {
        const T place = (value - low) / width;
        if (!(place > T(0))) return 0;
        return place < static_cast<T>(Balance::bins) ? static_cast<Index>(place) : Balance::bins - 1;
    }
};

inline constexpr int counted_experts = 8;  // that a block counts for, over a stretch of the tokens

template <class T>
__global__ void __launch_bounds__(1024) balance_count_kernel(MatrixView<const T> scores, VectorView<const T> cutoff,
                                                             MatrixView<const std::int32_t> experts,
                                                             VectorView<const T> bias,
                                                             VectorView<const std::uint8_t> counted, Balance to,
                                                             Index stretch) {
    __shared__ int histogram[counted_experts][Balance::bins], load[counted_experts];
    begin_in_turn();
    const Index groups = ceil_div(scores.cols, Index{counted_experts}), first = blockIdx.x % groups * counted_experts,
                begin = blockIdx.x / groups * stretch, end = min(begin + stretch, scores.rows);
    for (Index i = threadIdx.x; i < counted_experts * Balance::bins; i += blockDim.x) histogram[0][i] = 0;
    if (threadIdx.x < counted_experts) load[threadIdx.x] = 0;
    const DeviceBalanceRange<T> range(bias);
    __syncthreads();
    const auto counts = [&](Index n) { return counted.size == 0 || counted[n] != 0; };
    const int own = threadIdx.x % counted_experts;
    if (first + own < scores.cols) {
#pragma unroll 4
        for (Index n = begin + threadIdx.x / counted_experts; n < end; n += blockDim.x / counted_experts)
            if (counts(n)) atomicAdd(&histogram[own][range.bin(cutoff[n] - scores(n, first + own))], 1);
    }
    for (Index n = begin + threadIdx.x; n < end; n += blockDim.x)
        for (Index j = 0; j < experts.cols && counts(n); ++j)
            if (const Index e = experts(n, j) - first; e >= 0 && e < counted_experts) atomicAdd(&load[e], 1);
    __syncthreads();
    const auto add = [](std::int64_t& total, int count) {
        using Word = unsigned long long;
        if (count != 0) atomicAdd(reinterpret_cast<Word*>(&total), static_cast<Word>(count));
    };
    for (int e = 0; e < counted_experts && first + e < scores.cols; ++e) {
        for (Index bin = threadIdx.x; bin < Balance::bins; bin += blockDim.x)
            add(to.histogram(first + e, bin), histogram[e][bin]);
        if (threadIdx.x == 0) add(to.load[first + e], load[e]);
    }
}

/// A block an expert: place = the place, in bins from the lower end of the range, below which its share of the counts
/// lies, or -1 where nothing was counted; clears what was counted.
template <class Counted>
__global__ void __launch_bounds__(block_threads) balance_place_kernel(Counted balance, Index chosen, double* places) {
    begin_in_turn();
    constexpr int own = 4;  // bins a thread
    static_assert(block_threads * own >= Balance::bins);
    __shared__ std::int64_t warps[block_threads / 32];
    const Index e = blockIdx.x, experts = balance.load.size;
    std::int64_t count[own], sum = 0;
    for (int i = 0; i < own; ++i) {
        const Index bin = Index{threadIdx.x} * own + i;
        count[i] = bin < Balance::bins ? balance.histogram(e, bin) : 0;
        if (bin < Balance::bins) balance.histogram(e, bin) = 0;
        sum += count[i];
    }
    if (threadIdx.x == 0) balance.load[e] = 0;
    std::int64_t up_to = sum;
    for (int apart = 1; apart < 32; apart *= 2) {
        const std::int64_t other = __shfl_up_sync(0xffffffffu, up_to, apart);
        if (static_cast<int>(threadIdx.x % 32) >= apart) up_to += other;
    }
    if (threadIdx.x % 32 == 31) warps[threadIdx.x / 32] = up_to;
    __syncthreads();
    std::int64_t tokens = 0;
    for (unsigned w = 0; w < block_threads / 32; ++w) {
        if (w < threadIdx.x / 32) up_to += warps[w];
        tokens += warps[w];
    }
    if (tokens == 0) {
        if (threadIdx.x == 0) places[e] = -1.0;
        return;
    }
    const double target = static_cast<double>(tokens * chosen) / static_cast<double>(experts);
    const auto enough = static_cast<std::int64_t>(ceil(target));
    std::int64_t before = up_to - sum;
    if (before >= enough || up_to < enough) return;
    int i = 0;
    while (before + count[i] < enough) before += count[i++];
    const double inside = (target - static_cast<double>(before)) / static_cast<double>(count[i]);
    places[e] = static_cast<double>(Index{threadIdx.x} * own + i) + fmin(fmax(inside, 0.0), 1.0);
}

/// One block.
template <class T>
__global__ void balance_bias_kernel(const double* places, VectorView<T> bias) {
    begin_in_turn();
    const DeviceBalanceRange<T> range(bias);
    if (places[0] < 0.0 || !isfinite(range.width)) return;
    const auto estimate = [&](Index e) { return range.low + static_cast<T>(places[e]) * range.width; };
    double mean = 0.0;
#pragma unroll 16
    for (Index e = 0; e < bias.size; ++e) mean += static_cast<double>(estimate(e)) / static_cast<double>(bias.size);
    __syncthreads();
    for (Index e = threadIdx.x; e < bias.size; e += blockDim.x) bias[e] = estimate(e) - static_cast<T>(mean);
}

}  // namespace gpu

template <class T>
void balance_count(const Context<Cuda>& ctx, MatrixView<T> scores, InVector<T> cutoff, In<std::int32_t> experts,
                   InVector<T> bias, InVector<std::uint8_t> counted, const Balance& balance) {
    detail::check_balance(balance, scores.rows, scores.cols, counted);
    if (scores.rows == 0) return;
    const Index groups = ceil_div(scores.cols, Index{gpu::counted_experts}),
                stretch = (std::max)(Index{256}, ceil_div(scores.rows * groups, gpu::multiprocessors())),
                blocks = groups * ceil_div(scores.rows, stretch);
    gpu::launch_early(ctx, blocks, 1024, 0, gpu::balance_count_kernel<T>, scores, cutoff, experts, bias, counted,
                      balance, stretch);
}

inline void balance_clear(const Context<Cuda>& ctx, const Balance& balance) {
    clear(ctx, balance.histogram);
    clear(ctx, balance.load);
}

template <class T>
void balance_update(const Context<Cuda>& ctx, const Balance& balance, Index chosen, VectorView<T> bias) {
    detail::check_balance_update(balance, chosen, bias.size);
    double* places = ctx.workspace<double>(Scratch::operation, bias.size);
    gpu::launch_early(ctx, bias.size, gpu::block_threads, 0, gpu::balance_place_kernel<Balance>, balance, chosen,
                      places);
    gpu::launch_early(ctx, 1, gpu::block_threads, 0, gpu::balance_bias_kernel<T>, places, bias);
}

}  // namespace kimik3
