#pragma once
// Cross-entropy on the GPU: a block a row, which is read once; backward holds it in shared memory. Rows that are no
// Eights (vectors.cuh), or that shared memory does not hold, take the plain form, a team a row. targets are device
// memory and were checked on the host.

#include "kimik3/core/dtype.hpp"
#include "kimik3/ops/cross_entropy.hpp"
#include "kimik3/ops/cuda/quick_formulas.cuh"
#include "kimik3/ops/cuda/tensor_core.cuh"
#include "kimik3/ops/cuda/vectors.cuh"

namespace kimik3 {
namespace gpu {

template <class T>
__device__ accumulator_t<T> largest_of_row(const T* row, Index count, Team team) {
    accumulator_t<T> highest = row[0];
    for (Index c = team.rank; c < count; c += team.size) {
        const accumulator_t<T> value = row[c];
        highest = value > highest ? value : highest;
    }
    return team.max(highest);
}

template <class T>
void check_cross_entropy(In<T> logits, std::span<const std::int32_t> targets,
                         InVector<accumulator_t<T>> loss) {
    require(static_cast<Index>(targets.size()) == logits.rows, "{} rows of logits need as many targets, got {}",
            logits.rows, targets.size());
    require_size("cross_entropy: loss", loss, logits.rows);
}

inline constexpr int row_threads = 512;

/// The sum of exp(x - highest) over some numbers, and the highest.
template <class T>
struct ExpSum {
    using A = accumulator_t<T>;
    A highest, total;

    __device__ static ExpSum none() { return {-INFINITY, A(0)}; }
    __device__ void add(const A (&x)[8]) {
        A above = highest;
#pragma unroll
        for (int i = 0; i < 8; ++i) above = x[i] > above ? x[i] : above;
        if (above > highest) total *= exp_of<T>(highest - above), highest = above;
        if (highest == -INFINITY) return;  // all of them, so far
#pragma unroll
        for (int i = 0; i < 8; ++i) total += exp_of<T>(x[i] - highest);
    }
    /// That of all threads of the block.
    __device__ ExpSum of_block() const {
        constexpr int warps = row_threads / 32;
        __shared__ ExpSum parts[warps];
        const ExpSum mine = of_warp();
        if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = mine;
        __syncthreads();
        return (threadIdx.x % 32 < warps ? parts[threadIdx.x % 32] : none()).of_warp();
    }

private:
    __device__ ExpSum of_warp() const {
        const A above = warp_max(highest);
        return {above, warp_sum(total == A(0) ? A(0) : total * exp_of<T>(highest - above))};
    }
};

template <class T>
__global__ void __launch_bounds__(row_threads)
    cross_entropy_kernel(MatrixView<const T> logits, const std::int32_t* targets, accumulator_t<T>* loss) {
    using A = accumulator_t<T>;
    const Index n = blockIdx.x;
    begin_in_turn();
    const std::int32_t target = targets[n];
    const T* row = logits.row(n);
    ExpSum<T> sum = ExpSum<T>::none();
#pragma unroll 4
    for (Index c = 8 * threadIdx.x; c < logits.cols; c += 8 * row_threads) {
        A value[8];
        load_eight(row + c, value);
        sum.add(value);
    }
    sum = sum.of_block();
    if (threadIdx.x == 0)
        loss[n] = target == ignored_target ? A(0) : log(sum.total) + (sum.highest - static_cast<A>(row[target]));
}

template <class T>
__global__ void __launch_bounds__(row_threads)
    cross_entropy_backward_kernel(MatrixView<T> logits, const std::int32_t* targets, accumulator_t<T> scale,
                                  accumulator_t<T>* loss) {
    using A = accumulator_t<T>;
    extern __shared__ __align__(16) unsigned char cross_entropy_memory[];
    T* held = reinterpret_cast<T*>(cross_entropy_memory);
    const Index n = blockIdx.x;
    const int width = static_cast<int>(logits.cols), first = 8 * static_cast<int>(threadIdx.x);
    begin_in_turn();
    const std::int32_t target = targets[n];
    T* row = logits.row(n);
    if (target == ignored_target) {
        for (int c = first; c < width; c += 8 * row_threads) Eight<T>::zero().store(row + c);
        if (threadIdx.x == 0) loss[n] = A(0);
        return;
    }
    for (int c = first; c < width; c += 8 * row_threads) {
#pragma unroll
        for (int i = 0; i < Eight<T>::words; ++i)
            copy_16_bytes(reinterpret_cast<uint4*>(held + c) + i, reinterpret_cast<const uint4*>(row + c) + i);
    }
    commit_copies();
    wait_for_copies<0>();
    ExpSum<T> sum = ExpSum<T>::none();
#pragma unroll 2
    for (int c = first; c < width; c += 8 * row_threads) {
        A value[8];
        load_eight(held + c, value);
        sum.add(value);
    }
    sum = sum.of_block();
    if (threadIdx.x == 0) loss[n] = log(sum.total) + (sum.highest - static_cast<A>(held[target]));
    const A factor = scale / sum.total;
#pragma unroll 2
    for (int c = first; c < width; c += 8 * row_threads) {
        A value[8];
        load_eight(held + c, value);
#pragma unroll
        for (int i = 0; i < 8; ++i) value[i] = exp_of<T>(value[i] - sum.highest) * factor;
        if (target / 8 == c / 8) {
#pragma unroll
            for (int i = 0; i < 8; ++i) value[i] -= c + i == target ? scale : A(0);
        }
        Eight<T>::of(value).store(row + c);
    }
}

}  // namespace gpu

template <class L, class A>
    requires std::is_same_v<accumulator_t<std::remove_const_t<L>>, A>
void cross_entropy(const Context<Cuda>& ctx, MatrixView<L> logits, std::span<const std::int32_t> targets,
                   OutVector<A> loss) {
    using T = std::remove_const_t<L>;
    gpu::check_cross_entropy<T>(logits, targets, loss);
    const std::int32_t* target = targets.data();
    if (logits.rows > 0 && gpu::in_eights<const T>({logits})) {
        return gpu::launch_early(ctx, logits.rows, gpu::row_threads, 0, gpu::cross_entropy_kernel<T>, logits, target,
                                 loss.data);
    }
    gpu::for_rows(ctx, logits.rows, logits.cols, [=] __device__(Index n, gpu::Team team) {
        const bool ignored = target[n] == ignored_target;
        const T* row = logits.row(n);
        const A highest = gpu::largest_of_row(row, logits.cols, team);
        A total = A(0);
        for (Index c = team.rank; c < logits.cols; c += team.size) total += exp(row[c] - highest);
        total = team.sum(total);
        if (team.rank == 0) loss[n] = ignored ? A(0) : log(total) + (highest - row[target[n]]);
    });
}

template <class T>
void cross_entropy_backward(const Context<Cuda>& ctx, Out<T> logits, std::span<const std::int32_t> targets,
                            double scale, OutVector<accumulator_t<T>> loss) {
    using A = accumulator_t<T>;
    gpu::check_cross_entropy<T>(logits, targets, loss);
    const std::int32_t* target = targets.data();
    const A each = static_cast<A>(scale);
    const Index bytes = logits.cols * static_cast<Index>(sizeof(T));
    if (logits.rows > 0 && bytes <= gpu::most_shared_bytes() && gpu::in_eights<T>({logits})) {
        return gpu::launch_early(ctx, logits.rows, gpu::row_threads, bytes, gpu::cross_entropy_backward_kernel<T>,
                                 logits, target, each, loss.data);
    }
    gpu::for_rows(ctx, logits.rows, logits.cols, [=] __device__(Index n, gpu::Team team) {
        const bool ignored = target[n] == ignored_target;
        T* row = logits.row(n);
        const A highest = gpu::largest_of_row(row, logits.cols, team),
                below = ignored ? A(0) : highest - row[target[n]];
        A total = A(0);
        for (Index c = team.rank; c < logits.cols; c += team.size) total += exp(row[c] - highest);
        total = team.sum(total);
        const A factor = each / total;
        team.sync();
        for (Index c = team.rank; c < logits.cols; c += team.size) {
            const A share = exp(row[c] - highest) * factor;
            row[c] = static_cast<T>(ignored ? A(0) : c == target[n] ? share - each : share);
        }
        if (team.rank == 0) loss[n] = ignored ? A(0) : log(total) + below;
    });
}

}  // namespace kimik3
