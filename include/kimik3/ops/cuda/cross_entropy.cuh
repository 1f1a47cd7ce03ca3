#pragma once
// Cross-entropy on the GPU: a team a row. targets are device memory and were checked on the host.

#include "kimik3/core/dtype.hpp"
#include "kimik3/ops/cross_entropy.hpp"
#include "kimik3/ops/cuda/launch.cuh"

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

}  // namespace gpu

template <class L, class A>
    requires std::is_same_v<accumulator_t<std::remove_const_t<L>>, A>
void cross_entropy(const Context<Cuda>& ctx, MatrixView<L> logits, std::span<const std::int32_t> targets,
                   OutVector<A> loss) {
    using T = std::remove_const_t<L>;
    gpu::check_cross_entropy<T>(logits, targets, loss);
    const std::int32_t* target = targets.data();
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
