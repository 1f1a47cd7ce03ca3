#pragma once
// The counting sort by expert on the GPU: a block an expert counts its pairs, one thread turns counts into first
// rows, and the blocks walk over the pairs again and place them in rising order.

#include "kimik3/ops/cuda/launch.cuh"
#include "kimik3/ops/expert_dispatch.hpp"

namespace kimik3 {
namespace gpu {

/// body(pair, rank) for every pair of expert e in rising order; rank counts them. A block works on it; returns their
/// number.
template <class Body>
__device__ Index for_pairs_of(MatrixView<const std::int32_t> experts, Index e, Body&& body) {
    __shared__ int found[block_threads / 32];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    Index before = 0;
    for (Index first = 0; first < experts.size(); first += blockDim.x) {
        const Index pair = first + threadIdx.x;
        const bool ours = pair < experts.size() && experts(pair / experts.cols, pair % experts.cols) == e;
        const unsigned votes = __ballot_sync(0xffffffffu, ours);
        __syncthreads();
        if (lane == 0) found[warp] = __popc(votes);
        __syncthreads();
        Index rank = before + __popc(votes & ((1u << lane) - 1u));
        for (int w = 0; w < block_threads / 32; ++w) {
            if (w < warp) rank += found[w];
            before += found[w];
        }
        if (ours) body(pair, rank);
    }
    return before;
}

template <class Id>
__global__ void count_pairs_kernel(MatrixView<const Id> experts, ExpertDispatch d) {
    const Index count = for_pairs_of(experts, blockIdx.x, [](Index, Index) {});
    if (threadIdx.x == 0) d.offset[blockIdx.x] = count;
}

template <class Dispatch>
__global__ void first_rows_kernel(Dispatch d, Index unit) {
    Index begin = 0;
    for (Index e = 0; e + 1 < d.offset.size; ++e) {
        const Index count = d.offset[e];
        d.offset[e] = begin;
        begin += round_up(count, unit);
    }
    d.offset[d.offset.size - 1] = begin;
}

template <class Id>
__global__ void place_pairs_kernel(MatrixView<const Id> experts, ExpertDispatch d) {
    const Index first = d.offset[blockIdx.x];
    for_pairs_of(experts, blockIdx.x, [&](Index pair, Index rank) {
        d.source[first + rank] = pair;
        d.position(pair / experts.cols, pair % experts.cols) = first + rank;
    });
}

}  // namespace gpu

inline void expert_dispatch(const Context<Cuda>& ctx, MatrixView<const std::int32_t> experts, const ExpertDispatch& d) {
    require_shape("expert_dispatch: position", d.position, experts.rows, experts.cols);
    require_size("expert_dispatch: source", d.source, d.max_rows(experts.rows, experts.cols, d.experts()));
    const unsigned blocks = gpu::exact_grid(d.experts());
    if (d.source.size > 0)
        KIMIK3_CUDA(cudaMemsetAsync(d.source.data, 0xff, to_size(d.source.size) * sizeof(Index), ctx.stream()));
    gpu::count_pairs_kernel<<<blocks, gpu::block_threads, 0, ctx.stream()>>>(experts, d);
    gpu::first_rows_kernel<<<1, 1, 0, ctx.stream()>>>(d, d.row_unit(experts.rows));
    gpu::place_pairs_kernel<<<blocks, gpu::block_threads, 0, ctx.stream()>>>(experts, d);
    check_launch();
}

}  // namespace kimik3
