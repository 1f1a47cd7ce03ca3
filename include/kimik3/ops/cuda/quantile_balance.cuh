#pragma once
// Quantile balancing on the GPU. Counts are integers, so atomic additions give the same sums in any order. A bias
// that is not finite stays as it is: an update cannot throw here.

#include "kimik3/ops/cuda/launch.cuh"
#include "kimik3/ops/quantile_balance.hpp"

namespace kimik3 {
namespace gpu {

/// Bin i holds [low + i width, low + (i + 1) width).
template <class T>
struct DeviceBalanceRange {
    T low, width;

    __device__ explicit DeviceBalanceRange(VectorView<const T> bias) {
        T least = bias[0], most = bias[0];
        for (const T value : bias) {
            least = value < least ? value : least;
            most = value > most ? value : most;
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

__device__ inline void add_one(std::int64_t& count) { atomicAdd(reinterpret_cast<unsigned long long*>(&count), 1ull); }

/// The place, in bins from the lower end of the range, below which target of the counts lie.
__device__ inline double quantile_place_of(const std::int64_t* count, double target) {
    const auto enough = static_cast<std::int64_t>(ceil(target));
    std::int64_t before = 0;
    Index bin = 0;
    while (before + count[bin] < enough) before += count[bin++];
    const double inside = (target - static_cast<double>(before)) / static_cast<double>(count[bin]);
    return static_cast<double>(bin) + fmin(fmax(inside, 0.0), 1.0);
}

/// One block. places [E] is scratch.
template <class T>
__global__ void balance_update_kernel(Balance balance, Index chosen, VectorView<T> bias, double* places) {
    const Index experts = bias.size;
    std::int64_t tokens = 0;
    for (Index bin = 0; bin < Balance::bins; ++bin) tokens += balance.histogram(0, bin);
    const DeviceBalanceRange<T> range(bias);
    if (tokens == 0) return;
    if (isfinite(range.width)) {
        const double target = static_cast<double>(tokens * chosen) / static_cast<double>(experts);
        for (Index e = threadIdx.x; e < experts; e += blockDim.x)
            places[e] = quantile_place_of(balance.histogram.row(e), target);
        __syncthreads();
        double mean = 0.0;
        for (Index e = 0; e < experts; ++e)
            mean +=
                static_cast<double>(range.low + static_cast<T>(places[e]) * range.width) / static_cast<double>(experts);
        for (Index e = threadIdx.x; e < experts; e += blockDim.x)
            bias[e] = range.low + static_cast<T>(places[e]) * range.width - static_cast<T>(mean);
    }
    __syncthreads();
    for (Index e = 0; e < experts; ++e)
        for (Index bin = threadIdx.x; bin < Balance::bins; bin += blockDim.x) balance.histogram(e, bin) = 0;
    for (Index e = threadIdx.x; e < experts; e += blockDim.x) balance.load[e] = 0;
}

}  // namespace gpu

template <class T>
void balance_count(const Context<Cuda>& ctx, MatrixView<T> scores, InVector<T> cutoff, In<std::int32_t> experts,
                   InVector<T> bias, InVector<std::uint8_t> counted, const Balance& balance) {
    require_shape("balance: histogram", balance.histogram, scores.cols, Balance::bins);
    require_size("balance: load", balance.load, scores.cols);
    require(counted.size == 0 || counted.size == scores.rows, "balance: counted must have {} elements, or none, got {}",
            scores.rows, counted.size);
    const Balance to = balance;
    gpu::for_rows(ctx, scores.rows, scores.cols, [=] __device__(Index n, gpu::Team team) {
        if (counted.size != 0 && counted[n] == 0) return;
        const gpu::DeviceBalanceRange<T> range(bias);
        for (Index e = team.rank; e < scores.cols; e += team.size)
            gpu::add_one(to.histogram(e, range.bin(cutoff[n] - scores(n, e))));
        for (Index j = team.rank; j < experts.cols; j += team.size) gpu::add_one(to.load[experts(n, j)]);
    });
}

inline void balance_clear(const Context<Cuda>& ctx, const Balance& balance) {
    clear(ctx, balance.histogram);
    clear(ctx, balance.load);
}

template <class T>
void balance_update(const Context<Cuda>& ctx, const Balance& balance, Index chosen, VectorView<T> bias) {
    require_shape("balance: histogram", balance.histogram, bias.size, Balance::bins);
    double* places = ctx.workspace<double>(Scratch::operation, bias.size);
    gpu::balance_update_kernel<T><<<1, gpu::block_threads, 0, ctx.stream()>>>(balance, chosen, bias, places);
    check_launch();
}

}  // namespace kimik3
