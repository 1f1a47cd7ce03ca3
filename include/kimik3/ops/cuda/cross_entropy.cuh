#pragma once
// Cross-entropy on the GPU: a team a row. targets are device memory and were checked on the host.

#include "kimik3/core/dtype.hpp"
#include "kimik3/ops/cross_entropy.hpp"
#include "kimik3/ops/cuda/launch.cuh"

namespace kimik3 {
namespace gpu {

template <class T>
__device__ T largest_of_row(const T* row, Index count, Team team) {
    T highest = row[0];
    for (Index c = team.rank; c < count; c += team.size) highest = row[c] > highest ? row[c] : highest;
    return team.max(highest);
}

template <class T>
void check_cross_entropy(In<T> logits, std::span<const std::int32_t> targets, InVector<T> loss) {
    require(static_cast<Index>(targets.size()) == logits.rows, "{} rows of logits need as many targets, got {}",
            logits.rows, targets.size());
    require_size("cross_entropy: loss", loss, logits.rows);
}

}  // namespace gpu

template <class T>
void cross_entropy(const Context<Cuda>& ctx, In<T> logits, std::span<const std::int32_t> targets, OutVector<T> loss) {
    gpu::check_cross_entropy<T>(logits, targets, loss);
    const std::int32_t* target = targets.data();
    gpu::for_rows(ctx, logits.rows, logits.cols, [=] __device__(Index n, gpu::Team team) {
        const bool ignored = target[n] == ignored_target;
        const T* row = logits.row(n);
        const T highest = gpu::largest_of_row(row, logits.cols, team);
        T total = T(0);
        for (Index c = team.rank; c < logits.cols; c += team.size) total += exp(row[c] - highest);
        total = team.sum(total);
        if (team.rank == 0) loss[n] = ignored ? T(0) : log(total) + (highest - row[target[n]]);
    });
}

template <class T>
void cross_entropy_backward(const Context<Cuda>& ctx, Out<T> logits, std::span<const std::int32_t> targets,
                            double scale, OutVector<accumulator_t<T>> loss) {
    gpu::check_cross_entropy<T>(logits, targets, loss);
    const std::int32_t* target = targets.data();
    const T each = static_cast<T>(scale);
    gpu::for_rows(ctx, logits.rows, logits.cols, [=] __device__(Index n, gpu::Team team) {
        const bool ignored = target[n] == ignored_target;
        T* row = logits.row(n);
        const T highest = gpu::largest_of_row(row, logits.cols, team),
                below = ignored ? T(0) : highest - row[target[n]];
        T total = T(0);
        for (Index c = team.rank; c < logits.cols; c += team.size) total += exp(row[c] - highest);
        total = team.sum(total);
        const T factor = each / total;
        team.sync();
        for (Index c = team.rank; c < logits.cols; c += team.size) {
            const T share = exp(row[c] - highest) * factor;
            row[c] = ignored ? T(0) : c == target[n] ? share - each : share;
        }
        if (team.rank == 0) loss[n] = ignored ? T(0) : log(total) + below;
    });
}

}  // namespace kimik3
