#pragma once
// The embedding on the GPU. ids are device memory and were checked on the host. Backward: the first token of an id
// adds all tokens of that id to the table, in their order.

#include "kimik3/ops/cuda/launch.cuh"
#include "kimik3/ops/embedding.hpp"

namespace kimik3 {
namespace gpu {

/// A block a token n.
template <class T, class A>
__global__ void embedding_backward_kernel(const std::int32_t* ids, MatrixView<const T> dy, MatrixView<A> dtable) {
    __shared__ unsigned found[block_threads / 32];
    const Index n = blockIdx.x;
    const std::int32_t id = ids[n];
    bool seen = false;
    for (Index m = threadIdx.x; m < n; m += blockDim.x) seen |= ids[m] == id;
    if (__syncthreads_or(seen)) return;
    for (Index first = n; first < dy.rows; first += blockDim.x) {
        const Index m = first + threadIdx.x;
        const unsigned votes = __ballot_sync(0xffffffffu, m < dy.rows && ids[m] == id);
        if (threadIdx.x % 32 == 0) found[threadIdx.x / 32] = votes;
        __syncthreads();
        for (int w = 0; w < block_threads / 32; ++w) {
            for (unsigned left = found[w]; left != 0; left &= left - 1) {
                const Index row = first + 32 * w + __ffs(static_cast<int>(left)) - 1;
                for (Index c = threadIdx.x; c < dy.cols; c += blockDim.x) dtable(id, c) += dy(row, c);
            }
        }
        __syncthreads();
    }
}

}  // namespace gpu

template <class T>
void embedding_forward(const Context<Cuda>& ctx, std::span<const std::int32_t> ids, In<T> table, Out<T> y) {
    require_shape("embedding: y", y, static_cast<Index>(ids.size()), table.cols);
    const std::int32_t* id = ids.data();
    gpu::for_rows(ctx, y.rows, y.cols, [=] __device__(Index n, gpu::Team team) {
        for (Index c = team.rank; c < y.cols; c += team.size) y(n, c) = table(id[n], c);
    });
}

template <class D, class A>
    requires std::is_same_v<accumulator_t<std::remove_const_t<D>>, A>
void embedding_backward(const Context<Cuda>& ctx, std::span<const std::int32_t> ids, MatrixView<D> dy, Out<A> dtable) {
    using T = std::remove_const_t<D>;
    require_shape("embedding: dy", dy, static_cast<Index>(ids.size()), dtable.cols);
    if (ids.empty()) return;
    gpu::embedding_backward_kernel<T, A>
        <<<gpu::exact_grid(dy.rows), gpu::block_threads, 0, ctx.stream()>>>(ids.data(), dy, dtable);
    check_launch();
}

}  // namespace kimik3
